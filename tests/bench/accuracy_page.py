"""Put the tables of `accuracy.py` and of `gpu_check.py` into the page on accuracy.

Usage: python tests/bench/accuracy_page.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from accuracy_table import cases, promises
from measuring import RESULTS, replace_block

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
ENGINE = "trace"
GPU = "gpu_check-nvidia-h100-80gb-hbm3.json"


def block(found: dict[str, Any]) -> str:
    """Return the table of promises, and the table of cases, which is folded away."""
    said = found["summary"][ENGINE]
    lines = ["", *promises(said), "", f"<details markdown><summary>Each of the {said['cases']} models</summary>", ""]
    return "\n".join([*lines, *cases(found["cases"], ENGINE), "", "</details>", ""])


def with_block(text: str, found: dict[str, Any]) -> str:
    """Return the page's text with the tables of these results."""
    return replace_block(text, "accuracy", block(found))


def with_gpu(text: str, found: dict[str, Any]) -> str:
    """Return the page's text with the tables of a comparison with a GPU."""
    tables = (found[name] for name in ("table", "models_table", "libraries_table"))
    return replace_block(text, "gpu", "\n".join(["", *(line for table in tables for line in [*table, ""])]))


def main() -> None:
    """Write it."""
    found = json.loads((RESULTS / "accuracy.json").read_text(encoding="utf-8"))
    gpu = json.loads((RESULTS / GPU).read_text(encoding="utf-8"))
    PAGE.write_text(with_gpu(with_block(PAGE.read_text(encoding="utf-8"), found), gpu), encoding="utf-8")


if __name__ == "__main__":
    main()
