"""Summarise a memory snapshot in one result for each device, with fragmentation and a replay.

The replay drives the simulated allocator with the history's allocations and frees. Where it does not reach the recorded
blocks and segments, something is at work that the simulator does not know: a changed setting, memory taken from the
driver beside the allocator, an unknown version of PyTorch, or a snapshot that was cut.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oomdoctor.agent.allocator_blocks import NO_LIMIT
from oomdoctor.diagnose.snapshot.categories import backward_callers, label_block
from oomdoctor.diagnose.snapshot.composition import compose, growing_lines, largest, timeline
from oomdoctor.diagnose.snapshot.history import OLDER, replay
from oomdoctor.diagnose.snapshot.layout import AllocatorAction, BlockState
from oomdoctor.diagnose.snapshot.origins import as_lines, read_stack
from oomdoctor.diagnose.snapshot.reading import gc_paused, looks_like_snapshot, read_snapshot
from oomdoctor.diagnose.text.phases import phase_of
from oomdoctor.engines.allocator.history import HeldSegment, HistoryEvent, UnreadableHistoryError, UsedBlock
from oomdoctor.engines.allocator.replay import Replay, replay_history
from oomdoctor.engines.allocator.settings import NEWEST, OLDEST, AllocatorSettings, Rules, parse_settings
from oomdoctor.errors import OomdoctorError
from oomdoctor.results import Fragmentation, HistoryReplay, SnapshotSummary, TrainingPhase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from oomdoctor.diagnose.snapshot.history import History
    from oomdoctor.diagnose.snapshot.layout import DeviceSnapshot, RawSnapshot, SnapshotSegment, Stack
    from oomdoctor.diagnose.snapshot.origins import StackFacts
    from oomdoctor.engines.allocator.history import Stretch
    from oomdoctor.results import Category, SourceLine


def fragmentation(history: History) -> Fragmentation:
    """Measure the holes at the moment of the failure, or of the snapshot.

    Of an expandable segment each stretch that is mapped counts as a segment of its own.
    """
    used = [lifetime for lifetime in history.lifetimes if history.is_in_use_at_moment(lifetime)]
    blocks = sorted((lifetime.address, lifetime.address + lifetime.size) for lifetime in used)
    with_holes = hole_bytes = largest = cached = 0
    for stretch in history.held:
        inside = blocks[bisect_left(blocks, (stretch.start, 0)) : bisect_left(blocks, (stretch.end, 0))]
        holes = list(_holes(stretch, inside))
        if not inside:
            cached += stretch.end - stretch.start
        elif holes:
            with_holes += 1
            hole_bytes += sum(holes)
            largest = max(largest, *holes)
    return Fragmentation(len(history.held), with_holes, hole_bytes, largest, cached)


def _holes(stretch: Stretch, blocks: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Yield the sizes of the gaps between some blocks, begin and end of each, in a segment."""
    at = stretch.start
    for begin, end in blocks:
        if begin > at:
            yield begin - at
        at = max(at, end)
    if at < stretch.end:
        yield stretch.end - at


_MOST_EVENTS: Final = 300_000
_VARIABLE: Final = "PYTORCH_CUDA_ALLOC_CONF"
_WITH_UNIFIED_SETTINGS: Final = "graph_capture_record_stream_reuse"
"""A setting that only versions write whose settings are those of all accelerators."""


def replay_by_rules(device: DeviceSnapshot, allocator_settings: Mapping[str, str]) -> Replay | None:
    """Replay what a device's allocator did.

    Args:
        device: Its segments and history.
        allocator_settings: What PyTorch's allocator was told, by name.

    Returns:
        None where there is no history, or one that cannot be replayed: private pools are not simulated, millions of
        events would keep the reader waiting, and where what was before the history had to be guessed, a departure
        tells nothing.
    """
    if not any(
        event.action is AllocatorAction.FREE_COMPLETED or event.action is AllocatorAction.ALLOC
        for event in device.events
    ):
        return None
    is_private = any(one.private for one in device.segments) or any(one.private for one in device.events)
    if len(device.events) > _MOST_EVENTS or is_private:
        return None
    best = None
    # Those of each version that can have written the snapshot, which does not name its version.
    newest = (NEWEST, replace(NEWEST, prefers_older_segments=False))
    for rules in newest if _WITH_UNIFIED_SETTINGS in allocator_settings else (OLDEST,):
        replay = _replay_by_rules(device, allocator_settings, rules)
        if replay is not None and replay.departure is None:
            return replay
        if replay is not None and replay.is_certain and (best is None or best.events < replay.events):
            best = replay
    return best


