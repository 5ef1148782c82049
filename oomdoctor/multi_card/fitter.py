"""Answers for many cards from one loaded target, without a trial on each: traces placed on simulated allocators."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from oomdoctor.engines.trace.op_trace import OpTrace
from oomdoctor.multi_card.alloc_program import (
    AllocationProgram,
    CallAllocations,
    CardMemory,
    Execution,
    allocating_calls,
    allocation_order,
    call_allocations,
    execute,
    is_plain,
    live_peak,
    program_of,
    without_empty_calls,
)
from oomdoctor.multi_card.tracer import ArchGroup, Tracer, without_memory_limit
from oomdoctor.progress import SilentProgress
from oomdoctor.results import Outcome, Trial
from oomdoctor.results.fit import CardFit
from oomdoctor.search.allocation_lines import largest_placeable
from oomdoctor.search.bracket import FIRST_SIZE
from oomdoctor.search.growth import ANSWER_ITERATIONS
from oomdoctor.search.probe_search import (
    ProbeSearch,
    largest_searched,
    limit_notes,
    micro_steps,
    share_of,
    tested_plan,
)
from oomdoctor.search.recommended import revised
from oomdoctor.search.trial_source import TrialNotes, TrialSource
from oomdoctor.units import LARGEST_MICRO_BATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.engines.allocator.settings import AllocatorSettings, Rules
    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.multi_card.scaling import MemoryTrace
    from oomdoctor.search.trial_source import TrialProblem
    from oomdoctor.trial.sized_trials import Trials
    from oomdoctor.trial.step import TrialSetup
    from oomdoctor.trial.trial import Attempt


_Key = tuple[int, int, CallAllocations]


@dataclass(slots=True)
class GroupCache:
    """Results that the cards of a group share.

    Attributes:
        tracer: Tells what a trial does.
        group: The cards that do the same.
        settings: What the allocator is told.
        rules: What its version does differently.
        programs: What the allocator is asked for, by size, micro-steps and which sections take something.
        unconstrained: Placements that never came near a bound, by size, micro-steps and what operators take on a card.
        live_peaks: Most bytes that are alive at one time, by size, micro-steps and what operators take.
        longer: The same of trials with as many steps as are run at the edge; None before one was.
    """

    tracer: Tracer
    group: ArchGroup
    settings: AllocatorSettings
    rules: Rules
    programs: dict[tuple[int, int, object], AllocationProgram] = field(default_factory=dict)
    unconstrained: dict[_Key, Execution] = field(default_factory=dict)
    live_peaks: dict[_Key, int] = field(default_factory=dict)
    longer: GroupCache | None = None

    def of_longer_trials(self) -> GroupCache:
        """Return the same of trials in which the allocator had to give back its cache."""
        if self.longer is None:
            group = self.group
            long_group = ArchGroup(
                group.card, group.micro_steps, group.largest, group.capacity_bytes, ANSWER_ITERATIONS
            )
            self.tracer.prepare(long_group)
            self.longer = GroupCache(self.tracer, long_group, self.settings, self.rules)
        return self.longer


class CardTrials(TrialSource):
    """Answers a search's trials for one card; see `oomdoctor.search.probe_search.TrialSource`.

    Args:
        card: The card.
        shared: What its group knows.
        micro_steps: Micro-steps in an optimizer step, by size.
        explain: What to say of a trial that failed for another reason than memory.
    """

    def __init__(
        self,
        card: Card,
        shared: GroupCache,
        micro_steps: Callable[[int], int],
        explain: Callable[[Attempt], TrialProblem | None],
    ) -> None:
        self._card = card
        self._shared = shared
        self._micro_steps = micro_steps
        self._explain = explain
        self._scripts: dict[tuple[int, int, int], CallAllocations] = {}
        self._placements: dict[tuple[int, int, int], Execution] = {}
        self._same_order: dict[object, set[int]] = {}
        self.capacity_bytes = card.capacity_bytes
        self.notes = TrialNotes()

    def has_room_for_model(self, micro_batch: int, micro_steps: int) -> bool:
        """Return whether the target can be loaded, as any traced trial tells."""
        steps = self._shared.tracer.at(self._shared.group, micro_batch, micro_steps).steps
        return steps is None or self._place(micro_batch, micro_steps, self.capacity_bytes).was_loaded

    def run(self, micro_batch: int, *, micro_steps: int, allowed_bytes: int) -> Trial:
        """Return the trial as it would end on the card."""
        traced = self._shared.tracer.at(self._shared.group, micro_batch, micro_steps)
        if traced.attempt is not None and traced.steps is None:
            self.notes.problem = self._explain(traced.attempt)
            return replace(traced.attempt.trial, allowed_bytes=allowed_bytes)
        if traced.steps is None:
            raise RuntimeError("there is neither a trace nor an attempt for this trial")
        placement = self._place(micro_batch, micro_steps, allowed_bytes)
        group = self._shared.group
        if placement.error is None and micro_steps == group.micro_steps and micro_batch >= group.lowest:
            shape = allocation_order(self._taken(self._shared, traced.steps, (micro_batch, micro_steps)))
            self._same_order.setdefault(shape, set()).add(micro_batch)
        return Trial(
            micro_batch=micro_batch,
            outcome=Outcome.FITS if placement.error is None else Outcome.OOM,
            allowed_bytes=allowed_bytes,
            peak_allocated_bytes=placement.peak_allocated_bytes,
            peak_reserved_bytes=placement.peak_reserved_bytes,
            fixed_bytes=traced.steps.fixed_bytes,
            alloc_retries=placement.retries,
            workspace_retries=placement.workspace_retries,
            swallowed_ooms=0,
            phases=placement.phases,
            error=placement.error,
            seconds=0.0,
        )

    def predict_max(self, low: int, high: int, *, allowed_bytes: int, retries: bool) -> int | None:
        """Return the largest size between two that can be placed.

        None where every size is traced by itself, or where a probe of this card could not predict yet, for want of two
        trials that did the same: the search has to go the same way here.
        """
        most_same = max(map(len, self._same_order.values()), default=0)
        if self._shared.group.scale is None or most_same < 2:  # noqa: PLR2004 - a line needs two points
            return None
        return largest_placeable(
            low,
            high,
            is_live_within=lambda size: self._live_peak(size) <= allowed_bytes,
            can_place=lambda size: self._can_place(size, allowed_bytes, retries=retries),
        )

    def _can_place(self, micro_batch: int, allowed_bytes: int, *, retries: bool) -> bool:
        micro_steps = self._micro_steps(micro_batch)
        if self._shared.tracer.at(self._shared.group, micro_batch, micro_steps).steps is None:
            return False
        placement = self._place(micro_batch, micro_steps, allowed_bytes)
        return placement.error is None and (retries or not placement.retries)

    def _live_peak(self, micro_batch: int) -> int:
        """Return the peak of live bytes in a step of as many micro-batches as most sizes have."""
        shared, size = self._shared, (micro_batch, self._shared.group.micro_steps)
        steps = shared.tracer.at(shared.group, *size).steps
        if steps is None:
            return 0
        key = (*size, self._taken(shared, steps, size))
        if key not in shared.live_peaks:
            shared.live_peaks[key] = live_peak(_program(shared, steps, size, key[2]), key[2])
        return shared.live_peaks[key]

    def _place(self, micro_batch: int, micro_steps: int, allowed_bytes: int) -> Execution:
        """Place a trial of two steps, and one of more where the allocator had to give back its cache."""
        key = micro_batch, micro_steps, allowed_bytes
        if key not in self._placements:
            placement = self._placed(self._shared, *key)
            if placement.error is None and placement.is_tight:
                placement = self._placed(self._shared.of_longer_trials(), *key)
            self._placements[key] = placement
        return self._placements[key]

    def _placed(self, shared: GroupCache, micro_batch: int, micro_steps: int, allowed_bytes: int) -> Execution:
        """On an allocator as large as the card's, unless another card has shown that less is enough."""
        card, size = self._card, (micro_batch, micro_steps)
        steps = shared.tracer.at(shared.group, *size).steps
        if steps is None:
            raise RuntimeError(f"there is no trace of {size}")
        key = (*size, self._taken(shared, steps, size))
        known = shared.unconstrained.get(key)
        if known is not None and known.peak_reserved_bytes <= allowed_bytes:
            return known
        room = CardMemory(card.total_bytes, card.total_bytes - card.capacity_bytes, allowed_bytes)
        placement = execute(_program(shared, steps, size, key[2]), key[2], room, shared.settings, shared.rules)
        if placement.error is None and not placement.is_tight and is_plain(shared.settings):
            shared.unconstrained[key] = placement
        return placement

    def _taken(self, shared: GroupCache, steps: MemoryTrace, size: tuple[int, int]) -> CallAllocations:
        key = (*size, shared.group.iterations)
        if key not in self._scripts:
            self._scripts[key] = call_allocations(steps, self._card)
        return self._scripts[key]


