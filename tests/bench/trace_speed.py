"""How long traced answers take, one card's and the whole catalogue's, in times of `import torch`, side by side.

Usage: python tests/bench/trace_speed.py [ROUNDS]
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from typing import Any, Final

from measuring import RESULTS, machine, save

IMPORT: Final = [sys.executable, "-c", "import torch"]
OOMDOCTOR: Final = [sys.executable, "-m", "oomdoctor"]
QUESTION: Final = ["gpt2", "--target-batch", "256", "--quiet"]
COMMANDS: Final = {
    "probe": [*OOMDOCTOR, "probe", *QUESTION, "--gpu", "rtx-4090", "--engine", "trace"],
    "catalogue": [*OOMDOCTOR, "gpus", "--fit", *QUESTION],
}
AT_MOST: Final = {"probe": 2.5, "catalogue": 6.0}


def seconds_of(command: list[str]) -> tuple[float, float]:
    """Wall-clock and processor seconds."""
    before, begin = _processor_seconds(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin, _processor_seconds() - before


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compared(name: str, rounds: int) -> dict[str, Any]:
    """One command's median seconds beside those of the import, in turns."""
    pairs = [(seconds_of(IMPORT), seconds_of(COMMANDS[name])) for _ in range(rounds)]
    row: dict[str, Any] = {"at_most_times": AT_MOST[name]}
    for index, kind in enumerate(("wall", "processor")):
        imports, ours = (statistics.median(pair[command][index] for pair in pairs) for command in (0, 1))
        row[kind] = {"import_torch": round(imports, 3), "command": round(ours, 3), "times": round(ours / imports, 2)}
        print(f"{name} ({kind}): import torch {imports:.2f} s, the command {ours:.2f} s, {ours / imports:.2f} times")
    return row | {"holds": row["wall"]["times"] < AT_MOST[name]}


def main(rounds: int = 5) -> None:
    """Measure, print and save."""
    rows = {name: compared(name, rounds) for name in COMMANDS}
    save(RESULTS / "trace_speed.json", {"machine": machine(), "rounds": rounds, "rows": rows})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
