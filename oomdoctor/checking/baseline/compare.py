"""Two sets of figures of one entry: what moved, and what of that fails the check.

What fails: the maximum micro-batch, the peaks, the categories and the phases, where they are worse by more than the
tolerance.

- A maximum that falls by one of 12 is 8 % worse and fails at the default tolerance; by one of 200 it does not. Where
  the target ends the search the maximum says nothing about memory, and does not fail.
- Bytes held from the driver come in segments of 20 MiB: one segment more is no evidence.
- A category also has to grow by a tenth of the tolerance as a share of the peak: 512 bytes that double fail nothing.
  Where the peak falls beyond the tolerance, categories were traded for each other on the way to less memory, as
  checkpointing does; then none fails.
- A phase is judged as a category is, and only where no category fails: the temporaries of a `foreach` optimizer can
  stay below what the category holds in backward, and then only the optimizer's phase tells of them.
- Modules explain, and fail nothing by themselves: what they hold is in the categories, and one module that doubles
  while another halves costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.checking.baseline import wording
from oomdoctor.checking.baseline.circumstances import common_trials, is_comparable
from oomdoctor.checking.baseline.compare_trials import compare_trials
from oomdoctor.checking.baseline.growth import Growth
from oomdoctor.reports.wording import CATEGORY_WORDS
from oomdoctor.results import Category, FigureKind, Movement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oomdoctor.checking.baseline.figures import Figures, MemoryFigures

_RANKS: Final[Mapping[FigureKind, int]] = MappingProxyType(
    {
        kind: rank
        for rank, kind in enumerate(
            (FigureKind.CATEGORY, FigureKind.PEAK, FigureKind.MICRO_BATCH, FigureKind.PHASE, FigureKind.MODULE)
        )
    }
)
"""Causes before what follows from them, and then the details."""


def compare(before: Figures, after: Figures, *, tolerance: float) -> tuple[Movement, ...]:
    """What moved from one set of figures to the other.

    Args:
        before: The baseline's figures.
        after: Those of now.
        tolerance: Share by which a figure may be worse.

    Returns:
        Every figure that differs and counts: first what is worse, causes before what follows from them, then what is
        worse by next to nothing, then what is better.
    """
    if before.is_command != after.is_command:
        return ()
    answer = list(_of_answer(before, after, tolerance))
    if (trials := common_trials(before, after)) is not None:
        return (*answer, *compare_trials(*trials, tolerance=tolerance))
    if before.memory is None or after.memory is None or not is_comparable(before.memory, after.memory):
        return tuple(answer)
    comparison = _Comparison(before.memory, after.memory, tolerance)
    return tuple(sorted((*answer, *comparison.movements()), key=comparison.order))


def _of_answer(before: Figures, after: Figures, tolerance: float) -> Iterator[Movement]:
    fall = before.maximum - after.maximum
    if fall:
        is_beyond = fall > tolerance * before.maximum and after.limited_by != "target"
        yield Movement(
            kind=FigureKind.MICRO_BATCH,
            name="maximum micro-batch",
            before=before.maximum,
            after=after.maximum,
            is_beyond=is_beyond,
            text=wording.maximum(before, after),
        )


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Memory at one micro-batch, then and now."""

    before: MemoryFigures
    after: MemoryFigures
    tolerance: float

    @property
    def growth(self) -> Growth:
        """What counts as worse."""
        return Growth(self.before, self.after, self.tolerance)

    @property
    def floor(self) -> float:
        """Bytes below which a part of the peak moves nothing."""
        return self.growth.floor

    def movements(self) -> Iterator[Movement]:
        """All of them; their order says nothing yet."""
        categories = list(self._categories())
        yield from categories
        yield from self.growth.peaks()
        yield from self._phases(may_fail=not any(movement.is_beyond for movement in categories))
        yield from self._modules()

    def _categories(self) -> Iterator[Movement]:
        for category in Category:
            before, after = self.before.categories.get(category, 0), self.after.categories.get(category, 0)
            if before != after:
                text = wording.category(category, self.before, self.after)
                is_beyond = self.growth.is_part_worse(before, after)
                yield Movement(FigureKind.CATEGORY, CATEGORY_WORDS[category], before, after, is_beyond, text)

    def _phases(self, *, may_fail: bool) -> Iterator[Movement]:
        old, new = self.before.phases, self.after.phases
        for name in {**old, **new}:
            before, after = sum(old.get(name, {}).values()), sum(new.get(name, {}).values())
            if self._counts(before, after) and not self._is_echo(name):
                text = wording.phase(name, self.before, self.after)
                is_beyond = may_fail and self.growth.is_part_worse(before, after)
                yield Movement(FigureKind.PHASE, name, before or None, after or None, is_beyond, text)

    def _modules(self) -> Iterator[Movement]:
        for category in Category:
            old, new = self.before.modules.get(category, {}), self.after.modules.get(category, {})
            for module in {**old, **new}:
                before, after = old.get(module, 0), new.get(module, 0)
                if self._counts(before, after):
                    name = wording.module_name(module, category)
                    text = wording.module(module, category, self.before, self.after)
                    yield Movement(FigureKind.MODULE, name, before or None, after or None, is_beyond=False, text=text)

    def _counts(self, before: int, after: int) -> bool:
        """Whether a figure moved by enough to explain anything."""
        return before != after and abs(after - before) >= self.floor

    def _is_echo(self, phase: str) -> bool:
        """Whether a phase of the first iteration moved as it did in the second, which is told."""
        first, second = (self._change_in(phase.replace("iteration 1 ", f"iteration {number} ")) for number in (1, 2))
        return phase.startswith("iteration 1 ") and first == second

    def _change_in(self, phase: str) -> int:
        return sum(self.after.phases.get(phase, {}).values()) - sum(self.before.phases.get(phase, {}).values())

    def order(self, movement: Movement) -> tuple[int, int, int, int, str]:
        """Worse and telling, worse, better; in each causes first, and of those what the peak is made of."""
        change = (movement.after or 0) - (movement.before or 0)
        growth = -change if movement.kind is FigureKind.MICRO_BATCH else change
        is_telling = movement.is_beyond or growth >= self.floor or movement.kind is FigureKind.MICRO_BATCH
        group = 2 if growth < 0 else 0 if is_telling else 1
        # What is allocated comes before what is reserved.
        size = 0 if movement.kind is FigureKind.PEAK else abs(change)
        share = self._share_of_peak(movement)
        return group, _RANKS[movement.kind], share if growth < 0 else -share, -size, movement.name

    def _share_of_peak(self, movement: Movement) -> int:
        """By how much a category grew in the phase that has the peak; 0 of anything else."""
        if movement.kind is not FigureKind.CATEGORY:
            return 0
        category, phase = wording.category_of(movement.name), self.after.peak_phase
        old, new = self.before.phases.get(phase, {}), self.after.phases.get(phase, {})
        return new.get(category, 0) - old.get(category, 0)
