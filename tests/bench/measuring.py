"""What every bench shares: the cases, the machine, and a results file that is whole at every moment."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from oomdoctor import __version__
from oomdoctor.engines.installed import find_torch
from oomdoctor.output import write_atomically
from oomdoctor.units import GIB

RESULTS = Path(__file__).parent / "results"
EXAMPLES = ("gpt2", "resnet50", "vit_b16", "lstm", "unet")
PRECISIONS = ("fp32", "bf16")
CAPACITIES_GIB = (8, 16, 24, 40, 80)
TARGET_BATCH = 8192
"""Above every maximum of the cases, so that memory is what limits."""


def machine() -> dict[str, object]:
    """Where and with what a bench ran."""
    return {
        "oomdoctor": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def gibibytes(number: float) -> int:
    """Bytes of so many GiB."""
    return int(number * GIB)


def save(path: Path, document: dict[str, object]) -> None:
    """Write a bench's results as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(document, indent=1) + "\n")


def save_rows_of_torch(path: Path, rows: dict[str, dict[str, Any]], **facts: object) -> None:
    """Save rows in place of the same of this PyTorch, beside those of others, with facts that all share."""
    build = find_torch()
    version = build.version if build else "none"
    kept = json.loads(path.read_text(encoding="utf-8"))["rows_by_torch"] if path.exists() else {}
    of_torch = {**kept, version: {**kept.get(version, {}), **rows}}
    save(path, {"machine": machine(), **facts, "rows_by_torch": of_torch})


def replace_block(page: str, name: str, block: str) -> str:
    """Return a page with other text between its comments `<!-- name: begin -->` and `<!-- name: end -->`."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n{block}\n{end}{rest.partition(end)[2]}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
