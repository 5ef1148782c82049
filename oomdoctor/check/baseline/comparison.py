"""Comparison of two sets of figures of one entry: what moved, and what of that fails the check.

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
- Of trials whose memory has no categories, a phase that only one has, such as an evaluation that was added, fails
  nothing by itself: where it needs more than training, the peak tells. Growth that stays, such as the weights', is in
  every later phase too; of several iterations the first in which a phase moved is told, and those that moved least
  come last, so that the first line is where it began.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.check.baseline import wording
from oomdoctor.check.baseline.figures import TrialFigures, place_of
from oomdoctor.report.plain_text import CATEGORY_WORDS
from oomdoctor.results import Category, FigureKind, Movement
from oomdoctor.units import MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oomdoctor.check.baseline.figures import Figures, MemoryFigures


_SEGMENT_BYTES: Final = 20 * MIB
_NEGLIGIBLE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory then and now.

    Attributes:
        before: The baseline's.
        after: That of now.
        tolerance: Share by which a figure may be worse.
    """

    before: MemoryFigures | TrialFigures
    after: MemoryFigures | TrialFigures
    tolerance: float

    @property
    def floor(self) -> float:
        """Bytes below which a part of the peak moves nothing."""
        return _NEGLIGIBLE * self.tolerance * self.before.peak_allocated_bytes

    def is_worse(self, before: int, after: int, floor: float) -> bool:
        """Return whether a figure grew beyond the tolerance, and by more than a floor in bytes."""
        return after - before > max(self.tolerance * before, floor)

    def is_part_worse(self, before: int, after: int) -> bool:
        """Return whether a part of memory fails the check; none does on the way to a lower peak."""
        peak = self.before.peak_allocated_bytes
        is_better = peak - self.after.peak_allocated_bytes > self.tolerance * peak
        return not is_better and self.is_worse(before, after, self.floor)

    def peaks(self) -> Iterator[Movement]:
        """Yield the movements of the peaks."""
        for name, floor in (("allocated", 0), ("reserved", _SEGMENT_BYTES)):
            before, after = (getattr(side, f"peak_{name}_bytes") for side in (self.before, self.after))
            if before != after:
                text = wording.peak(name, before, after, self.after)
                is_beyond = self.is_worse(before, after, floor)
                yield Movement(FigureKind.PEAK, f"peak {name}", before, after, is_beyond, text)


_MAJOR: Final = 0.25
"""Share of the largest growth below which a phase's growth is not where it begins, such as that of the first batch."""


def compare_trials(before: TrialFigures, after: TrialFigures, *, tolerance: float) -> tuple[Movement, ...]:
    """Return the movements, worse ones first; in each half the peaks, then the phases as they come in time.

    Args:
        before: The baseline's figures.
        after: Those of now, at the same size.
        tolerance: Share by which a figure may be worse.
    """
    growth = Growth(before, after, tolerance)
    phases = list(_phases(growth, before, after))
    most = max((_change(phase) for phase in phases), default=0)
    found = [*growth.peaks(), *sorted(phases, key=lambda phase: _change(phase) < _MAJOR * most)]
    return tuple(sorted(found, key=lambda movement: (not movement.is_beyond, _change(movement) < 0)))


def _change(movement: Movement) -> int:
    return (movement.after or 0) - (movement.before or 0)


def _phases(growth: Growth, before: TrialFigures, after: TrialFigures) -> Iterator[Movement]:
    told: set[tuple[str, int]] = set()
    # More steps than then, or fewer, are another question and no memory.
    last = min(before.iterations, after.iterations)
    for name in sorted({**before.phases, **after.phases}, key=place_of):
        old, new = before.phases.get(name), after.phases.get(name)
        change, kind = (new or 0) - (old or 0), name.rpartition(" ")[2]
        if not change or abs(change) < growth.floor or place_of(name)[0] > last or (kind, change) in told:
            continue
        told.add((kind, change))
        is_beyond = old is not None and new is not None and growth.is_part_worse(old, new)
        text = f"{name}: gone" if new is None else wording.plain(name, old or 0, new, after)
        yield Movement(FigureKind.PHASE, name, old, new, is_beyond, text)


_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "torch": "torch {}",
        "device": "the device kind `{}`",
        "card": "{}",
        "precision": "{}",
        "optimizer": "{}",
        "target_batch": "a target batch of {}",
        "world_size": "a world size of {}",
    }
)


