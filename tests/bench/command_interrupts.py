"""Probes of a command that are ended at random moments: what is left of them.

Each of fifty probes is sent SIGINT, SIGTERM or SIGKILL at a moment from 0.1 to 8 s after its start. Within five seconds
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
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from measuring import RESULTS, machine, save

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "command"))

from command_ending import SIGNALS, Left, Probe, ended, prepared

PROBES = 50
EARLIEST_SECONDS, LATEST_SECONDS = 0.1, 8.0
FILE = RESULTS / "command_interrupts.json"


def moments(count: int) -> Iterator[tuple[int, float]]:
    """Signals by turns, and when to send each: the same in every run."""
    generator = random.Random(20261122)
    for index in range(count):
        yield SIGNALS[index % len(SIGNALS)], generator.uniform(EARLIEST_SECONDS, LATEST_SECONDS)


def end(number: int, moment: float) -> Left:
    """One probe in a directory of its own."""

    def wait(probe: Probe) -> None:
        time.sleep(max(0.0, moment - probe.seconds))

    with tempfile.TemporaryDirectory() as directory:
        return ended(number, prepared(Path(directory)), wait)


def main(arguments: list[str]) -> int:
    """End as many probes as are asked for, and save what was left."""
    count = int(arguments[0]) if arguments else PROBES
    rows, stages = [], Counter[str]()
    for number, moment in moments(count):
        left = end(number, moment)
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
