"""Errors in the windows of a text, each with its traceback."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnose.evidence import ErrorEvidence
from oomdoctor.diagnose.text import tracebacks as printed
from oomdoctor.diagnose.text.errors import read_message
from oomdoctor.diagnose.text.phases import phase_of, user_line
from oomdoctor.diagnose.text.tracebacks import LONGEST_LINE, split_tracebacks, unwrap
from oomdoctor.results import Occurrence, SourceLine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oomdoctor.diagnose.evidence import Message, Window
    from oomdoctor.diagnose.text.tracebacks import PrintedFrame, Traceback, TracebackRow


_LINES_BEFORE = 400
_LINES_AFTER = 40
_CHARACTERS_BEFORE = 1 << 18
_LONGEST_CODE = 300
_LONGEST_PATH = 1000
_MOST_MESSAGE_LINES = 6
_MOST_CAUSES = 20
_SHORTEST_SAME_MESSAGE = 16
_USER_CODE_WITHIN = 12

_OF_MEMORY = re.compile(r"memory|alloc|cuda|bus error", re.IGNORECASE)
_DEBUGGER = re.compile(r"\s*Exception has occurred: ")  # Visual Studio Code
_MESSAGE = re.compile(r"^[^:]{0,400}: (.*)$")


def read_frames(lines: Sequence[str], end: int) -> tuple[SourceLine, ...]:
    """The frames of the traceback that ends in an error's message.

    Of chained errors, those that raised the message count: where an error repeats the words of its cause, the cause's.
    A worker's own traceback is given after the frames of the process that waited for it. Where nothing was printed
    before the message, a traceback that follows it directly is taken.

    Args:
        lines: A part of a text, cleaned of colours and prefixes.
        end: Index in `lines` where the message begins.

    Returns:
        The frames, outermost first; empty where no traceback belongs to the message.
    """
    end = min(end, len(lines) - 1)
    if end < 0:
        return ()
    tracebacks = split_tracebacks(unwrap(lines, _first_line(lines, end), end), end)
    after = unwrap(lines, end + 1, min(len(lines) - 1, end + _LINES_AFTER))
    chosen = _ending_at(tracebacks, lines, end)
    if chosen is None and end > 0 and _DEBUGGER.match(lines[end - 1]):
        # a debugger lists the frames directly below the message, innermost first
        listed = split_tracebacks(after, -1) if after and printed.read_frame(after[0].text) is not None else []
        below = listed[0].frames if listed else []
        return tuple(_source_line(frame) for frame in reversed(below) if frame.line and frame.path)
    frames = _all_frames(chosen) + _user_code(after) if chosen else _following(lines[end], after)
    return tuple(_source_line(frame) for frame in frames if frame.line and frame.path)


def _first_line(lines: Sequence[str], end: int) -> int:
    """Index of the line from which on a traceback is looked for, so that hostile lines cost no more than others."""
    characters = 0
    for at in range(end, max(0, end - _LINES_BEFORE) - 1, -1):
        characters += min(len(lines[at]), LONGEST_LINE)
        if characters > _CHARACTERS_BEFORE:
            return at
    return max(0, end - _LINES_BEFORE)


def _ending_at(tracebacks: list[Traceback], lines: Sequence[str], end: int) -> Traceback | None:
    here = [traceback for traceback in tracebacks if traceback.error_at == end]
    if len(here) > 1:  # all of them in one line
        return _raiser(next((it for it in reversed(here) if _OF_MEMORY.search(it.error)), here[-1]))
    if not tracebacks or not _is_message_of(tracebacks[-1], lines, end):
        return None
    return _raiser(tracebacks[-1])


def _is_message_of(traceback: Traceback, lines: Sequence[str], end: int) -> bool:
    """Return whether the line at `end` is a line of the traceback's message, or at least not of another error."""
    between = lines[traceback.error_at + 1 : end + 1]
    written = [line for line in between if not line.lstrip().startswith("frame #")]
    if len(written) > _MOST_MESSAGE_LINES or not all(line.strip() for line in written):
        return False
    another = bool(between) and printed.EXCEPTION.match(lines[end]) and printed.EXCEPTION.match(traceback.error)
    return traceback.interleaved or not another


def _raiser(traceback: Traceback) -> Traceback:
    """The first of a chain of errors that has the words of the last."""
    for _ in range(_MOST_CAUSES):
        cause = traceback.cause
        if cause is None or not _repeats(traceback.error, cause.error):
            break
        traceback = cause
    return traceback


