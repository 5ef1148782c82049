"""Worlds of ranks that are ended at random moments: what is left of them.

Fifty times a probe of a model file's ranks, a probe of a command's ranks or a run of ranks is sent SIGINT, SIGTERM or
SIGKILL, at a moment between its start and the time that an undisturbed one takes; those that came to their end before
are done besides. Within five seconds no process of it may be alive, and there may be nothing of ours in the directory
for temporary files or in the working directory.

Usage: python tests/bench/ranks_interrupts.py [TIMES]
"""

from __future__ import annotations

import itertools
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from measuring import RESULTS, machine, save

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "command"))

from command_ending import SIGNALS, Left, Probe, ended, prepared
from test_ranks_of_file import SHARDED

TIMES = 50
FILE = RESULTS / "ranks_interrupts.json"
OUTPUT = "answer.json"
_WORLD = ("--world-size", "16", "--rank", "0,last")
_SCRIPT = (str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "4", "uneven_ranks.py")
_PROBE = ("--capacity", "300MiB", "--engine", "null", "--json", "--quiet", "-o", OUTPUT)
KINDS = {
    "probe of a file": ("probe", "model.py", *_WORLD, *_PROBE),
    "probe of a command": ("probe", *_WORLD, *_PROBE, "--", *_SCRIPT, "--batch-size", "{micro_batch}"),
    "run": ("run", *_WORLD, "--gpu", "t4", "--no-history", "--", *_SCRIPT),
}


def end(kind: str, number: int, until: Callable[[Probe], object]) -> Left:
    """Start one of a kind in a directory of its own, and end it."""
    with tempfile.TemporaryDirectory() as name:
        directory = prepared(Path(name))
        (directory / "model.py").write_text(SHARDED)
        return ended(number, directory, until, KINDS[kind], "" if kind == "run" else OUTPUT)


def _until(moment: float) -> Callable[[Probe], None]:
    def wait(probe: Probe) -> None:
        while probe.seconds < moment and probe.stage != "over":
            time.sleep(0.05)

    return wait


def main(arguments: list[str]) -> int:
    """End as many as are asked for, and save what was left."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what is started in the background ignores it
    count, generator, rows = int(arguments[0]) if arguments else TIMES, random.Random(20261125), []
    whole = {kind: end(kind, signal.SIGTERM, _until(600)).seconds for kind in KINDS}
    print(whole, flush=True)
    for index in itertools.count():
        if sum(row["exit_code"] != 0 for row in rows) == count:
            break
        kind, number = list(KINDS)[index % len(KINDS)], SIGNALS[index // len(KINDS) % len(SIGNALS)]
        left = end(kind, number, _until(generator.uniform(0.0, whole[kind])))
        row = {"kind": kind, "signal": signal.Signals(number).name, **asdict(left), "seconds": round(left.seconds, 2)}
        rows.append({name: value for name, value in row.items() if name != "stage"})
        print(rows[-1], flush=True)
    unclean = [row for row in rows if row["processes"] or row["files"]]
    undisturbed = {kind: round(seconds, 2) for kind, seconds in whole.items()}
    begun = {"interrupted": count, "came_to_their_end": len(rows) - count}
    about = {"machine": machine(), **begun, "left_something": len(unclean), "undisturbed_seconds": undisturbed}
    if count >= TIMES:
        save(FILE, {**about, "rows": rows})
    return 1 if unclean else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
