"""A check of the five examples on three cards: asked anew, and from the cache; and one entry that is unchanged.

Both runs have to give the same JSON, byte for byte, apart from the times of trials; a run that asks everything anew
once more has to as well.

Usage: python tests/bench/check_speed.py [ROUNDS]
"""

from __future__ import annotations

import difflib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from measuring import EXAMPLES, RESULTS, machine, save

from oomdoctor.engines.installed import find_torch

COMMAND = str(Path(sys.executable).parent / "oomdoctor")
CARDS = ("rtx-4090", "l40s", "a100-sxm4-80gb")
TARGET_BATCH = 256

# Name, options, the seconds that are promised, and how often it runs.
UNCACHED, CACHED, ONE = 25.0, 2.0, 1.0


@dataclass(frozen=True)
class Run:
    """One run of the command.

    Attributes:
        seconds: Wall time.
        cpu_seconds: Processor time of it and of all that it started.
        document: What it printed, without the times of trials.
    """

    seconds: float
    cpu_seconds: float
    document: str


def configuration() -> str:
    """A file with the examples as its entries."""
    entries = [f'[[check]]\nname = "{name}"\ntarget = "{name}"\n' for name in EXAMPLES]
    return f"gpus = {json.dumps(CARDS)}\ntarget-batch = {TARGET_BATCH}\n\n" + "\n".join(entries)


def run(project: Path, *options: str) -> Run:
    """Check the project once."""
    command = [COMMAND, "check", "--json", "--quiet", *options]
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    finished = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=project, env=os.environ | {"TERM": "dumb"}
    )
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(seconds, cpu, without_times(finished.stdout))


def without_times(text: str) -> str:
    """A document without what is measured by a clock."""
    document = json.loads(text)
    for entry in document["result"]["entries"]:
        for trial in entry["probe"]["trials"]:
            del trial["seconds"]
    return json.dumps(document, indent=2)


def difference(one: str, other: str) -> list[str]:
    """Lines of two documents that differ."""
    return list(difflib.unified_diff(one.splitlines(), other.splitlines(), lineterm="", n=2))


def row(name: str, promised: float, runs: list[Run]) -> dict[str, object]:
    """What is published of some runs."""
    return {
        "run": name,
        "below": promised,
        "seconds": round(statistics.median(run.seconds for run in runs), 2),
        "cpu_seconds": round(statistics.median(run.cpu_seconds for run in runs), 2),
        "rounds": len(runs),
    }


def main() -> int:
    """Run the bench; 1 where a promise does not hold."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / "oomdoctor.toml").write_text(configuration(), encoding="utf-8")
        first = run(project)
        anew = run(project, "--no-cache")
        cached = [run(project) for _ in range(rounds)]
        one = [run(project, f"gpt2 on {CARDS[0]}") for _ in range(rounds)]
    rows = [
        row(f"{len(EXAMPLES)} examples on {len(CARDS)} cards", UNCACHED, [first]),
        row("the same with `--no-cache`", UNCACHED, [anew]),
        row("the same from the cache", CACHED, cached),
        row("one unchanged entry", ONE, one),
    ]
    differing = [line for each in (anew, *cached) for line in difference(first.document, each.document)]
    for each in rows:
        print(each, flush=True)
    print("the same JSON apart from times:", not differing, *differing[:40], sep="\n")
    build = find_torch()
    about = machine() | {"torch": build.version if build else None}
    save(
        RESULTS / "check_speed.json", {"machine": about, "cards": CARDS, "identical_json": not differing, "runs": rows}
    )
    return int(bool(differing) or any(float(str(each["seconds"])) >= float(str(each["below"])) for each in rows))


if __name__ == "__main__":
    sys.exit(main())
