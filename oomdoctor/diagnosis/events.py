"""The errors in the windows of a text, each with its traceback."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.evidence import Event
from oomdoctor.diagnosis.text.frames import read_frames
from oomdoctor.diagnosis.text.messages import read_message
from oomdoctor.diagnosis.text.ownership import user_line
from oomdoctor.diagnosis.text.phases import phase_of
from oomdoctor.results import Occurrence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oomdoctor.diagnosis.evidence import Message, Window

UNKNOWN_ERROR: Final = "other-error"
"""Kind of an error that no row of the table knows."""

_MOST_OCCURRENCES: Final = 64


def read_events(windows: Iterable[Window]) -> Iterator[Event]:
    """Every error in the windows, in their order; one that a later line only repeats is one."""
    seen: set[tuple[str, int | None, str, int]] = set()
    for window in windows:
        message = read_message(window)
        if message is None:
            continue
        place = (window.source, window.rank, message.text, _line(window, message))
        if place in seen:
            continue
        seen.add(place)
        frames = read_frames(window.lines, message.first)
        facts = replace(
            message.facts,
            phase=phase_of(frames, message.text),
            user_line=user_line(frames),
            step=window.step,
        )
        yield Event(window, replace(message, facts=facts), frames)


def the_one_that_counts(events: Sequence[Event]) -> Event | None:
    """The first error of memory; without one the first that is known, else the last, which ended the program."""
    for wanted in (_is_oom, _is_known):
        if (first := next(filter(wanted, events), None)) is not None:
            return first
    return events[-1] if events else None


def occurrences(events: Sequence[Event]) -> tuple[Occurrence, ...]:
    """Every different error once, the one that counts first."""
    counting = the_one_that_counts(events)
    ordered = sorted(events, key=lambda event: event is not counting)
    found: dict[tuple[str, int | None, str], Occurrence] = {}
    for event in ordered:
        one = _occurrence(event)
        key = (one.source, one.rank, one.message)
        earlier = found.get(key)
        found[key] = one if earlier is None else replace(earlier, count=earlier.count + one.count)
    return tuple(found.values())[:_MOST_OCCURRENCES]


def _is_oom(event: Event) -> bool:
    return event.message.is_oom


def _is_known(event: Event) -> bool:
    return event.message.kind != UNKNOWN_ERROR


def _line(window: Window, message: Message) -> int:
    """Line of the file where a message begins; other ranks' lines in between make it approximate."""
    return max(1, window.line_number - window.at + message.first)


def _occurrence(event: Event) -> Occurrence:
    window, message = event.window, event.message
    return Occurrence(
        source=window.source,
        line=_line(window, message),
        rank=window.rank,
        is_oom=message.is_oom,
        device=message.device,
        kind=message.kind,
        message=message.text,
        facts=message.facts,
        count=window.count,
    )
