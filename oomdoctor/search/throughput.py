"""Find the micro-batch that trains fastest, from optimizer steps that somebody else times.

Clocks drift: a card that grows warm slows down, another process comes and goes. So sizes take turns, in one order and
then in the other, and only what was timed in the same round is compared. Sizes begin at the largest and are halved
until they are clearly slower; then those between the best and its neighbours are tried. Pure: steps are timed by the
caller, a real GPU or a curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, stdev
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MicroBatches: TypeAlias = "tuple[int, ...]"
"""Sizes of the micro-batches of one optimizer step, largest first."""

StepTimer: TypeAlias = "Callable[[MicroBatches], float | None]"
"""Returns the seconds that one optimizer step takes once it is warm; None where memory runs out."""

_SLOWER: Final = math.log(0.8)
"""Sizes below one that is so much slower than the best are not tried."""
_SAME: Final = 0.01
"""Sizes whose throughput is so near to the best count as equal."""
_PRECISE: Final = 0.01
"""Half the width of the confidence interval at which a size has been timed well enough."""
_NEAR: Final = 0.03
_DISTURBED: Final = 0.1
"""Two measurements that differ by more are followed by a third, so that the middle one counts."""
_CLOSEST: Final = 1.05
"""Sizes whose ratio is less have none between them."""
WARM_STEPS: Final = 2
"""Steps before the clock runs: the first creates the optimizer's state, and both fill the allocator's cache."""
TIMED_STEPS: Final = 3
"""Optimizer steps that are timed one after another; the middle one counts, whatever has disturbed another."""
_FIRST_ROUNDS, _MOST_ROUNDS, _MOST_VISITS = 2, 16, 120
_MOST_REFINEMENTS: Final = 6
_MOST_MEETINGS: Final = 3
_STUDENT: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
)  # fmt: skip
"""Student's t for a confidence of 95 %, from one degree of freedom on."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The middle of several logarithms and half the width of its confidence interval, infinite for a single one."""

    middle: float
    half_width: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Estimate from values that were measured."""
        freedom = len(values) - 1
        if not freedom:
            return cls(values[0], math.inf)
        student = _STUDENT[min(freedom, len(_STUDENT)) - 1]
        return cls(median(values), student * stdev(values) / math.sqrt(len(values)))


@dataclass(slots=True)
class ThroughputSearch:
    """Compares optimizer steps of the same samples in micro-batches of several sizes.

    Attributes:
        largest: Micro-batches of the optimizer step with the largest size.
        limited: Returns the micro-batches of an optimizer step with sizes of at most so many samples.
        timer: Times an optimizer step.
        ran_out: Steps that ran out of memory while they were timed.
    """

    largest: MicroBatches
    limited: Callable[[int], MicroBatches]
    timer: StepTimer
    ran_out: list[MicroBatches] = field(default_factory=list)
    _rounds: list[dict[MicroBatches, float]] = field(default_factory=list)

    def find(self, more: Iterable[int] = ()) -> MicroBatches | None:
        """Return the micro-batches of the fastest step, the smaller ones where several are equal; None where none ran.

        Args:
            more: Sizes to compare besides, such as the recommended one.
        """
        self._halve(more)
        if not self.timed:
            return None
        self._refine()
        return self._settle()

    @property
    def timed(self) -> list[MicroBatches]:
        """Steps that were timed and did not run out of memory, those with the largest micro-batches first."""
        found = {step for turn in self._rounds for step in turn} - {*self.ran_out}
        return sorted(found, key=lambda step: -step[0])

    @property
    def is_settled(self) -> bool:
        """Return whether those that are about as fast as the best were timed well enough to tell."""
        best = self._best()
        return all(
            gap.half_width <= _PRECISE or gap.middle + gap.half_width < -_SAME
            for gap in (self._gap(step, best) for step in self._near(best) if step != best)
        )

    def samples_per_second(self, step: MicroBatches) -> Estimate:
        """Return the logarithm of a step's throughput."""
        return Estimate.of([turn[step] for turn in self._rounds if step in turn])

    @property
    def _visits(self) -> int:
        return sum(map(len, self._rounds))

    def visits(self, step: MicroBatches) -> int:
        """Return how often a step was timed."""
        return sum(step in turn for turn in self._rounds)

    def _halve(self, more: Iterable[int]) -> None:
        steps = [self.largest, *map(self.limited, more)]
        size = min(step[0] for step in steps)
        self._take_turn(dict.fromkeys(steps))
        slow = 0
        while size > 1 and slow < 2:  # noqa: PLR2004 - one may be an outlier
            # Powers of two, which fill the tiles of kernels and divide most target batches.
            step = self.limited(size := 1 << ((size - 1).bit_length() - 1))
            if step not in self.ran_out and not self.visits(step):
                self._time(step)
            reached = [turn[step] for turn in self._rounds if step in turn]
            highest = max((value for turn in self._rounds for value in turn.values()), default=0.0)
            slow = slow + 1 if reached and reached[0] - highest < _SLOWER else 0
        # The first turn was in one order; those that follow begin at the other end.
        self._compare(self.timed, turns=_FIRST_ROUNDS - 1)

    def _compare(self, steps: Sequence[MicroBatches], turns: int = _FIRST_ROUNDS) -> None:
        for _ in range(turns):
            self._take_turn(steps)
        if self.timed:
            best = self._best()
            gaps = {step: self._gaps(step, best) for step in self.timed if step in steps}
            if disturbed := [step for step, found in gaps.items() if found and max(found) - min(found) > _DISTURBED]:
                self._take_turn([best, *disturbed])

    def _refine(self) -> None:
        """Try sizes between the best and its neighbours, until they are near or no faster."""
        tried = 0
        while tried < _MOST_REFINEMENTS and (new := self._between()):
            tried += 1
            self._compare([self._best(), *new])

    def _between(self) -> list[MicroBatches]:
        best, timed = self._best(), self.timed
        found = []
        for larger, smaller in pairwise(timed):
            if best not in (larger, smaller) or larger[0] < smaller[0] * _CLOSEST:
                continue
            other = smaller if best == larger else larger
            # Coarse neighbours may lie on either side of a peak; those that lie closer have shown what is between.
            is_coarse = larger[0] >= smaller[0] * 1.8
            if not is_coarse and self._gap(other, best).middle > -_NEAR:
                continue
            middle = self.limited(round(math.sqrt(larger[0] * smaller[0])))
            if middle not in timed and middle not in self.ran_out:
                found.append(middle)
        return list(dict.fromkeys(found))

    def _settle(self) -> MicroBatches:
        """Time those that may be the best until it is known, and return the smallest that is as good."""
        self._meet()
        best = self._best()
        near = self._near(best)
        for _ in range(_MOST_ROUNDS):
            best = self._best()
            if len(near) == 1 or self.is_settled or self._visits >= _MOST_VISITS:
                break
            near = [step for step in near if not self._is_slower(step, best)]
            self._take_turn(near)
        best = self._best()
        return min((step for step in self.timed if self._gap(step, best).middle >= -_SAME), key=lambda step: step[0])

    def _meet(self) -> None:
        """Time what may be as fast as the best in the same rounds, since clocks drift between the rounds of each."""
        for _ in range(_MOST_MEETINGS):
            best = self._best()
            strangers = [
                step
                for step in self.timed
                if step != best and not self._gaps(step, best) and self._gap(step, best).middle > _SLOWER
            ]
            if not strangers:
                break
            for _ in range(2):
                self._take_turn([best, *strangers])

    def _is_slower(self, step: MicroBatches, best: MicroBatches) -> bool:
        gap = self._gap(step, best)
        return gap.middle + gap.half_width < -_SAME

    def _best(self) -> MicroBatches:
        """Return the step that is faster than each other, by the rounds that both were timed in."""
        best, *others = self.timed
        for step in others:
            if self._gap(step, best).middle > 0:
                best = step
        return best

    def _near(self, best: MicroBatches) -> list[MicroBatches]:
        """Return steps that were about as fast as the best in any round: what was slow once may have been disturbed."""
        own = self.samples_per_second(best).middle
        gaps = {step: [*self._gaps(step, best), self.samples_per_second(step).middle - own] for step in self.timed}
        return [step for step, found in gaps.items() if max(found) > -2 * _NEAR]

    def _gaps(self, step: MicroBatches, other: MicroBatches) -> list[float]:
        return [turn[step] - turn[other] for turn in self._rounds if step in turn and other in turn]

    def _gap(self, step: MicroBatches, other: MicroBatches) -> Estimate:
        """Return by how much a step is faster than another, as a difference of logarithms."""
        if shared := self._gaps(step, other):
            return Estimate.of(shared)
        return Estimate(self.samples_per_second(step).middle - self.samples_per_second(other).middle, math.inf)

    def _take_turn(self, steps: Iterable[MicroBatches]) -> None:
        """Time each step once, from the largest size or from the smallest, by turns."""
        self._rounds.append({})
        order = sorted({*steps} - {*self.ran_out}, key=lambda step: step[0], reverse=len(self._rounds) % 2 == 1)
        for step in order:
            self._time(step)

    def _time(self, step: MicroBatches) -> None:
        seconds = self.timer(step)
        if seconds is None:
            self.ran_out.append(step)
        else:
            self._rounds[-1][step] = math.log(sum(step) / seconds)
