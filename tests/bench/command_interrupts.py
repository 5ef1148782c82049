"""Probes of a command that are ended at random moments: what is left of them.

Each of fifty probes is sent SIGINT, SIGTERM or SIGKILL: half of them at a moment from 0.1 to 8 s after its start, and
half a moment after it has reached a stage, so that on a slow machine forked trials are ended too. Within five seconds
no process that inherited its environment may be alive, and neither in the directory for temporary files nor in the
working directory may there be anything of ours. The script that is probed starts processes of its own, a daemon too.

Usage: python tests/bench/command_interrupts.py [PROBES]
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from measuring import RESULTS, machine, save

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "command"))

from command_ending import SIGNALS, STAGES, Left, Probe, ended, prepared, reached

PROBES = 50
EARLIEST_SECONDS, LATEST_SECONDS = 0.1, 8.0
LONGEST_STAY_SECONDS = 0.3
FILE = RESULTS / "command_interrupts.json"


def waits(count: int) -> Iterator[tuple[int, Callable[[Probe], None]]]:
    """Signals by turns, and what to wait for before each: the same in every run."""
    generator = random.Random(20261122)
    for index in range(count):
        number = SIGNALS[index // 2 % len(SIGNALS)]
        if index % 2:
            stage = STAGES[index // 2 // len(SIGNALS) % len(STAGES)]
            yield number, reached(stage, generator.uniform(0.0, LONGEST_STAY_SECONDS))
        else:
            yield number, _until(generator.uniform(EARLIEST_SECONDS, LATEST_SECONDS))


def _until(moment: float) -> Callable[[Probe], None]:
    return lambda probe: time.sleep(max(0.0, moment - probe.seconds))


def end(number: int, until: Callable[[Probe], None]) -> Left:
    """One probe in a directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        return ended(number, prepared(Path(directory)), until)


def main(arguments: list[str]) -> int:
    """End as many probes as are asked for, and save what was left."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what is started in the background ignores it
    count = int(arguments[0]) if arguments else PROBES
    rows, stages = [], Counter[str]()
    for number, until in waits(count):
        left = end(number, until)
        name = signal.Signals(number).name
        stages[f"{name}, {left.stage}"] += 1
        rows.append({"signal": name, **asdict(left), "seconds": round(left.seconds, 2)})
        print(name, left, flush=True)
    unclean = [row for row in rows if row["processes"] or row["files"]]
    document = {
        "machine": machine(),
        "probes": count,
        "left_something": len(unclean),
        "by_signal_and_stage": dict(sorted(stages.items())),
        "rows": rows,
    }
    if count >= PROBES:
        save(FILE, document)
    return 1 if unclean else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