def _repeats(error: str, cause: str) -> bool:
    found = _MESSAGE.match(cause)
    words = found[1].strip() if found else cause
    begin = error.find(words[:_SHORTEST_SAME_MESSAGE])
    if begin < 0 or len(words) < _SHORTEST_SAME_MESSAGE:
        return False
    again = error[begin:]
    shorter = min(len(words), len(again))  # either may go on in a line of its own
    return again[:shorter] == words[:shorter]


def _all_frames(traceback: Traceback) -> list[PrintedFrame]:
    frames = list(reversed(traceback.frames)) if traceback.newest_first else traceback.frames
    outer = traceback.outer
    return [*_all_frames(outer), *frames] if outer and outer.outer is None else list(frames)


def _user_code(after: list[TracebackRow]) -> list[PrintedFrame]:
    """The frames that the compiler of PyTorch names below its message, innermost of all."""
    for position, row in enumerate(after[:_USER_CODE_WITHIN]):
        if printed.USER_CODE.search(row.text):
            tracebacks = split_tracebacks(after[position + 1 :], -1)
            return tracebacks[0].frames if tracebacks else []
        if printed.HEADER.search(row.text):
            break
    return []


def _following(message: str, after: list[TracebackRow]) -> list[PrintedFrame]:
    """The frames of a traceback that is printed below a message which has none above it."""
    first = next((row.text.strip() for row in after if row.text.strip()), "")
    if printed.EXCEPTION.match(message) or not (printed.HEADER.search(first) or printed.DUMP_HEADER.match(first)):
        return _user_code(after)
    tracebacks = split_tracebacks(after, -1)
    chosen = next((it for it in tracebacks if it.running), tracebacks[0] if tracebacks else None)
    if chosen is None or (printed.EXCEPTION.match(chosen.error) and not _OF_MEMORY.search(chosen.error)):
        return []
    return _all_frames(chosen)


def _source_line(frame: PrintedFrame) -> SourceLine:
    code = frame.code[:_LONGEST_CODE].strip() if frame.code else None
    return SourceLine(frame.path[:_LONGEST_PATH], frame.line or 1, frame.function, code or None)


UNKNOWN_ERROR: Final = "other-error"
"""Kind of an error that no row of the table knows."""

_MOST_OCCURRENCES: Final = 64
_RAISED: Final = re.compile(r"\w(?:Error|Exception): ")


def read_events(windows: Iterable[Window]) -> Iterator[ErrorEvidence]:
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
        yield ErrorEvidence(window, replace(message, facts=facts), frames)


def primary_event(events: Sequence[ErrorEvidence]) -> ErrorEvidence | None:
    """The first error of memory; without one the first that is known, else the last, which ended the program.

    An error of memory that was printed without its type and its traceback was caught; where the same process ended in
    another error after it, that one counts.
    """
    first = next(filter(_is_oom, events), None)
    if first is not None:
        return _end_of(first, events) or first
    return next((event for event in events if event.message.kind != UNKNOWN_ERROR), events[-1] if events else None)


def _end_of(caught: ErrorEvidence, events: Sequence[ErrorEvidence]) -> ErrorEvidence | None:
    if caught.frames or _RAISED.search(caught.window.lines[caught.message.first]):
        return None
    later = events[events.index(caught) + 1 :]
    same = [event for event in later if event.window.rank == caught.window.rank]
    if any(_is_oom(event) for event in same):
        return None
    return next((event for event in reversed(same) if event.frames), None)


def occurrences(events: Sequence[ErrorEvidence]) -> tuple[Occurrence, ...]:
    """Every different error once, the one that counts first."""
    counting = primary_event(events)
    ordered = sorted(events, key=lambda event: event is not counting)
    found: dict[tuple[str, int | None, str], Occurrence] = {}
    for event in ordered:
        one = _occurrence(event)
        key = (one.source, one.rank, one.message)
        earlier = found.get(key)
        found[key] = one if earlier is None else replace(earlier, count=earlier.count + one.count)
    return tuple(found.values())[:_MOST_OCCURRENCES]


def _is_oom(event: ErrorEvidence) -> bool:
    return event.message.is_oom


def _numbers(window: Window, message: Message) -> Iterator[tuple[object, ...]]:
    """Yield the numbers that identify an allocator's message; a log that quotes it, or our own report, has the same."""
    facts = message.facts
    numbers = (facts.tried_bytes, facts.total_bytes, facts.free_bytes, facts.allocated_bytes)
    if None not in numbers:
        yield (window.source, window.rank, facts.gpu_index, facts.process_bytes, *numbers)


def _line(window: Window, message: Message) -> int:
    """Line of the file where a message begins; other ranks' lines in between make it approximate."""
    return max(1, window.line_number - window.at + message.first)


def _occurrence(event: ErrorEvidence) -> Occurrence:
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
