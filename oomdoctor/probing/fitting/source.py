"""Trials on one card without running any: what a traced step asks for is placed on an allocator of the card's size."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from oomdoctor.probing.fitting.living import live_peak
from oomdoctor.probing.fitting.lowering import (
    Program,
    Scripts,
    condensed,
    program_of,
    scripts_for,
    shape_of,
    what_takes,
)
from oomdoctor.probing.fitting.placing import Placement, Room, is_plain, place
from oomdoctor.results import Outcome, Trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.allocator.rules import Rules
    from oomdoctor.allocator.settings import Settings
    from oomdoctor.devices.card import Card
    from oomdoctor.probing.fitting.scaling import Steps
    from oomdoctor.probing.fitting.tracer import Family, Tracer

_Key = tuple[int, int, Scripts]


@dataclass(slots=True)
class Shared:
    """What cards of a family can take from each other.

    Attributes:
        tracer: Tells what a trial does.
        family: The cards that do the same.
        settings: What the allocator is told.
        rules: What its version does differently.
        programs: What the allocator is asked for, by size, micro-steps and which sections take something.
        unpressed: Placements that never came near a bound, by size, micro-steps and what operators take on a card.
        lives: Most bytes that are alive at one time, by size, micro-steps and what operators take.
    """

    tracer: Tracer
    family: Family
    settings: Settings
    rules: Rules
    programs: dict[tuple[int, int, object], Program] = field(default_factory=dict)
    unpressed: dict[_Key, Placement] = field(default_factory=dict)
    lives: dict[_Key, int] = field(default_factory=dict)


class CardSource:
    """Answers a search's trials for one card; see `oomdoctor.probing.source.TrialSource`.

    Args:
        card: The card.
        shared: What its family knows.
        micro_steps: Micro-steps in an optimizer step, by size.
        explain: What to say of a trial that failed for another reason than memory.
    """

    def __init__(
        self,
        card: Card,
        shared: Shared,
        micro_steps: Callable[[int], int],
        explain: Callable[[object], dict[str, str | None] | None],
    ) -> None:
        self._card = card
        self._shared = shared
        self._micro_steps = micro_steps
        self._explain = explain
        self._scripts: dict[tuple[int, int], Scripts] = {}
        self._placements: dict[tuple[int, int, int], Placement] = {}
        self._alike: dict[object, set[int]] = {}
        self.capacity_bytes = card.capacity_bytes
        self.problem: dict[str, str | None] | None = None
        self.replaced = 0
        self.optimizer_name = ""
        self.loss_is_finite = True
        self.zeros_read = 0
        self.unknown_calls: tuple[str, ...] = ()

    def has_room_for_model(self, micro_batch: int, micro_steps: int) -> bool:
        """Whether the target can be loaded; the trial that tells is any that was traced."""
        steps = self._shared.tracer.at(self._shared.family, micro_batch, micro_steps).steps
        return steps is None or self._place(steps, micro_batch, micro_steps, self.capacity_bytes).was_loaded

    def run(self, micro_batch: int, *, micro_steps: int, allowed_bytes: int) -> Trial:
        """How the trial would end on the card."""
        traced = self._shared.tracer.at(self._shared.family, micro_batch, micro_steps)
        if traced.attempt is not None and traced.steps is None:
            self.problem = self._explain(traced.attempt)
            return replace(traced.attempt.trial, allowed_bytes=allowed_bytes)
        if traced.steps is None:
            raise RuntimeError("a trial that was not run is told by others")
        placement = self._place(traced.steps, micro_batch, micro_steps, allowed_bytes)
        if placement.error is None and micro_steps > 1 and micro_batch >= self._shared.family.lowest:
            shape = shape_of(self._taken(traced.steps, (micro_batch, micro_steps)))
            self._alike.setdefault(shape, set()).add(micro_batch)
        return _trial(micro_batch, allowed_bytes, traced.steps, placement)

    def foresee(self, low: int, high: int, *, allowed_bytes: int, retries: bool) -> int | None:
        """The largest size between two that can be placed.

        None where every size is traced by itself, or where a probe of this card could not foresee yet, for want of two
        trials that did the same: the search has to go the same way here.
        """
        most_alike = max(map(len, self._alike.values()), default=0)
        if self._shared.family.scale is None or most_alike < 2:  # noqa: PLR2004 - a line needs two points
            return None
        high = min(high, 1 + _bisect(lambda size: self._live(size) <= allowed_bytes, low, high))
        reach = 1
        while high - reach > low and not self._can_place(high - reach, allowed_bytes, retries=retries):
            high, reach = high - reach, 2 * reach
        return _bisect(lambda size: self._can_place(size, allowed_bytes, retries=retries), max(low, high - reach), high)

    def _can_place(self, micro_batch: int, allowed_bytes: int, *, retries: bool) -> bool:
        micro_steps = self._micro_steps(micro_batch)
        steps = self._shared.tracer.at(self._shared.family, micro_batch, micro_steps).steps
        if steps is None:
            return False
        placement = self._place(steps, micro_batch, micro_steps, allowed_bytes)
        return placement.error is None and (retries or not placement.retries)

    def _live(self, micro_batch: int) -> int:
        """Most bytes that are alive at one time, as two trials of the probe would have it."""
        steps = self._shared.tracer.at(self._shared.family, micro_batch, 2).steps
        if steps is None:
            return 0
        size, lives = (micro_batch, 2), self._shared.lives
        key = (*size, self._taken(steps, size))
        if key not in lives:
            lives[key] = live_peak(self._program(steps, size, key[2]), key[2])
        return lives[key]

    def _program(self, steps: Steps, size: tuple[int, int], scripts: Scripts) -> Program:
        programs = self._shared.programs
        key = (*size, what_takes(scripts))
        if key not in programs:
            programs[key] = condensed(program_of(steps), scripts)
        return programs[key]

    def _place(self, steps: Steps, micro_batch: int, micro_steps: int, allowed_bytes: int) -> Placement:
        key = micro_batch, micro_steps, allowed_bytes
        if key not in self._placements:
            self._placements[key] = self._placed(steps, micro_batch, micro_steps, allowed_bytes)
        return self._placements[key]

    def _placed(self, steps: Steps, micro_batch: int, micro_steps: int, allowed_bytes: int) -> Placement:
        """On an allocator as large as the card's, unless another card has shown that less is enough."""
        shared, card = self._shared, self._card
        size = micro_batch, micro_steps
        key = (*size, self._taken(steps, size))
        known = shared.unpressed.get(key)
        if known is not None and known.peak_reserved_bytes <= allowed_bytes:
            return known
        room = Room(card.total_bytes, card.context_bytes, allowed_bytes)
        placement = place(self._program(steps, size, key[2]), key[2], room, shared.settings, shared.rules)
        if placement.error is None and not placement.retries and is_plain(shared.settings):
            shared.unpressed[key] = placement
        return placement

    def _taken(self, steps: Steps, size: tuple[int, int]) -> Scripts:
        if size not in self._scripts:
            self._scripts[size] = scripts_for(steps, self._card)
        return self._scripts[size]


def _trial(micro_batch: int, allowed_bytes: int, steps: Steps, placement: Placement) -> Trial:
    return Trial(
        micro_batch=micro_batch,
        outcome=Outcome.FITS if placement.error is None else Outcome.OOM,
        allowed_bytes=allowed_bytes,
        peak_allocated_bytes=placement.peak_allocated_bytes,
        peak_reserved_bytes=placement.peak_reserved_bytes,
        fixed_bytes=steps.fixed_bytes,
        alloc_retries=placement.retries,
        swallowed_ooms=0,
        phases=placement.phases,
        error=placement.error,
        seconds=0.0,
    )


def _bisect(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The largest size between `low`, where it is taken to hold, and `high`, where it is taken not to."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
