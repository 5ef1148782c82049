"""Read the error at a line of a window: kind, device, numbers, and the primary error behind it.

A secondary error only passes another one on: an error raised from it, a launcher's summary, a rank that lost a peer.
The primary error is printed elsewhere in the window, and is the one that counts.

A trial knows how much memory was free, so that it can decide about an ambiguous message. Here only the text is left,
and the table says which ambiguous messages are taken for an OOM nevertheless.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from oomdoctor.agent.oom_errors import lowered, table
from oomdoctor.diagnose.evidence import Message
from oomdoctor.diagnose.tables import Patterns
from oomdoctor.diagnose.text.allocator_messages import exact_numbers, read_allocator_message
from oomdoctor.diagnose.text.headlines import (
    compact,
    is_mention,
    is_sentence,
    join,
    last_line,
    read_headline,
    undecorated,
)
from oomdoctor.diagnose.text.numbers import facts_from, read_numbers
from oomdoctor.results import Facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oomdoctor.agent.oom_errors import Row
    from oomdoctor.diagnose.evidence import Window
    from oomdoctor.diagnose.text.headlines import Headline
    from oomdoctor.results import MemoryDevice


OTHER_ERROR: Final = "other-error"
"""The kind of an error that no row knows."""

_DEVICE_WORDS: Final = re.compile(r"\b(?:CUDA|GPU|VRAM|cudnn|device memory)", re.IGNORECASE)
_HOST_WORDS: Final = re.compile(r"\b(?:host|CPU|RAM|system|heap|swap|node)\b", re.IGNORECASE)
_ON_HOST: Final = re.compile(r"device:CPU:\d+\b.{0,20} by allocator", re.IGNORECASE)
_SHORT: Final = re.compile(r"(?:[:\]|>)]\s|\s-\s)(CUDA out of memory)\b", re.IGNORECASE)  # behind a log's prefix
_TENSORFLOW: Final = re.compile(r"OOM when allocating tensor|_bfc\) ran out of memory trying to allocate")
_ROCM: Final = re.compile(r"\bhip(?:blas|sparse|solver|fft)|\broc(?:blas|sparse|solver)", re.IGNORECASE)
_TPU: Final = re.compile(r"\bTPU|\bHBM\b|\bvmem\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """Kind of an error's text.

    Attributes:
        name: Id of the row, or `other-error`.
        is_oom: Whether memory ran out.
        device: Whose.
        start: Where in the text the words begin that tell it; None where the type told it.
        end: Where they end.
    """

    name: str
    is_oom: bool
    device: MemoryDevice
    start: int | None = None
    end: int | None = None


def kind_of(text: str, type_name: str = "") -> ErrorKind | None:
    """Find what a text is.

    Args:
        text: A message in one line.
        type_name: Its exception's type as printed; empty where none is.

    Returns:
        None where neither the words nor the type are known.
    """
    lower_case = lowered(text)
    certain = [row for row in table().rows if not row.needs_pressure]
    found = _first_match(certain, lower_case)
    if found is not None:
        return _kind(*found, text)
    short = _SHORT.search(text)
    if short is not None:
        return ErrorKind("cuda-allocator-short", is_oom=True, device="cuda", start=short.start(1), end=short.end(1))
    by_type = table().named(_row_of_type(type_name, text) or "")
    if by_type is not None:
        return _kind(by_type, None, text)
    found = _first_match([row for row in table().rows if row.needs_pressure], lower_case)
    return None if found is None else _ambiguous(*found, text, type_name)


def _first_match(rows: Sequence[Row], text: str) -> tuple[Row, re.Match[str]] | None:
    """Return the first row whose patterns are all in a text in lower case, and the match of its first pattern."""
    return next(((row, match) for row in rows if (match := row.match(text)) is not None), None)


def _row_of_type(type_name: str, text: str) -> str | None:
    """Return the id of the row that a printed type stands for, whatever its text; None where it stands for none."""
    module, _, name = type_name.rpartition(".")
    if _TENSORFLOW.search(text) is not None:
        return "tensorflow-allocator"
    if "allocated so far: " in text or (module.startswith("cupy") and name == "OutOfMemoryError"):
        return "cupy-allocation"
    if name == "OutOfMemoryError":
        return "host-ray" if module.startswith("ray") else None if module.startswith("java") else "torch-type"
    return "host-python" if name.endswith("MemoryError") else None


def _kind(row: Row, match: re.Match[str] | None, text: str) -> ErrorKind:
    start, end = (None, None) if match is None else match.span()
    if row.means == "host_oom":
        return ErrorKind(row.id, is_oom=True, device="cpu", start=start, end=end)
    if row.means == "oom":
        return ErrorKind(row.id, is_oom=True, device=_device(row, text), start=start, end=end)
    return ErrorKind(row.id, is_oom=False, device="none", start=start, end=end)


def _ambiguous(row: Row, match: re.Match[str], text: str, type_name: str) -> ErrorKind | None:
    start, end = match.span()
    if not row.says_oom(lowered(text)):
        return ErrorKind(row.id, is_oom=False, device="none", start=start, end=end)
    if row.device != "any":
        return ErrorKind(row.id, is_oom=True, device=_device(row, text), start=start, end=end)
    if not type_name:
        return None  # a sentence that mentions memory
    host = _HOST_WORDS.search(text) is not None and _DEVICE_WORDS.search(text) is None
    return ErrorKind(row.id, is_oom=True, device="cpu" if host else "cuda", start=start, end=end)


def _device(row: Row, text: str) -> MemoryDevice:
    """Return the device that a row is about; XLA runs on GPUs unless the text names a part that only a TPU has."""
    if row.device == "xla":
        return "cpu" if _ON_HOST.search(text) is not None else "xla" if _TPU.search(text) is not None else "cuda"
    if row.device == "cuda" and _ROCM.search(text) is not None:
        return "hip"
    return "cuda" if row.device == "any" else row.device


_HANDLED: Final = re.compile(r"caller indicates that this is not a failure|recovered from an allocation failure")


def read_notice(line: str) -> tuple[str, int] | None:
    """Name the notice in a line, and where in the line it begins; None where there is none."""
    found = ((kind, pattern.search(line)) for kind, pattern in _notices())
    return next(((kind, match.start()) for kind, match in found if match is not None), None)


@cache
def _notices() -> list[tuple[str, re.Pattern[str]]]:
    return [(notice.id, re.compile(notice.pattern, re.IGNORECASE)) for notice in table().notices]


def is_handled(line: str) -> bool:
    """Return whether a line says itself that nothing failed."""
    return _HANDLED.search(line) is not None


_PATTERNS: Final = Patterns(__name__)
_HEADING: Final = re.compile(r"Out of Memory\b")  # torch writes it in small letters
_QUOTES_THE_DRIVER: Final = (
    "nccl-allocation"  # its words quote the driver's, so quotation marks in front of them mean nothing
)
_FULL_SENTENCES: Final = frozenset({"host-notebook", "quantized-offload"})  # whole, and addressed to the reader
_BLOCK_LINES: Final = 12  # lines below an error that may hold numbers of it, where its own have none
_WRAPPED_ABOVE: Final = 3  # lines of a wrapped message above the one that was found
_WRAPPED_LINES: Final = 40
_NARROWEST: Final = 20  # characters of a terminal's line
_WIDEST: Final = 110
_STOPS: Final = re.compile(r"Traceback \(|File \"|During handling|The above exception|[\w.]{1,200}(?:Error|Exception):")
_NAMED: Final = re.compile(r"\w(?:Error|Exception): ")  # an error that is whole in its line
_NCCL_LINES: Final = 3  # NCCL's lines about one failure stand this close together

_UNTYPED: Final = _PATTERNS("untyped", re.IGNORECASE)
_WRAPPED: Final = _PATTERNS("wrapped")


def read_error(lines: Sequence[str], at: int) -> Message | None:
    """Read the error that line `at` is a part of; None where it is a part of none."""
    if is_handled(lines[at]):
        return None
    message = read_allocator_message(lines, at)
    if message is not None:
        return message
    headline = read_headline(lines, at)
    found = _read_known(lines, at, headline) or _read_notice(lines, at)
    if found is not None and found.is_oom:
        return found
    return _read_wrapped(lines, at) or found or _read_other(lines, at, headline)


def _read_wrapped(lines: Sequence[str], at: int) -> Message | None:
    """Read an error of memory whose lines a narrow terminal has broken, in the middle of words too."""
    near = lines[max(0, at - _WRAPPED_ABOVE) : at + _WRAPPED_LINES]
    if _WRAPPED.search(compact(near, 0, len(near)).text) is None:
        return None  # most lines; what follows is dear
    for first in range(at, max(-1, at - _WRAPPED_ABOVE - 1), -1):
        stop = _end_of_wrapped(lines, first)
        own = [undecorated(line) for line in lines[first:stop]]
        for text in ("".join(own), " ".join(own)) if stop > at and len(own) > 1 else ():
            message = read_allocator_message([text], 0) or _read_known([text], 0, read_headline([text], 0))
            if message is not None and message.is_oom:
                return replace(message, text=join(own), first=first, last=stop - 1)
    return None


def _end_of_wrapped(lines: Sequence[str], first: int) -> int:
    """Index behind the last of the lines that are one, all of which but the last are of nearly the same length."""
    width = len(undecorated(lines[first]))
    stop = first + 1
    for line in lines[first + 1 : first + _WRAPPED_LINES]:
        before, text = undecorated(lines[stop - 1]), undecorated(line)
        fits = _NARROWEST <= width <= _WIDEST and len(before) * 4 >= width * 3 and len(text) * 3 <= width * 4
        if not text or not fits or _STOPS.match(text) is not None or _NAMED.search(text) is not None:
            break
        stop += 1
    return stop


def _read_known(lines: Sequence[str], at: int, headline: Headline | None) -> Message | None:
    """Read an error that the table knows."""
    line = undecorated(lines[at])
    last = last_line(lines, at)
    type_name = "" if headline is None else headline.type_name
    kind = kind_of(line, type_name)
    row = None if kind is None else table().named(kind.name)
    if last > at and (kind is None or (row is not None and row.needs_pressure)):
        own = lines[at : last + 1]
        broken_in_a_word = "".join(undecorated(part) for part in own)
        kind = kind_of(join(own), type_name) or kind_of(broken_in_a_word, type_name) or kind
    if kind is None:
        return None
    facts = _facts(kind, lines, at, last)
    if headline is None and kind.name != _QUOTES_THE_DRIVER and facts == Facts() and not _is_stated(kind, line):
        return None
    return _message(kind, facts, lines[at : last + 1], at, headline)


def _is_stated(kind: ErrorKind, line: str) -> bool:
    """Return whether the words of a line without a type or numbers are an error's own."""
    if kind.start is None or kind.end is None:
        return False
    if kind.name in _FULL_SENTENCES:
        return True
    words = line[kind.start : kind.end]
    if _HEADING.search(words) is not None:
        return False
    # What goes on in plain words may be a sentence; behind the name of a status a message does go on.
    after = line[kind.end :] if words.lower().endswith(" memory") else ""
    return not is_mention(line[: kind.start], after)


