"""Traces trials on the emulated device, as few as can be, for cards that do the same. Runs in the worker."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import NoAnswerError
from oomdoctor.probing.fitting.scaling import Scale, Steps, does_the_same, scale_of
from oomdoctor.probing.recorder import TrialRecorder
from oomdoctor.probing.trial import Setup, run_trial, settle
from oomdoctor.results import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.devices.card import Card
    from oomdoctor.probing.trial import Attempt
    from oomdoctor.results import PhaseName
    from oomdoctor.tracing.device import EmulatedDevice
    from oomdoctor.tracing.journal import Journal

_SMALL, _LARGE = 4, 8
"""Sizes of the first two traces; that of the third is about the largest that any of the cards has room for."""
_LARGEST: Final = 4096
"""Nothing above is traced to check a line: a batch of that size may not fit the host."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A trial on a card without bounds.

    Attributes:
        attempt: How it went; None where the trial was not run, but is in line with others.
        steps: What it did to memory; None where it failed.
    """

    attempt: Attempt | None
    steps: Steps | None


@dataclass(slots=True)
class Family:
    """Cards on which the target does the same, but for what operators' models say.

    Attributes:
        card: One of them.
        traces: Trials by micro-batch and micro-steps.
        scale: All sizes from `lowest` on; None where no line goes through the traces.
        lowest: The smallest size that it holds for.
    """

    card: Card
    traces: dict[tuple[int, int], Traced] = field(default_factory=dict)
    scale: Scale | None = None
    lowest: int = 0


class Tracer:
    """Tells what a trial does at any size.

    Args:
        setup: The model and how it trains.
        device: The emulated device, with far more memory than any card.
        journal: Its journal.
        start_bytes: What is allocated between trials.
    """

    def __init__(self, setup: Setup, device: EmulatedDevice, journal: Journal, start_bytes: int) -> None:
        self._setup = setup
        self._device = device
        self._journal = journal
        self._start_bytes = start_bytes

    def prepare(self, card: Card, largest: int, capacity_bytes: int) -> tuple[Family, list[list[object]]]:
        """Trace what tells all sizes, on a card.

        Args:
            card: What to emulate.
            largest: The largest size with two micro-steps that is in question.
            capacity_bytes: The most memory that any card has.

        Returns:
            The family, and what each of the journal's rivals would have chosen.
        """
        family = Family(card)
        first = self.at(family, min(_SMALL, max(1, largest)), 2 if largest else 1)
        choices = [*self._journal.choices]
        if largest > _LARGE and first.steps is not None:
            self._find_scale(family, largest, capacity_bytes)
        return family, choices

    def at(self, family: Family, micro_batch: int, micro_steps: int) -> Traced:
        """What a trial does, traced or told by other traces."""
        key = micro_batch, micro_steps
        if key not in family.traces:
            in_line = family.scale is not None and micro_steps > 1 and micro_batch >= max(2, family.lowest)
            told = family.scale.at(micro_batch) if in_line and family.scale else None
            family.traces[key] = Traced(None, told) if told else self._trace(family.card, micro_batch, micro_steps)
        return family.traces[key]

    def _find_scale(self, family: Family, largest: int, capacity_bytes: int) -> None:
        small, large = (self.at(family, size, 2).steps for size in (_SMALL, _LARGE))
        if small is None or large is None:
            return
        far = min(largest, _LARGEST, _size_that_fills(capacity_bytes, small, large))
        if far <= _LARGE:
            far = _LARGE - 1
        farthest = self.at(family, far, 2).steps
        if farthest is None:
            return
        scale = scale_of(small, _SMALL, large, _LARGE)
        if scale is not None and does_the_same(scale.at(far), farthest):
            family.scale, family.lowest = scale, _SMALL if far > _LARGE else 2
        elif far > _LARGE + 1:
            self._find_upper_scale(family, large, far, farthest)

    def _find_upper_scale(self, family: Family, large: Steps, far: int, farthest: Steps) -> None:
        """A step of few samples may be another: try again without the smallest."""
        middle = (_LARGE + far) // 2
        between = self.at(family, middle, 2).steps
        scale = scale_of(large, _LARGE, farthest, far)
        if scale is not None and between is not None and does_the_same(scale.at(middle), between):
            family.scale, family.lowest = scale, _LARGE

    def _trace(self, card: Card, micro_batch: int, micro_steps: int) -> Traced:
        emulated = self._device.card
        self._device.card = as_boundless(card, emulated)
        self._journal.begin()
        try:
            attempt = run_trial(self._setup, micro_batch, micro_steps, emulated.total_bytes, _Marking(self._journal))
        finally:
            settle(self._setup.model, self._start_bytes)
            self._device.forget_dropout_state()
        if attempt.trial.outcome is not Outcome.FITS:
            return Traced(attempt, None)
        if not self._journal.is_as_it_began:
            raise _left_behind(micro_batch)
        entries, calls = [*self._journal.entries], [*self._journal.calls]
        return Traced(attempt, Steps(entries, calls, self._journal.start, attempt.trial.fixed_bytes or 0))


def as_boundless(card: Card, emulated: Card) -> Card:
    """The card with the memory of the one that is emulated, which the device has been made with."""
    return replace(card, total_bytes=emulated.total_bytes, context_bytes=emulated.context_bytes)


class _Marking(TrialRecorder):
    """A recorder that tells a journal of phases, and leaves the allocator's history alone: the journal has more."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def whole(self) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def micro_phase(self, iteration: int, _micro_step: int, name: PhaseName) -> Iterator[None]:
        self._journal.mark((iteration, name), is_end=False)
        with self.phase(iteration, name):
            yield
        self._journal.mark((iteration, name), is_end=True)


def _left_behind(micro_batch: int) -> NoAnswerError:
    return NoAnswerError(
        f"the target keeps memory of the trial at micro-batch {micro_batch}, so that the next would begin with less",
        hint="ask about one card at a time, for which every trial has a worker of its own: `oomdoctor probe TARGET "
        "--gpu NAME --engine trace`",
    )


def live_peak(steps: Steps) -> int:
    """Most bytes that tensors take at one time, whatever operators need besides."""
    sizes: list[int] = []
    changes: list[int] = []
    for entry in steps.entries:
        if isinstance(entry, int) and entry:
            if entry > 0:
                sizes.append(entry)
            changes.append(entry if entry > 0 else -sizes[-1 - entry])
    return max(accumulate(changes), default=0)


def _size_that_fills(capacity_bytes: int, small: Steps, large: Steps) -> int:
    """Where a line through two peaks meets the capacity."""
    low, high = live_peak(small), live_peak(large)
    if high <= low:
        return _LARGEST
    return _LARGE + (capacity_bytes - high) * (_LARGE - _SMALL) // (high - low)