def differences(before: Figures, after: Figures) -> tuple[str, ...]:
    """Return one sentence for each thing besides the user's code that differs, and for what therefore is not compared.

    Args:
        before: The baseline's figures.
        after: Those of now.
    """
    if before.is_command != after.is_command:
        return ()  # that they are not compared is said, and why
    old, new = before.circumstances, after.circumstances
    found = [
        _sentence(words.format(getattr(old, name)), words.format(getattr(new, name)))
        for name, words in _WORDS.items()
        if None not in (getattr(old, name), getattr(new, name)) and getattr(old, name) != getattr(new, name)
    ]
    plain = [one.accumulation_steps is None for one in (before, after)]
    if before.maximum and after.maximum and plain[0] != plain[1]:
        found.append(_sentence(*("no target batch" if is_plain else "a target batch" for is_plain in plain)))
    if old.rank != new.rank:
        found.append(_sentence(*(one.rank or "no rank that runs alone" for one in (old, new))))
    if old.mode != new.mode:
        found.append(_sentence(*(f"the mode `{one.mode or 'train'}`" for one in (old, new))))
    if old.axes != new.axes:
        found.append(_sentence(*(one.axes or "no size besides the batch" for one in (old, new))))
    if old.capacity_bytes != new.capacity_bytes:
        found.append(_sentence(_capacity(old.capacity_bytes), _capacity(new.capacity_bytes)))
    if before.memory is None and after.memory is not None:
        found.append("the baseline has no memory by category, so that only the maximum is compared")
    if before.is_command and after.trials and not before.trials:
        found.append("the baseline has no memory by phase, so that only the maximum is compared")
    return tuple(found)


def common_trials(before: Figures, after: Figures) -> tuple[TrialFigures, TrialFigures] | None:
    """Trials at the largest size that both have and that can be compared; None where there is none."""
    sizes = sorted(before.trials.keys() & after.trials.keys(), reverse=True)
    pairs = ((before.trials[size], after.trials[size]) for size in sizes)
    return next((pair for pair in pairs if is_comparable(*pair)), None)


def not_compared(before: Figures, after: Figures) -> str | None:
    """Why what the baseline has cannot be compared; None where it can, or where the baseline has nothing."""
    if before.is_command != after.is_command:
        was, now = ("a command", "a file") if before.is_command else ("a file", "a command")
        return f"the baseline is of {was}, and the entry is {now} now, so that nothing is compared"
    if not before.trials:
        return None if before.is_command else left_out(before.memory, after.memory)
    if after.memory is not None or common_trials(before, after) is not None:
        return None  # of the first it is said that circumstances differ
    sizes = " and ".join(map(str, sorted(before.trials)))
    return (
        f"the baseline has memory at micro-batch {sizes}, this check has none to compare: only the maximum is compared"
    )


def is_comparable(before: MemoryFigures | TrialFigures | None, after: MemoryFigures | TrialFigures | None) -> bool:
    """Return whether memory was recorded at the same size, and with gradients accumulated in both or in neither."""
    if before is None or after is None:
        return False
    return before.micro_batch == after.micro_batch and (before.micro_steps > 1) == (after.micro_steps > 1)


def _sentence(before: str, after: str) -> str:
    return f"the baseline was made with {before}, this check ran with {after}: figures may differ for that alone"


def _capacity(size_bytes: int) -> str:
    return f"a capacity of {format_size(size_bytes)}"


def left_out(before: MemoryFigures | None, after: MemoryFigures | None) -> str | None:
    """Why memory that the baseline has cannot be compared; None where it can, or where the baseline has none."""
    if before is None or is_comparable(before, after):
        return None
    if after is None:
        return "memory by category could not be recorded, so that only the maximum is compared"
    return f"the baseline has memory {_size(before)}, this check {_size(after)}: only the maximum is compared"


def _size(memory: MemoryFigures) -> str:
    accumulated = "with" if memory.micro_steps > 1 else "without"
    return f"at micro-batch {memory.micro_batch} {accumulated} accumulation"


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
    """Return the movements from one set of figures to the other.

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
class _Comparison(Growth):
    """Memory at one micro-batch by category, then and now."""

    before: MemoryFigures
    after: MemoryFigures

    def movements(self) -> Iterator[Movement]:
        """Yield all of them; their order says nothing yet."""
        categories = list(self._categories())
        yield from categories
        yield from self.peaks()
        yield from self._phases(may_fail=not any(movement.is_beyond for movement in categories))
        yield from self._modules()

    def _categories(self) -> Iterator[Movement]:
        for category in Category:
            before, after = self.before.categories.get(category, 0), self.after.categories.get(category, 0)
            if before != after:
                text = wording.category(category, self.before, self.after)
                is_beyond = self.is_part_worse(before, after)
                yield Movement(FigureKind.CATEGORY, CATEGORY_WORDS[category], before, after, is_beyond, text)

    def _phases(self, *, may_fail: bool) -> Iterator[Movement]:
        old, new = self.before.phases, self.after.phases
        for name in {**old, **new}:
            before, after = sum(old.get(name, {}).values()), sum(new.get(name, {}).values())
            if self._counts(before, after) and not self._is_echo(name):
                text = wording.phase(name, self.before, self.after)
                is_beyond = may_fail and self.is_part_worse(before, after)
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
        """Return whether a figure moved by enough to explain anything."""
        return before != after and abs(after - before) >= self.floor

    def _is_echo(self, phase: str) -> bool:
        """Return whether a phase of the first iteration moved as it did in the second, which is told."""
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