def _program(
    shared: GroupCache, steps: MemoryTrace, size: tuple[int, int], scripts: CallAllocations
) -> AllocationProgram:
    key = (*size, allocating_calls(scripts))
    if key not in shared.programs:
        shared.programs[key] = without_empty_calls(program_of(steps), scripts)
    return shared.programs[key]


_BLOCKS_BEFORE_A_COLLECTION = 200_000
"""Blocks of simulated allocators refer to each other, and are made by the million."""


def begin_journal(device: EmulatedDevice, cards: Sequence[Card]) -> OpTrace:
    """Have the device look like the first card and keep a journal; before the target is loaded."""
    device.card = without_memory_limit(cards[0], device.card)
    device.op_trace = OpTrace([*_by_capability(cards).values()])
    return device.op_trace


def _by_capability(cards: Sequence[Card]) -> dict[tuple[int, int], Card]:
    return {card.compute_capability: card for card in reversed(cards)}


class Fitter:
    """One target, and card after card.

    Args:
        setup: The model and how it trains.
        sized: Runs trials whose size is not the micro-batch; None where it is.
        device: The emulated device.
        cards: All that will be asked about.
        target_batch: Samples per optimizer step over all devices; None to ask about plain steps.
        world_size: Devices that share it.
        start_bytes: What is allocated between trials.
        weights_bytes: Bytes of parameters and buffers.
        memory_fraction: Part of each card's memory that the target's file allows PyTorch to take.
        explain: What to say of a trial that failed for another reason than memory.
    """

    def __init__(  # noqa: PLR0913 - each is a fact of its own, named by the caller
        self,
        *,
        setup: TrialSetup,
        sized: Trials | None,
        device: EmulatedDevice,
        cards: Sequence[Card],
        target_batch: int | None,
        world_size: int,
        start_bytes: int,
        weights_bytes: int,
        memory_fraction: float,
        explain: Callable[[Attempt], TrialProblem | None],
    ) -> None:
        if device.op_trace is None:
            raise RuntimeError("the journal is begun before the target is loaded")
        self._journal = device.op_trace
        self._tracer = Tracer(setup, device, self._journal, start_bytes, sized)
        self._searched = setup.variant.searched
        self._device = device
        self._cards = {card.key: card for card in cards}
        self._target_batch, self._world_size = target_batch, world_size
        self._share = share_of(target_batch, world_size)
        self._weights_bytes = weights_bytes
        self._memory_fraction = memory_fraction
        self._explain = explain
        self._shared: dict[tuple[int, int], GroupCache] = {}

    @property
    def questions(self) -> list[str]:
        """Questions that the target asked about its GPU, sorted."""
        return sorted(self._journal.questions)

    def fit(self, key: str, headroom: float, capacity_bytes: int | None = None) -> CardFit:
        """Return one card's answer.

        Args:
            key: The card.
            headroom: Part of the capacity that the recommended size leaves free.
            capacity_bytes: What PyTorch may take of it, where that is not all that the context leaves.

        Raises:
            TargetError: The user's code is at fault.
            NoAnswerError: The step cannot be traced, or keeps memory.
        """
        card = self._cards[key]
        allowed_bytes = card.capacity_bytes if capacity_bytes is None else capacity_bytes
        if self._memory_fraction < 1:
            allowed_bytes = min(allowed_bytes, int(self._memory_fraction * card.total_bytes))
        if allowed_bytes != card.capacity_bytes:
            card = replace(card, context_bytes=card.total_bytes - allowed_bytes, reserve_bytes=0)
        source = CardTrials(card, self._shared_of(card), self._micro_steps, self._explain)
        first = min(FIRST_SIZE, max(1, self._shared_of(card).group.largest))
        if not source.has_room_for_model(first, self._micro_steps(first)):
            return CardFit(key, 0, 0, "model", None, ())
        session = ProbeSearch(source, SilentProgress(), self._share, searched=self._searched)
        search = session.find_maximum(self._weights_bytes)
        recommended = session.find_recommended(search, headroom)
        plan = None
        if self._searched is not None:
            notes = tuple(limit_notes(session.trials, search.limited_by, self._searched))
            return CardFit(key, search.maximum, recommended, search.limited_by, None, notes)
        if self._target_batch is not None:
            plan = tested_plan(
                session, self._target_batch, self._world_size, maximum=search.maximum, recommended=recommended
            )
        comfortable = int(allowed_bytes * (1 - headroom))
        recommended = revised(recommended, session.trials, maximum=search.maximum, allowed_bytes=comfortable)
        return CardFit(key, search.maximum, recommended, search.limited_by, plan, search.notes)

    def _micro_steps(self, size: int) -> int:
        return micro_steps(size if self._searched is None else self._searched.micro_batch, self._share)

    def _steps_and_largest(self) -> tuple[int, int]:
        """Return the micro-steps of most trials, and the largest size that has so many; 0 for none."""
        if self._searched is not None:
            return self._micro_steps(1), largest_searched(self._searched)
        return (1, LARGEST_MICRO_BATCH) if self._share is None else (2, self._share - 1)

    def _shared_of(self, card: Card) -> GroupCache:
        """Return the cache of the card's group, which is traced for its first card."""
        if card.compute_capability not in self._shared:
            rivals = [*_by_capability([*self._cards.values()])]
            capacity = max(other.capacity_bytes for other in self._cards.values())
            group = ArchGroup(card, *self._steps_and_largest(), capacity)
            choices = self._tracer.prepare(group)
            if not self._shared:
                gc.freeze()  # torch has a million objects, which every collection would go through
                gc.set_threshold(_BLOCKS_BEFORE_A_COLLECTION)
            heap = self._device.allocator.heap
            shared = GroupCache(self._tracer, group, heap.settings, heap.rules)
            own = choices[rivals.index(card.compute_capability)]
            for capability, chosen in zip(rivals, choices, strict=True):
                if chosen == own:
                    self._shared.setdefault(capability, shared)
        return self._shared[card.compute_capability]
