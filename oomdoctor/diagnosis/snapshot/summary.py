"""What a memory snapshot holds, in one result for each device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.diagnosis.snapshot.collections_off import without_collections
from oomdoctor.diagnosis.snapshot.composition import compose, largest
from oomdoctor.diagnosis.snapshot.fragmentation import fragmentation
from oomdoctor.diagnosis.snapshot.growth import growing_lines
from oomdoctor.diagnosis.snapshot.history import replay
from oomdoctor.diagnosis.snapshot.labelled import backward_callers, label
from oomdoctor.diagnosis.snapshot.lifetimes import OLDER
from oomdoctor.diagnosis.snapshot.origins import as_lines, read_stack
from oomdoctor.diagnosis.snapshot.reading import looks_like_snapshot, read_snapshot
from oomdoctor.diagnosis.snapshot.rerun import rerun
from oomdoctor.diagnosis.snapshot.timeline import timeline
from oomdoctor.diagnosis.text.phases import phase_of
from oomdoctor.results import HistoryReplay, SnapshotSummary, TrainingPhase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.diagnosis.snapshot.history import History
    from oomdoctor.diagnosis.snapshot.origins import StackFacts
    from oomdoctor.diagnosis.snapshot.raw import DeviceSnapshot, RawSnapshot, Stack
    from oomdoctor.results import Category, SourceLine

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
    with without_collections():
        facts = tuple(read_stack(stack) for stack in raw.stacks)
        return tuple(_summary(raw, device, facts, addresses) for device in raw.devices)


def _summary(
    raw: RawSnapshot, device: DeviceSnapshot, facts: Sequence[StackFacts], addresses: Mapping[int, Category] | None
) -> SnapshotSummary:
    history = replay(device)
    blocks = label(history, facts, addresses)
    live = [block for block in blocks if history.is_live_at_moment(block.lifetime)]
    end = compose(live, history.reserved[history.moment])
    at_peak = history.peak
    peak = [block for block in blocks if history.is_live(block.lifetime, at_peak)]
    phase, user_line = _failure(history, raw.stacks, facts)
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
        replay=_replay(raw, device),
    )


def _replay(raw: RawSnapshot, device: DeviceSnapshot) -> HistoryReplay | None:
    found = rerun(device, raw.allocator_settings)
    if found is None:
        return None
    where, text = (None, None) if found.departure is None else (found.departure.event, found.departure.text)
    return HistoryReplay(found.events, found.segment_events, where, text)


def _failure(
    history: History, stacks: Sequence[Stack], facts: Sequence[StackFacts]
) -> tuple[TrainingPhase | None, SourceLine | None]:
    """What the program was doing when memory ran out, and in which line of the user's."""
    if history.failure is None:
        return None, None
    stack = facts[history.failure.stack]
    if stack.on_engine:
        caller = backward_callers(history, facts).get(history.moment - 1)
        return (TrainingPhase.BACKWARD if caller or stack.innermost else None), stack.place or caller
    return phase_of(as_lines(stacks[history.failure.stack]), ""), stack.place