def _read_notice(lines: Sequence[str], at: int) -> Message | None:
    line = undecorated(lines[at])
    notice = read_notice(line)
    if notice is None or (notice[0] not in _FULL_SENTENCES and is_sentence(line[: notice[1]])):
        return None
    kind = ErrorKind(notice[0], is_oom=True, device="cpu")
    return _message(kind, Facts(), lines[at : last_line(lines, at) + 1], at)


def _read_other(lines: Sequence[str], at: int, headline: Headline | None) -> Message | None:
    """Read an error that nothing here knows; it is told so that the reader sees what it was."""
    line = undecorated(lines[at])
    untyped = _UNTYPED.search(line)
    if headline is not None and headline.type_name == "Error" and not headline.text:
        return None  # what somebody wrote above an error
    if headline is None and (
        kind_of(line) is not None or untyped is None or is_mention(line[: untyped.start()], line[untyped.end() :])
    ):
        return None
    kind = ErrorKind(OTHER_ERROR, is_oom=False, device="none")
    return _message(kind, Facts(), lines[at : last_line(lines, at) + 1], at, headline)


def _facts(kind: ErrorKind, lines: Sequence[str], first: int, last: int) -> Facts:
    if not kind.is_oom:
        return Facts()
    nearby = list(lines[first : last + 1])
    if kind.name == "nccl-allocation":
        around = lines[max(0, first - _NCCL_LINES) : last + 1 + _NCCL_LINES]
        nearby += [line for line in around if "NCCL WARN" in line]
    numbers = read_numbers(kind.name, compact(nearby, 0, len(nearby)).text)
    if not numbers and kind.name not in _FULL_SENTENCES:  # a narrow terminal broke the message off
        below = list(takewhile(_may_go_on, lines[last + 1 : last + 1 + _BLOCK_LINES]))
        numbers = read_numbers(kind.name, compact([*nearby, *below], 0, len(nearby) + len(below)).text)
    return facts_from(numbers)


