"""Scanning a log of 2 GB against `wc -l` on the same file, side by side in one run, and the memory that it takes.

Usage: python tests/bench/diagnose_speed.py [ROUNDS] [GIGABYTES]
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from measuring import RESULTS, machine, save

if TYPE_CHECKING:
    from collections.abc import Callable

BELOW_RATIO: Final = 20.0
BELOW_MEGABYTES: Final = 200
BLOCK_LINES: Final = 20_000
BLOCKS: Final = 10

ERROR: Final = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 120, in train\n'
    "    loss.backward()\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. GPU 0 has a total capacity of 15.7 GiB\n"
)

TRAINING: Final = (
    "2031-05-06 07:08:{s:02d} | INFO     | trainer:step:121 - epoch 3 step {i} loss 0.{i} lr 3.1e-05 mem 10.{d}GB\n",
    "[rank{d}]: iter: {i} | loss: 1.{i} | memory: 7{d}.5 GiB | samples/s 51{d}.2\n",
    "Epoch 3:  {s}%|#####     | {i}/100000 [00:01<00:13,  1.33s/it, loss=0.{i}]\r",
    "INFO:root:Saving checkpoint to /home/user/runs/{i}/checkpoint-{i}.pt and the configuration of the model\n",
    "{{'loss': 0.{i}, 'grad_norm': 1.{d}, 'learning_rate': 3e-05, 'epoch': 0.{i}}}\n",
)
"""Lines as trainers print them; the others are a log's worst days."""

KINDS: Final[dict[str, tuple[str, ...]]] = {
    "training": TRAINING,
    "every line has memory": ("step {i} loss 0.{i} memory: 10.{d} GiB max_memory_allocated: 12.3 GB\n",),
    "every line is an error": (ERROR.splitlines(keepends=True)[-1].replace("1.25", "{i}.00"),),
    "every line has the same error": (ERROR.splitlines(keepends=True)[-1],),
    "every line is a harmless error": ("2031-05-06 07:08:{s:02d} ERROR: could not fetch item {i}, retrying\n",),
    "one line": ("step {i} loss 0.{i} all is well ",),
    "one line of a progress bar": (" {s}%|####    | {i}/100000 [00:01<00:13, 1.33s/it]\r",),
    "empty lines": ("\n" * 100,),
}

ALIKE: Final = ("every line is an error", "every line has the same error")
"""Logs in which the error is one of many that differ in no more than a number, so that it need not be kept."""

SCAN: Final = """
import json, resource, sys, time
from oomdoctor.diagnose.text.scan import scan
started = time.perf_counter()
with open(sys.argv[1], "rb") as stream:
    result = scan(stream, sys.argv[1])
print(json.dumps({
    "seconds": time.perf_counter() - started,
    "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "windows": [[window.line_number, window.lines[window.at]] for window in result.windows],
    "lines": result.lines,
}))
"""


def write_log(path: Path, forms: tuple[str, ...], size_bytes: int) -> int:
    """Write a log with one error at two thirds; returns the error's line, from 1."""
    blocks = [
        "".join(forms[i % len(forms)].format(i=i, s=i % 60, d=i % 10) for i in range(first, first + BLOCK_LINES))
        for first in range(0, BLOCKS * BLOCK_LINES, BLOCK_LINES)
    ]
    written = lines = error_line = 0
    with path.open("wb") as stream:
        for text in itertools.cycle(blocks):
            if written >= size_bytes:
                break
            if not error_line and written > size_bytes * 2 // 3:
                written += stream.write(f"\n{ERROR}".encode())
                lines += 1 + ERROR.count("\n")
                error_line = lines
            written += stream.write(text.encode())
            lines += text.count("\n")
        stream.flush()
        os.fsync(stream.fileno())  # else the system writes it out while it is being read
    return error_line


def seconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def measure(path: Path, rounds: int) -> dict[str, object]:
    """Run the two in turns, after one of each that is not counted; the whole process counts on both sides."""
    reference, ours, megabytes, last = [], [], 0.0, {}
    for _ in range(rounds + 1):
        reference.append(seconds(lambda: subprocess.run(["wc", "-l", path], check=True, capture_output=True)))
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", SCAN, path], check=True, capture_output=True, text=True)
        ours.append(time.perf_counter() - started)
        last = json.loads(done.stdout)
        megabytes = max(megabytes, last["megabytes"])
    wc, scanned = statistics.median(reference[1:]), statistics.median(ours[1:])
    return {
        "seconds": round(scanned, 2),
        "wc_seconds": round(wc, 3),
        "ratio": round(scanned / wc, 1),
        "peak_megabytes": round(megabytes),
        "windows": len(last["windows"]),
        "found_at": [line for line, text in last["windows"] if "Tried to allocate 1.25 GiB" in text],
    }


def main() -> int:
    """Run the bench; 1 where a claim does not hold: time and memory for every log, the error's line for most."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    gigabytes = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
    rows: list[dict[str, object]] = []
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        for kind, forms in KINDS.items():
            error_line = write_log(path, tuple(forms), int(gigabytes * 1e9))
            row = {"log": kind, "gigabytes": gigabytes, "error_line": error_line, **measure(path, rounds)}
            rows.append(row)
            print(row, flush=True)
            failed |= float(str(row["peak_megabytes"])) >= BELOW_MEGABYTES
            failed |= float(str(row["ratio"])) >= BELOW_RATIO
            failed |= kind not in ALIKE and row["found_at"] != [error_line]
    claims = {"ratio_below": BELOW_RATIO, "peak_megabytes_below": BELOW_MEGABYTES}
    save(RESULTS / "diagnose_speed.json", {"machine": machine(), "rounds": rounds, "claims": claims, "logs": rows})
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
