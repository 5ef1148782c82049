"""How many trials the search needs without foresight: trials of the shipped examples, recorded on the null GPU."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.results import Outcome, Phase, PhaseName, Trial
from oomdoctor.search.bracket import SearchResult, find_maximum

_CASES = json.loads((Path(__file__).parent / "data" / "search_trials.json").read_text())["cases"]
_PHASES = {"f": PhaseName.FORWARD, "b": PhaseName.BACKWARD, "o": PhaseName.OPTIMIZER}
_MESSAGE = (
    "CUDA out of memory. Tried to allocate {}. Of the allocated memory {} is allocated by PyTorch, "
    "and {} is reserved by PyTorch but unallocated."
)
_KIB = 1024


@dataclass(frozen=True)
class Recorded:
    """One example at one precision and capacity."""

    name: str
    capacity_bytes: int
    maximum: int
    trials: dict[int, Trial]

    def __call__(self, size: int) -> Trial:
        """The recorded trial; where there is none, the nearest that ended the same way, with its memory scaled."""
        if size in self.trials:
            return self.trials[size]
        outcome = Outcome.FITS if size <= self.maximum else Outcome.OOM
        alike = [trial for trial in self.trials.values() if trial.outcome is outcome]
        nearest = min(alike, key=lambda trial: abs(trial.micro_batch - size))
        return _scaled(nearest, size)

    def find(self, largest: int) -> SearchResult:
        """Search, with everything above the recorded maximum running out of memory."""
        return find_maximum(self, largest=largest, capacity_bytes=self.capacity_bytes)


def _scaled(trial: Trial, size: int) -> Trial:
    fixed = trial.fixed_bytes or 0

    def scale(amount: int | None) -> int:
        return min(trial.allowed_bytes, fixed + ((amount or 0) - fixed) * size // trial.micro_batch)

    growing = (PhaseName.FORWARD, PhaseName.BACKWARD)
    phases = tuple(
        Phase(phase.iteration, phase.phase, scale(phase.peak_allocated_bytes), phase.end_allocated_bytes)
        for phase in trial.phases
        if phase.phase in growing
    )
    return Trial(
        micro_batch=size,
        outcome=trial.outcome,
        allowed_bytes=trial.allowed_bytes,
        peak_allocated_bytes=scale(trial.peak_allocated_bytes),
        peak_reserved_bytes=scale(trial.peak_reserved_bytes),
        fixed_bytes=trial.fixed_bytes,
        alloc_retries=trial.alloc_retries,
        phases=phases,
    )


def _trial(row: list[Any], capacity_bytes: int) -> Trial:
    size, outcome, allocated, reserved, fixed, retries, phases, amounts = row
    return Trial(
        micro_batch=size,
        outcome=Outcome(outcome),
        allowed_bytes=capacity_bytes,
        peak_allocated_bytes=allocated * _KIB,
        peak_reserved_bytes=reserved * _KIB,
        fixed_bytes=None if fixed is None else fixed * _KIB,
        alloc_retries=retries,
        phases=tuple(Phase(number, _PHASES[name], peak * _KIB, end * _KIB) for number, name, peak, end in phases),
        error=None if amounts is None else _MESSAGE.format(*amounts),
    )


def _recorded(case: dict[str, Any]) -> Recorded:
    capacity = case["capacity_gib"] << 30
    trials = [_trial(row, capacity) for row in case["trials"]]
    name = f"{case['example']}-{case['precision']}-{case['capacity_gib']}GiB"
    return Recorded(name, capacity, case["maximum"], {trial.micro_batch: trial for trial in trials})


_RECORDED = [_recorded(case) for case in _CASES]


def doubling_and_bisection(maximum: int) -> int:
    """Trials that doubling from 1 and bisecting takes."""
    high, trials = 1, 1
    while high <= maximum:
        high, trials = high * 2, trials + 1
    return trials + max(0, (high // 2).bit_length() - 1)


def test_every_example_is_recorded() -> None:
    """Five examples, two precisions and five capacities, each with a proof of its maximum."""
    assert len(_RECORDED) == 50
    for case in _RECORDED:
        assert case.trials[case.maximum + 1].outcome is Outcome.OOM
        assert case.maximum == 0 or case.trials[case.maximum].outcome is Outcome.FITS


@pytest.mark.parametrize("case", _RECORDED, ids=lambda case: case.name)
@pytest.mark.parametrize("largest", [4096, 3000])
def test_maximum_of_examples_is_exact(case: Recorded, largest: int) -> None:
    """The recorded maximum is found, whatever the target above it."""
    result = case.find(largest)
    assert result.maximum == case.maximum
    assert result.successor is not None
    assert result.successor.micro_batch == case.maximum + 1


@pytest.mark.parametrize(("largest", "median", "worst"), [(4096, 5, 8), (256, 4, 10), (64, 2, 8)])
def test_trials_on_examples(largest: int, median: int, worst: int) -> None:
    """From cold, few trials are enough: well under half of what doubling and bisection takes."""
    trials = [len(case.find(largest).trials) for case in _RECORDED]
    assert statistics.median(trials) <= median
    assert max(trials) <= worst
    if largest == 4096:
        plain = [doubling_and_bisection(case.maximum) for case in _RECORDED]
        assert statistics.median(plain) == 16
        assert sum(trials) * 2.5 < sum(plain)