def _may_go_on(line: str) -> bool:
    return bool(line.strip()) and _STOPS.match(undecorated(line)) is None


def _message(
    kind: ErrorKind, facts: Facts, own: Sequence[str], first: int, headline: Headline | None = None
) -> Message:
    start = 0 if headline is None else headline.start
    return Message(
        kind=kind.name,
        is_oom=kind.is_oom,
        device=kind.device,
        text=join([undecorated(own[0])[start:], *own[1:]]),
        facts=facts,
        first=first,
        last=first + len(own) - 1,
    )


_CHAINED: Final = re.compile(r"The above exception was the direct cause|During handling of the above exception")
_SECONDARY: Final = _PATTERNS("secondary")
_CARRIES_BELOW: Final = _PATTERNS("carries_below")
_WORTH_READING: Final = _PATTERNS("worth_reading", re.IGNORECASE)

_MOST_LINES: Final = 240
_MOST_CHARACTERS: Final = 1 << 16  # of lines that are read; hundreds of ordinary ones
_FRAMES_BETWEEN: Final = 60  # lines from "Caught ... in" to the error that it carries


def primary_error(lines: Sequence[str], secondary: Message) -> Message | None:
    """Find the error that `secondary` passes on, where that says that memory ran out; else None."""
    if secondary.is_oom and secondary.kind != "killed":
        return None
    text = " ".join(undecorated(line) for line in lines[secondary.first : secondary.last + 1])
    if _CARRIES_BELOW.search(text) is not None:
        below = range(secondary.last + 1, min(len(lines), secondary.last + 1 + _FRAMES_BETWEEN))
        found = _first_oom(lines, below)
        if found is not None:
            return found
    if _SECONDARY.search(text) is not None or secondary.kind == "killed":
        above = range(secondary.first - 1, max(-1, secondary.first - _MOST_LINES), -1)
        return _first_oom(lines, above, device_only=secondary.kind == "killed")
    return _first_oom(lines, _ends_of_chain(lines, secondary)) if secondary.kind == OTHER_ERROR else None


