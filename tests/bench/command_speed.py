"""The whole probe of five commands with and without the fork server, side by side.

The fork server stays in oomdoctor only while it makes the whole probe at least a quarter faster, as the median over the
five commands. A round runs both ways once, in turns. The cache of random draws was measured by the same program before
it was deleted; its figures stay in the results.

Usage: python tests/bench/command_speed.py [ROUNDS]
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import RESULTS, machine, save

from oomdoctor.engines.installed import find_torch

sys.path.insert(0, str(Path(__file__).parents[1] / "command"))

from truth import FRAMEWORKS, TARGET_BATCH, Script

Row = dict[str, Any]

GPU = "rtx-4090"
ENOUGH = 0.75
"""Share of the time without the fork server that the probe may take with it, if it is to stay."""

_PROGRAM = """
import sys
from oomdoctor.cli import main
from oomdoctor.command import supervisor

class NoForks:
    reason = "the bench asks for it"
    def __init__(self, description, room):
        pass
    def wait(self, timeout_seconds, stops):
        return False
    def close(self):
        pass

if not {forks}:
    supervisor.ForkServer = NoForks
sys.exit(main(sys.argv[1:]))
"""

WAYS = {"with": True, "without": False}
FILE = RESULTS / "command_speed.json"


def probe(script: Script, *, forks: bool) -> tuple[float, float, int]:
    """Run one probe: its wall time and its processor time in seconds, and its answer."""
    options = ["--target-batch", str(TARGET_BATCH), "--gpu", GPU, "--json", "--quiet", "--", *script.template()]
    command = [sys.executable, "-c", _PROGRAM.format(forks=forks), "probe", *options]
    with tempfile.TemporaryDirectory() as directory:
        started, cpu_before = time.perf_counter(), _cpu_seconds()
        printed = subprocess.run(command, cwd=directory, check=True, stdout=subprocess.PIPE, text=True).stdout
        seconds, cpu_seconds = time.perf_counter() - started, _cpu_seconds() - cpu_before
    return seconds, cpu_seconds, int(json.loads(printed)["result"]["micro_batch"]["maximum"])


def _cpu_seconds() -> float:
    """Processor time of all that was started and has ended, which other work on the machine is not in."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def add_round(row: Row, index: int) -> None:
    """Run a command both ways once, each round in another order."""
    script = next(one for one in FRAMEWORKS if one.name == row["script"])
    for way in reversed(WAYS) if index % 2 else WAYS:
        wall, cpu, answer = probe(script, forks=WAYS[way])
        row["seconds"][way].append(round(wall, 2))
        row["cpu_seconds"][way].append(round(cpu, 2))
        print(f"{script.name} {way}: {wall:.2f} s, {cpu:.2f} s of processors", flush=True)
        if row.setdefault("micro_batch", answer) != answer:
            raise RuntimeError(f"{script.name} has two answers: {row['micro_batch']} and {answer}")


def ratios(rows: list[Row]) -> Row:
    """Time with the fork server over time without: for each command, of its medians, and as the median over them."""
    wall = {row["script"]: _ratio(row["seconds"]) for row in rows}
    cpu = {row["script"]: _ratio(row["cpu_seconds"]) for row in rows}
    median, cpu_median = (round(statistics.median(each.values()), 3) for each in (wall, cpu))
    return {"seconds": wall, "cpu_seconds": cpu, "median": median, "cpu_median": cpu_median, "stays": median <= ENOUGH}


def _ratio(times: dict[str, list[float]]) -> float:
    return round(statistics.median(times["with"]) / statistics.median(times["without"]), 3)


def main() -> int:
    """Run the bench and print what stays."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    build = find_torch()
    about = {"torch": build.version if build else None, "gpu": f"null GPU as {GPU}"}
    rows: list[Row] = [
        {"script": script.name, "seconds": {way: [] for way in WAYS}, "cpu_seconds": {way: [] for way in WAYS}}
        for script in FRAMEWORKS
    ]
    before = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    kept = {name: before[name] for name in ("draw_cache",) if name in before}
    for index in range(rounds):
        for row in rows:
            add_round(row, index)
        document = {"machine": machine() | about, "rounds": index + 1, "enough": ENOUGH}
        save(FILE, {**document, "fork_server": {"commands": rows, "ratios": ratios(rows)}, **kept})
    print(json.dumps(ratios(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
