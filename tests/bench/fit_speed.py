"""How long the whole catalogue's answers take, in times of `import torch`, measured side by side.

Usage: python tests/bench/fit_speed.py [ROUNDS]
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from typing import Final

from measuring import RESULTS, machine, save

AT_MOST: Final = 6.0
IMPORT: Final = [sys.executable, "-c", "import torch"]
FIT: Final = [sys.executable, "-m", "oomdoctor", "gpus", "--fit", "gpt2", "--target-batch", "256", "--quiet"]


def seconds_of(command: list[str]) -> tuple[float, float]:
    """Wall-clock and processor seconds."""
    before, begin = _processor_seconds(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin, _processor_seconds() - before


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(rounds: int = 5) -> None:
    """Measure, print and save."""
    pairs = [(seconds_of(IMPORT), seconds_of(FIT)) for _ in range(rounds)]
    rows = {}
    for index, kind in enumerate(("wall", "processor")):
        imports, fits = (statistics.median(pair[command][index] for pair in pairs) for command in (0, 1))
        rows[kind] = {"import_torch": round(imports, 3), "fit": round(fits, 3), "times": round(fits / imports, 2)}
        print(f"{kind:>9}: import torch {imports:.2f} s, the catalogue {fits:.2f} s, {fits / imports:.2f} times")
    claims = {"at_most_times": AT_MOST, "holds": rows["wall"]["times"] < AT_MOST}
    save(RESULTS / "fit_speed.json", {"machine": machine(), "rounds": rounds, "rows": rows, "claims": claims})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
