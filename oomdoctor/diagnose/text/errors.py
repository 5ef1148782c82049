"""Read the error at a line of a window: kind, device, numbers, and the primary error behind it.

A secondary error only passes another one on: an error raised from it, a launcher's summary, a rank that lost a peer.
The primary error is printed elsewhere in the window, and is the one that counts.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oomdoctor.agent.oom_errors import table
from oomdoctor.diagnose.evidence import Message
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
from oomdoctor.diagnose.text.kinds import OTHER_ERROR, ErrorKind, is_handled, kind_of, read_notice
from oomdoctor.diagnose.text.numbers import facts_from, read_numbers
from oomdoctor.results import Facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oomdoctor.diagnose.evidence import Window
    from oomdoctor.diagnose.text.headlines import Headline


_HEADING: Final = re.compile(r"Out of Memory\b")  # torch writes it in small letters
_QUOTES_THE_DRIVER: Final = (
    "nccl-allocation"  # its words quote the driver's, so quotation marks in front of them mean nothing
)
_FULL_SENTENCES: Final = frozenset({"host-notebook"})  # whole sentences, and addressed to the reader
_NCCL_LINES: Final = 3  # NCCL's lines about one failure stand this close together

# Errors that are printed without a type.
_UNTYPED: Final = re.compile(
    r"(?:CUDA|HIP|cuDNN|NCCL|cuda runtime) error\b.{0,20}:|THCudaCheck FAIL|Segmentation fault|Bus error"
    r"|Memory access fault by GPU|GPU Hang|Fatal Python error|HSA_STATUS_ERROR",
    re.IGNORECASE,
)


def read_error(lines: Sequence[str], at: int) -> Message | None:
    """Read the error that line `at` is a part of; None where it is a part of none."""
    if is_handled(lines[at]):
        return None
    message = read_allocator_message(lines, at)
    if message is not None:
        return message
    headline = read_headline(lines, at)
    found = _read_known(lines, at, headline) or _read_notice(lines, at)
    return found or _read_other(lines, at, headline)


def _read_known(lines: Sequence[str], at: int, headline: Headline | None) -> Message | None:
    """Read an error that the table knows."""
    line = undecorated(lines[at])
    last = last_line(lines, at)
    type_name = "" if headline is None else headline.type_name
    kind = kind_of(line, type_name)
    if last > at and (kind is None or _is_ambiguous(kind)):
        own = lines[at : last + 1]
        broken_in_a_word = "".join(undecorated(part) for part in own)
        kind = kind_of(join(own), type_name) or kind_of(broken_in_a_word, type_name) or kind
    if kind is None:
        return None
    facts = _facts(kind, lines, at, last)
    if headline is None and kind.name != _QUOTES_THE_DRIVER and facts == Facts() and not _is_stated(kind, line):
        return None
    return _message(kind, facts, lines[at : last + 1], at, headline)


def _is_ambiguous(kind: ErrorKind) -> bool:
    row = table().named(kind.name)
    return row is not None and row.needs_pressure


def _is_stated(kind: ErrorKind, line: str) -> bool:
    """Return whether the words of a line without a type or numbers are an error's own."""
    if kind.start is None or kind.end is None:
        return False
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
    return facts_from(read_numbers(kind.name, compact(nearby, 0, len(nearby)).text))


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
_SECONDARY: Final = re.compile(
    r"ChildFailedError|distributed\.elastic|failed \(exitcode|Root Cause|CalledProcessError|returned non-zero exit"
    r"|ProcessExitedException|SIGTERM|signal: Terminated|Sending process|exited with code"
    r"|ncclRemoteError|ncclSystemError|remote process (?:has )?(?:exited|terminated)|communicator was aborted"
    r"|Watchdog caught collective|socketProgress|Connection (?:closed|reset) by (?:remote )?peer|Broken pipe"
    r"|[Ss]ee root cause above|Engine core initialization failed|EngineDeadError|RayTaskError|ActorDiedError"
    r"|DistBackendError|terminate called|Fatal Python error: Aborted",
)
_CARRIES_BELOW: Final = re.compile(
    r"Caught \w{1,60} in |terminated with the following error|ProcessRaisedException|RemoteTraceback|RayTaskError"
)
_WORTH_READING: Final = re.compile(
    r"memory|RESOURCE_EXHAUSTED|ALLOC|cuDNN algorithm|NVML_SUCCESS|buffer size|killed|exit ?code|-9", re.IGNORECASE
)

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
