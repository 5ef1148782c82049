"""The errors in the windows of a text, each with its traceback."""

from __future__ import annotations

import re
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
_RAISED: Final = re.compile(r"\w(?:Error|Exception): ")


def read_events(windows: Iterable[Window]) -> Iterator[Event]:
    """Every error in the windows, in their order; one that a later line only repeats is one."""
    seen: set[tuple[object, ...]] = set()
    for window in windows:
        message = read_message(window)
        if message is None:
            continue
        places = {(window.source, window.rank, message.text, _line(window, message)), *_numbers(window, message)}
        if seen & places:
            continue
        seen |= places
        frames = read_frames(window.lines, message.first)
        facts = replace(
            message.facts,
            phase=phase_of(frames, message.text),
            user_line=user_line(frames),
            step=window.step,
        )
        yield Event(window, replace(message, facts=facts), frames)


def the_one_that_counts(events: Sequence[Event]) -> Event | None:
    """The first error of memory; without one the first that is known, else the last, which ended the program.

    An error of memory that was printed without its type and its traceback was caught; where the same process ended in
    another error after it, that one counts.
    """
    first = next(filter(_is_oom, events), None)
    if first is not None:
        return _end_of(first, events) or first
    return next(filter(_is_known, events), events[-1] if events else None)


def _end_of(caught: Event, events: Sequence[Event]) -> Event | None:
    if caught.frames or _RAISED.search(caught.window.lines[caught.message.first]):
        return None
    later = events[events.index(caught) + 1 :]
    same = [event for event in later if event.window.rank == caught.window.rank]
    if any(_is_oom(event) for event in same):
        return None
    return next((event for event in reversed(same) if event.frames), None)


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


def _numbers(window: Window, message: Message) -> Iterator[tuple[object, ...]]:
    """What tells an allocator's message from all others: a log that quotes it, or our own report, has the same."""
    facts = message.facts
    numbers = (facts.tried_bytes, facts.total_bytes, facts.free_bytes, facts.allocated_bytes)
    if None not in numbers:
        yield (window.source, window.rank, facts.gpu_index, facts.process_bytes, *numbers)


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
