"""Replay a snapshot's history by the allocator's rules: what comes out as recorded is read rightly.

Where it does not, something is at work that the rules do not know: a changed setting, memory that was had around the
allocator, a version of PyTorch that nobody looked at yet, or a snapshot that was cut.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oomdoctor.allocator.history import HeldSegment, HistoryEvent, UnreadableHistoryError, UsedBlock
from oomdoctor.allocator.replay import Replay, replay_history
from oomdoctor.allocator.rounding import NO_LIMIT
from oomdoctor.allocator.rules import NEWEST, OLDEST, Rules
from oomdoctor.allocator.settings import Settings, parse_settings
from oomdoctor.diagnosis.snapshot.raw import Action, BlockState
from oomdoctor.errors import OomdoctorError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.diagnosis.snapshot.raw import DeviceSnapshot, Segment

_MOST_EVENTS: Final = 300_000
_VARIABLE: Final = "PYTORCH_CUDA_ALLOC_CONF"
_WITH_UNIFIED_SETTINGS: Final = "graph_capture_record_stream_reuse"
"""A setting that only versions write whose settings are those of all accelerators."""


def rerun(device: DeviceSnapshot, allocator_settings: Mapping[str, str]) -> Replay | None:
    """Replay what a device's allocator did.

    Args:
        device: Its segments and history.
        allocator_settings: What PyTorch's allocator was told, by name.

    Returns:
        None where there is no history, or one that cannot be replayed: private pools are not simulated, millions of
        events would keep the reader waiting, and where what was before the history had to be guessed, a departure
        tells nothing.
    """
    if not any(event.action is Action.FREE_COMPLETED or event.action is Action.ALLOC for event in device.events):
        return None
    if len(device.events) > _MOST_EVENTS or _has_private_pools(device):
        return None
    best = None
    for rules in _rules(allocator_settings):
        replay = _rerun(device, allocator_settings, rules)
        if replay is not None and replay.departure is None:
            return replay
        if replay is not None and replay.is_certain and (best is None or best.events < replay.events):
            best = replay
    return best


def _has_private_pools(device: DeviceSnapshot) -> bool:
    private = (segment.private for segment in device.segments)
    return any(private) or any(event.private for event in device.events)


def _rules(allocator_settings: Mapping[str, str]) -> tuple[Rules, ...]:
    """Those of the versions that can have written the snapshot, which does not say which did."""
    if _WITH_UNIFIED_SETTINGS in allocator_settings:
        return NEWEST, replace(NEWEST, prefers_older_segments=False)
    return (OLDEST,)


def _rerun(device: DeviceSnapshot, allocator_settings: Mapping[str, str], rules: Rules) -> Replay | None:
    segments = [_held(segment) for segment in device.segments]
    events = [HistoryEvent(event.action, event.address, event.size, event.stream) for event in device.events]
    try:
        return replay_history(segments, events, _settings(allocator_settings, rules), rules)
    except (UnreadableHistoryError, OomdoctorError):
        return None


def _settings(allocator_settings: Mapping[str, str], rules: Rules) -> Settings:
    """What the text says, and what is in force of it: the text is only the last that the allocator was told."""
    settings = parse_settings(allocator_settings.get(_VARIABLE, ""), rules)
    largest_split = allocator_settings.get("max_split_size", "-1")
    return replace(
        settings,
        expandable=allocator_settings.get("expandable_segments") == "True",
        largest_split=int(largest_split) if largest_split.isdecimal() else NO_LIMIT,
    )


def _held(segment: Segment) -> HeldSegment:
    used = tuple(
        UsedBlock(block.address, block.size, block.requested)
        for block in segment.blocks
        if block.state is not BlockState.FREE
    )
    return HeldSegment(segment.address, segment.size, segment.stream, segment.small, segment.expandable, used)
