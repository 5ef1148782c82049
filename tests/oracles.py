"""Answers to a search's trials that need no device: memory as a function of the micro-batch."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from oomdoctor.results import Outcome, Phase, PhaseName, Trial
from oomdoctor.search.bracket import SearchResult, find_maximum

MIB = 1 << 20
GIB = 1 << 30
CAPACITY = 24 * GIB


@dataclass
class Oracle:
    """Answers trials from a memory need, and keeps what it was asked."""

    need: dict[int, int] | Any
    capacity: int = CAPACITY
    fixed: int = 2 * GIB
    peaks_from: int | None = None  # seed of peaks that mean nothing
    asked: list[int] = field(default_factory=list)

    def __call__(self, size: int) -> Trial:
        """Run one trial."""
        self.asked.append(size)
        need = self.need(size)
        fits = need <= self.capacity
        peak, reserved, phases = min(need, self.capacity), min(need, self.capacity), self._phases(need, fits=fits)
        if self.peaks_from is not None:
            chance = random.Random(hash((self.peaks_from, size)))
            peak, reserved = chance.randrange(2 * self.capacity), chance.choice([0, chance.randrange(self.capacity)])
            phases = ()
        return Trial(
            micro_batch=size,
            outcome=Outcome.FITS if fits else Outcome.OOM,
            allowed_bytes=self.capacity,
            peak_allocated_bytes=peak,
            peak_reserved_bytes=reserved,
            fixed_bytes=self.fixed if fits else None,
            phases=phases,
            error=None if fits else "CUDA out of memory. Tried to allocate 20.00 MiB.",
        )

    def _phases(self, need: int, *, fits: bool) -> tuple[Phase, ...]:
        forward = Phase(1, PhaseName.FORWARD, min(need, self.capacity), min(need, self.capacity))
        if not fits:
            return (forward,)
        backward = Phase(2, PhaseName.BACKWARD, need, self.fixed)
        return forward, backward, Phase(2, PhaseName.OPTIMIZER, self.fixed * 5 // 4, self.fixed * 3 // 4)

    def find(self, largest: int, **options: Any) -> SearchResult:
        """Search on this oracle."""
        return find_maximum(self, largest=largest, capacity_bytes=self.capacity, **options)

    def maximum(self, largest: int) -> int:
        """The exact answer of a monotone oracle, by asking for every size."""
        return sum(self.need(size) <= self.capacity for size in range(1, largest + 1))


def assert_proven(result: SearchResult, oracle: Oracle, largest: int, *, foresight: int = 0) -> None:
    """Hold every promise that does not depend on the oracle being monotone."""
    outcomes = {trial.micro_batch: trial.outcome for trial in result.trials}
    assert len(outcomes) == len(result.trials) == len(oracle.asked), "a size was run twice"
    assert all(1 <= size <= largest for size in outcomes)
    assert result.maximum == 0 or outcomes[result.maximum] is Outcome.FITS
    if result.maximum < largest:
        assert result.successor is not None
        assert outcomes[result.maximum + 1] is Outcome.OOM
        assert result.successor.micro_batch == result.maximum + 1
        assert result.limited_by == "memory"
    else:
        assert (result.successor, result.limited_by) == (None, "target")
    assert len(result.trials) <= 2 + math.ceil(math.log2(largest)) + foresight