def _ends_of_chain(lines: Sequence[str], error: Message) -> Iterator[int]:
    """Lines above each "The above exception ...", which end the traceback before it, nearest first."""
    for index in range(error.first - 1, max(0, error.first - _MOST_LINES), -1):
        if _CHAINED.match(undecorated(lines[index])) is None:
            continue
        # A message may have several lines, and an empty one stands below it.
        yield from range(index - 1, max(-1, index - 8), -1)


def _first_oom(lines: Sequence[str], indices: Iterable[int], *, device_only: bool = False) -> Message | None:
    budget = _MOST_CHARACTERS
    for index in indices:
        if _WORTH_READING.search(lines[index]) is None:
            continue
        budget -= len(lines[index])
        if budget < 0:
            break
        message = read_error(lines, index)
        if message is not None and message.is_oom and not (message.device == "cpu" and device_only):
            return message
    return None


def read_message(window: Window) -> Message | None:
    """Read the error that a window was opened for.

    The error in the line `window.at` counts, unless it only passes on another one in the window that says that memory
    ran out. Nothing is guessed: a number that is not in the text is None. Never raises, whatever the text is.

    Returns:
        The error; None where the line only mentions memory, or an error that the program has dealt with.
    """
    if not 0 <= window.at < len(window.lines):
        return None
    message = read_error(window.lines, window.at)
    if message is None:
        return None
    message = primary_error(window.lines, message) or message
    return replace(message, facts=exact_numbers(window.lines, message))
