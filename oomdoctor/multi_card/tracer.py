"""Traces of trials on the emulated device, as few as can be, for cards on which the target does the same."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import MemoryGrowsError
from oomdoctor.multi_card.scaling import LinearScaling, MemoryTrace, does_the_same, linear_scaling
from oomdoctor.results import Outcome
from oomdoctor.search.growth import PLAIN_ITERATIONS
from oomdoctor.trial.meters import TrialMeter
from oomdoctor.trial.protocol import RunTrial
from oomdoctor.trial.trial import await_release, run_trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.engines.trace.op_trace import OpTrace
    from oomdoctor.results import PhaseName
    from oomdoctor.trial.sized_trials import Trials
    from oomdoctor.trial.step import TrialSetup
    from oomdoctor.trial.trial import Attempt


_SMALL, _LARGE = 4, 8
"""Sizes of the first two traces; that of the third is about the largest that any of the cards has room for."""
_LARGEST: Final = 4096
"""Nothing above is traced to check a line: a batch of that size may not fit the host."""


@dataclass(frozen=True, slots=True)
class TracedTrial:
    """A trial on a card without bounds.

    Attributes:
        attempt: How it went; None where the trial was not run, but is in line with others.
        steps: What it did to memory; None where it failed.
    """

    attempt: Attempt | None
    steps: MemoryTrace | None


@dataclass(slots=True)
class ArchGroup:
    """Cards on which the target does the same, but for what operators' models say.

    Attributes:
        card: One of them.
        micro_steps: Micro-steps in an optimizer step of sizes below the target.
        largest: The largest size with so many that is in question; 0 for none.
        capacity_bytes: The most memory that any card has.
        iterations: Optimizer steps of a trial.
        traces: Trials by micro-batch and micro-steps.
        scale: All sizes from `lowest` on; None where no line goes through the traces.
        lowest: The smallest size that it holds for.
    """

    card: Card
    micro_steps: int
    largest: int
    capacity_bytes: int
    iterations: int = PLAIN_ITERATIONS
    traces: dict[tuple[int, int], TracedTrial] = field(default_factory=dict)
    scale: LinearScaling | None = None
    lowest: int = 0


class Tracer:
    """Tells what a trial does at any size.

    Args:
        setup: The model and how it trains.
        device: The emulated device, with far more memory than any card.
        journal: Its journal.
        start_bytes: What is allocated between trials.
        sized: Runs trials whose size is not the micro-batch; None where it is. Each of those sizes is traced, since a
            step is seldom a line over them, and the size to which a line leads may not fit the host.
    """

    def __init__(
        self, setup: TrialSetup, device: EmulatedDevice, journal: OpTrace, start_bytes: int, sized: Trials | None = None
    ) -> None:
        self._setup = setup
        self._sized = sized
        self._device = device
        self._journal = journal
        self._start_bytes = start_bytes

    def prepare(self, group: ArchGroup) -> list[list[object]]:
        """Trace what tells all sizes, and return what each of the journal's rivals would have chosen."""
        first = self.at(group, min(_SMALL, max(1, group.largest)), group.micro_steps if group.largest else 1)
        choices = [*self._journal.choices]
        if self._sized is None and group.largest > _LARGE and first.steps is not None:
            self._find_scale(group)
        return choices

    def at(self, group: ArchGroup, micro_batch: int, micro_steps: int) -> TracedTrial:
        """Return a trial at a size: traced, or in line with other traces."""
        key = micro_batch, micro_steps
        if key not in group.traces:
            is_alike = micro_steps == group.micro_steps and micro_batch >= max(2, group.lowest)
            in_line = group.scale is not None and is_alike
            told = group.scale.at(micro_batch) if in_line and group.scale else None
            group.traces[key] = TracedTrial(None, told) if told else self._trace(group, micro_batch, micro_steps)
        return group.traces[key]

    def _find_scale(self, group: ArchGroup) -> None:
        small, large = (self.at(group, size, group.micro_steps).steps for size in (_SMALL, _LARGE))
        if small is None or large is None:
            return
        far = min(group.largest, _LARGEST, _size_that_fills(group.capacity_bytes, small, large))
        if far <= _LARGE:
            far = _LARGE - 1
        farthest = self.at(group, far, group.micro_steps).steps
        if farthest is None:
            return
        scale = linear_scaling(small, _SMALL, large, _LARGE)
        if scale is not None and does_the_same(scale.at(far), farthest):
            group.scale, group.lowest = scale, _SMALL if far > _LARGE else 2
        elif far > _LARGE + 1:
            self._find_upper_scale(group, large, far, farthest)

    def _find_upper_scale(self, group: ArchGroup, large: MemoryTrace, far: int, farthest: MemoryTrace) -> None:
        """A step of few samples may be another: try again without the smallest."""
        middle = (_LARGE + far) // 2
        between = self.at(group, middle, group.micro_steps).steps
        scale = linear_scaling(large, _LARGE, farthest, far)
        if scale is not None and between is not None and does_the_same(scale.at(middle), between):
            group.scale, group.lowest = scale, _LARGE

    def _trace(self, group: ArchGroup, micro_batch: int, micro_steps: int) -> TracedTrial:
        emulated = self._device.card
        self._device.card = without_memory_limit(group.card, emulated)
        self._journal.begin()
        try:
            question = RunTrial(micro_batch, micro_steps, emulated.total_bytes, group.iterations)
            recorder = _JournalRecorder(self._journal)
            sized = self._sized
            attempt = run_trial(self._setup, question, recorder) if sized is None else sized.run(question, recorder)
        finally:
            await_release(self._setup.model, self._start_bytes)
            self._device.forget_dropout_state()
        if attempt.trial.outcome is not Outcome.FITS:
            return TracedTrial(attempt, None)
        if not self._journal.is_balanced or attempt.ends[-1] > attempt.ends[0]:
            raise MemoryGrowsError(
                f"the target keeps memory of the trial at {self._named(micro_batch)}, so that the next step would "
                "begin with less",
                hint="ask about one card at a time, for which trials take as many steps as they need: `oomdoctor probe "
                "TARGET --gpu NAME --engine trace`",
            )
        entries, calls = [*self._journal.entries], [*self._journal.calls]
        return TracedTrial(attempt, MemoryTrace(entries, calls, self._journal.start, attempt.trial.fixed_bytes or 0))

    def _named(self, size: int) -> str:
        searched = self._setup.variant.searched
        return f"micro-batch {size}" if searched is None else f"{searched.name} {size * searched.multiple_of}"


def without_memory_limit(card: Card, emulated: Card) -> Card:
    """Return the card with the memory of the one that is emulated, which the device has been made with."""
    return replace(card, total_bytes=emulated.total_bytes, context_bytes=emulated.context_bytes, reserve_bytes=0)


class _JournalRecorder(TrialMeter):
    """A recorder that tells a journal of phases, and leaves the allocator's history alone: the journal has more."""

    def __init__(self, journal: OpTrace) -> None:
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


def _live_peak(steps: MemoryTrace) -> int:
    """Return most bytes that tensors take at one time, whatever operators need besides."""
    sizes: list[int] = []
    changes: list[int] = []
    for entry in steps.entries:
        if isinstance(entry, int) and entry:
            if entry > 0:
                sizes.append(entry)
            changes.append(entry if entry > 0 else -sizes[-1 - entry])
    return max(accumulate(changes), default=0)


def _size_that_fills(capacity_bytes: int, small: MemoryTrace, large: MemoryTrace) -> int:
    """Return the size at which a line through two peaks meets the capacity."""
    low, high = _live_peak(small), _live_peak(large)
    if high <= low:
        return _LARGEST
    return _LARGE + (capacity_bytes - high) * (_LARGE - _SMALL) // (high - low)