def _replay_by_rules(device: DeviceSnapshot, allocator_settings: Mapping[str, str], rules: Rules) -> Replay | None:
    segments = [_held(segment) for segment in device.segments]
    events = [HistoryEvent(event.action, event.address, event.size, event.stream) for event in device.events]
    try:
        return replay_history(segments, events, _settings(allocator_settings, rules), rules)
    except (UnreadableHistoryError, OomdoctorError):
        return None


def _settings(allocator_settings: Mapping[str, str], rules: Rules) -> AllocatorSettings:
    """Return the settings of the text, and those in force: the text is only the last that the allocator was given."""
    settings = parse_settings(allocator_settings.get(_VARIABLE, ""), rules)
    largest_split = allocator_settings.get("max_split_size", "-1")
    return replace(
        settings,
        expandable=allocator_settings.get("expandable_segments") == "True",
        largest_split=int(largest_split) if largest_split.isdecimal() else NO_LIMIT,
    )


def _held(segment: SnapshotSegment) -> HeldSegment:
    used = tuple(
        UsedBlock(block.address, block.size, block.requested)
        for block in segment.blocks
        if block.state is not BlockState.FREE
    )
    return HeldSegment(segment.address, segment.size, segment.stream, segment.small, segment.expandable, used)


__all__ = ["looks_like_snapshot", "read_snapshot", "summarise"]


def summarise(raw: RawSnapshot, addresses: Mapping[int, Category] | None = None) -> tuple[SnapshotSummary, ...]:
    """Sum up a snapshot.

    Args:
        raw: The snapshot.
        addresses: What is known of blocks that were live when it was taken, by their address; the rest is inferred.

    Returns:
        One summary for each device that holds memory or has a history. `end` is the moment when memory ran out, if the
        program died of that, and otherwise when the snapshot was taken.
    """
    with gc_paused():
        facts = tuple(read_stack(stack) for stack in raw.stacks)
        return tuple(_summary(raw, device, facts, addresses) for device in raw.devices)


def _summary(
    raw: RawSnapshot, device: DeviceSnapshot, facts: Sequence[StackFacts], addresses: Mapping[int, Category] | None
) -> SnapshotSummary:
    history = replay(device)
    blocks = label_block(history, facts, addresses)
    live = [block for block in blocks if history.is_live_at_moment(block.lifetime)]
    end = compose(live, history.reserved[history.moment])
    at_peak = history.peak
    peak = [block for block in blocks if history.is_live(block.lifetime, at_peak)]
    phase, user_line = _failure(history, raw.stacks, facts)
    found = replay_by_rules(device, raw.allocator_settings)
    where, text = (found.departure.event, found.departure.text) if found and found.departure else (None, None)
    replayed = None if found is None else HistoryReplay(found.events, found.segment_events, where, text)
    return SnapshotSummary(
        source=raw.source,
        device_index=device.index,
        total_bytes=None,  # no version writes it
        has_history=bool(device.events),
        truncated=bool(device.events) and any(block.lifetime.born == OLDER for block in blocks),
        events=len(device.events),
        end=end,
        peak=compose(peak, history.reserved[at_peak]) if device.events else end,
        largest=largest(live),
        fragmentation=fragmentation(history),
        growing=growing_lines(history, blocks, raw.stacks, facts),
        timeline=timeline(history, blocks),
        tried_bytes=None if history.failure is None else history.failure.size,
        free_bytes=None if history.failure is None else max(0, history.failure.address),
        phase=phase,
        user_line=user_line,
        replay=replayed,
    )


def _failure(
    history: History, stacks: Sequence[Stack], facts: Sequence[StackFacts]
) -> tuple[TrainingPhase | None, SourceLine | None]:
    """Return the phase when memory ran out, and the user's line."""
    if history.failure is None:
        return None, None
    stack = facts[history.failure.stack]
    if stack.on_engine:
        caller = backward_callers(history, facts).get(history.moment - 1)
        return (TrainingPhase.BACKWARD if caller or stack.innermost else None), stack.place or caller
    return phase_of(as_lines(stacks[history.failure.stack]), ""), stack.place
