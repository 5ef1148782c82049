"""Exactness and trials over every example, precision and capacity: oomdoctor's search and a bisection by hand.

The bisection doubles from 1 and bisects, each trial in a fresh process; nothing is carried over between sizes.

Usage: python tests/bench/trials.py [--skip-bisection] [EXAMPLE...]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from measuring import CAPACITIES_GIB, EXAMPLES, RESULTS, TARGET_BATCH, gibibytes, machine, save

from oomdoctor.engines.choice import choose_engine
from oomdoctor.progress import SilentProgress
from oomdoctor.request import ProbeRequest
from oomdoctor.results import Outcome, Precision, Variant
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.answer import ProbeRun
from oomdoctor.trial.client import WorkerTrialSource
from oomdoctor.trial.probe import probe

if TYPE_CHECKING:
    from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor


@dataclass(frozen=True)
class Case:
    """One question of the bench."""

    example: str
    precision: Precision
    capacity_gib: int

    @property
    def request(self) -> ProbeRequest:
        """The question as `oomdoctor probe` asks it, on a null GPU."""
        return ProbeRequest(
            target=self.example,
            directory=Path.cwd(),
            target_batch=TARGET_BATCH,
            variant=Variant(precision=self.precision),
            memory_bytes=gibibytes(self.capacity_gib),
            engine="null",
        )


def cases(examples: list[str]) -> Iterator[Case]:
    """Every combination that the bench is about."""
    for example in examples:
        for precision in get_args(Precision)[:2]:
            for capacity in CAPACITIES_GIB:
                yield Case(example, precision, capacity)


def fits_in_a_fresh_process(request: ProbeRequest, micro_batch: int) -> bool:
    """Run one trial in a worker of its own."""
    engine = choose_engine(engine="null", gpu=None, device=None, memory_bytes=request.memory_bytes, base=os.environ)
    reference = parse_reference(request.target, directory=request.directory)
    with WorkerTrialSource(request, reference, engine.environment) as supervisor:
        if supervisor.load().placement_error:
            return False
        trial = supervisor.run(micro_batch, micro_steps=2, allowed_bytes=supervisor.capacity_bytes)
        return trial.outcome is Outcome.FITS


def bisect(request: ProbeRequest) -> tuple[int, int]:
    """The maximum by doubling and bisecting, and how many trials that took."""
    low, high, trials = 0, 1, 1
    while fits_in_a_fresh_process(request, high):
        low, high, trials = high, high * 2, trials + 1
    while high - low > 1:
        middle, trials = (low + high) // 2, trials + 1
        if fits_in_a_fresh_process(request, middle):
            low = middle
        else:
            high = middle
    return low, trials


def is_proven(request: ProbeRequest, maximum: int) -> bool:
    """Whether the maximum fits in a fresh process and the next size does not.

    Where memory is not monotone, both searches may be right and name different sizes.
    """
    return fits_in_a_fresh_process(request, maximum) and not fits_in_a_fresh_process(request, maximum + 1)


def _earlier_bisections(path: Path) -> dict[Case, tuple[int, int]]:
    rows = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return {
        Case(row["example"], row["precision"], row["capacity_gib"]): (row["bisection_maximum"], row["bisection_trials"])
        for row in rows
        if row["bisection_maximum"] is not None
    }


def row(case: Case, found: ProbeRun, by_hand: tuple[int, int] | None) -> dict[str, object]:
    """What the results file keeps of one case."""
    # The trials up to the one that completed the proof: the maximum fits and its successor does not.
    maximum = found.result.micro_batch.maximum
    proof = {maximum, maximum + 1}
    at_capacity = [trial for trial in found.result.trials if trial.allowed_bytes == found.result.capacity_bytes]
    proven = max(index for index, trial in enumerate(at_capacity) if trial.micro_batch in proof) + 1
    return {
        "example": case.example,
        "precision": case.precision,
        "capacity_gib": case.capacity_gib,
        "maximum": maximum,
        "recommended": found.result.micro_batch.recommended,
        "proven_in_fresh_processes": is_proven(case.request, maximum) if by_hand and by_hand[0] != maximum else None,
        "trials_for_maximum": proven,
        "trials_in_all": len(found.result.trials),
        "bisection_maximum": by_hand and by_hand[0],
        "bisection_trials": by_hand and by_hand[1],
    }


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    """Median and worst trials, and how many answers differ from the bisection."""
    trials = [int(str(row["trials_for_maximum"])) for row in rows]
    compared = [row for row in rows if row["bisection_maximum"] is not None]
    return {
        "cases": len(rows),
        "median_trials": statistics.median(trials),
        "worst_trials": max(trials),
        "compared_with_bisection": len(compared),
        "differing_and_proven": sum(row["proven_in_fresh_processes"] is True for row in compared),
        "differing_answers": sum(row["maximum"] != row["bisection_maximum"] for row in compared),
        "median_bisection_trials": statistics.median([int(str(row["bisection_trials"])) for row in compared])
        if compared
        else None,
    }


def main() -> int:
    """Run the bench; 1 where an answer differs from the bisection and is not proven either."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("examples", nargs="*", default=list(EXAMPLES))
    parser.add_argument("--skip-bisection", action="store_true", help="count trials only")
    parser.add_argument("--bisection-from", type=Path, help="take the bisections from an earlier results file")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time; each trial has a process of its own")
    arguments = parser.parse_args()

    earlier = _earlier_bisections(arguments.bisection_from) if arguments.bisection_from else {}

    def run(case: Case) -> tuple[dict[str, object], dict[str, str]]:
        found = probe(case.request, SilentProgress())
        by_hand = earlier.get(case) or (None if arguments.skip_bisection else bisect(case.request))
        return row(case, found, by_hand), found.versions

    rows: list[dict[str, object]] = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for found, versions in pool.map(run, cases(arguments.examples or list(EXAMPLES))):
            rows.append(found)
            print(found, flush=True)
            document = {"machine": machine() | versions, "summary": summary(rows), "cases": rows}
            save(RESULTS / "trials.json", document)
    print(summary(rows))
    return int(any(found["proven_in_fresh_processes"] is False for found in rows))


if __name__ == "__main__":
    sys.exit(main())
