"""Start-up and a whole probe, as ratios to what cannot be avoided, measured side by side in one run.

Usage: python tests/bench/speed.py [ROUNDS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from measuring import RESULTS, machine, save

from oomdoctor.engines.installed import find_torch

COMMAND = str(Path(sys.executable).parent / "oomdoctor")
IMPORT_TYPER_RICH = [sys.executable, "-c", "import typer, rich"]
IMPORT_TORCH = [sys.executable, "-c", "import torch"]

# Name, command, what it is measured against, and the ratio that the README claims.
CLAIMS = [
    ("oomdoctor --help", [COMMAND, "--help"], IMPORT_TYPER_RICH, 2.0),
    ("oomdoctor gpus --known", [COMMAND, "gpus", "--known"], IMPORT_TYPER_RICH, 2.0),
    (
        "oomdoctor probe gpt2 --target-batch 256 --gpu rtx-4090",
        [COMMAND, "probe", "gpt2", "--target-batch", "256", "--gpu", "rtx-4090", "--quiet"],
        IMPORT_TORCH,
        4.0,
    ),
]


def seconds(command: list[str]) -> float:
    """Wall time of one run."""
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"TERM": "dumb"})
    return time.perf_counter() - started


def measure(command: list[str], reference: list[str], rounds: int) -> dict[str, object]:
    """Run the two in turns, after one of each that is not counted."""
    pairs = [(seconds(command), seconds(reference)) for _ in range(rounds + 1)][1:]
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"seconds": round(ours, 3), "reference_seconds": round(theirs, 3), "ratio": round(ours / theirs, 2)}


def main() -> int:
    """Run the bench; 1 where a claim does not hold."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    rows = []
    for name, command, reference, claimed in CLAIMS:
        rows.append(
            {"command": name, "reference": reference[-1], "below": claimed, **measure(command, reference, rounds)}
        )
        print(rows[-1], flush=True)
    build = find_torch()
    versions = {"torch": build.version if build else None}
    save(RESULTS / "speed.json", {"machine": machine() | versions, "rounds": rounds, "claims": rows})
    return int(any(float(str(row["ratio"])) >= float(str(row["below"])) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
