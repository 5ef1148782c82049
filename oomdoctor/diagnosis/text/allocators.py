"""A message of PyTorch's allocators in a window: where it begins and ends, whose memory it is about, its numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.evidence import Message
from oomdoctor.diagnosis.text.derived import facts_from
from oomdoctor.diagnosis.text.joining import bare, join, squeeze
from oomdoctor.diagnosis.text.templates import HEAD, read_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.diagnosis.text.joining import Squeezed
    from oomdoctor.diagnosis.text.templates import Parts
    from oomdoctor.results import MemoryDevice

_MOST_ABOVE: Final = 24  # lines of one message above a given one, wrapped ones and one a process included
_MOST_BELOW: Final = 40
_MOST_CHARACTERS: Final = 1 << 14  # of one message in either direction
_MOST_HEADS: Final = 64  # in one line
_BREAK: Final = re.compile(r"Traceback \(most recent call last\)|File \"[^\"]{1,500}\", line \d")

_KINDS: Final[dict[str, tuple[str, MemoryDevice]]] = {
    "cuda": ("cuda-allocator", "cuda"),
    "hip": ("hip-allocator", "hip"),
    "xpu": ("xpu-allocator", "xpu"),
    "npu": ("npu-allocator", "npu"),
    "hpu": ("hpu-allocator", "hpu"),
    "mpsbackend": ("mps-allocator", "mps"),
}

# Where the head does not name the device, by what the message has.
_SIGNS: Final[tuple[tuple[str, tuple[str, MemoryDevice]], ...]] = (
    ("cannotallocatememoryblock", ("xpu-block-limit", "xpu")),
    ("wouldexceedallowedmemory", ("cuda-async-allocator", "cuda")),
    ("(npu", _KINDS["npu"]),
    ("hip_alloc_conf", _KINDS["hip"]),
    ("pleaseuseempty_cache", _KINDS["xpu"]),
    ("(xpu", _KINDS["xpu"]),
)
_HINT: Final = 200  # characters of the hint, which names the variable to set

# The message's own beginning in a line, with the exception's type where one is printed.
_BEGINNING: Final = re.compile(
    r"(?:(?:[A-Za-z_]\w{0,60}\.){0,6}[A-Za-z_]\w{0,60}(?:Error|Exception): ?)?"
    r"(?:CUDA|HIP|XPU|NPU|HPU|MPS\s{1,4}backend)\s{1,4}out\s{1,4}of\s{1,4}memory",
    re.IGNORECASE,
)


def read_allocator_message(lines: Sequence[str], at: int) -> Message | None:
    """Read the allocator's message that line `at` is a part of; None where it is no part of one."""
    squeezed = squeeze(lines, *_reach(lines, at))
    for start in _starts(squeezed, at):
        parts = read_parts(squeezed.text, start)
        if parts is not None and parts.telling and _covers(squeezed, parts, at):
            return _message(lines, squeezed, parts)
    return _read_without_head(lines, squeezed, at)


def _read_without_head(lines: Sequence[str], squeezed: Squeezed, at: int) -> Message | None:
    """Read a message whose beginning was cut away."""
    if not any(word in squeezed.text for word in ("alloca", "capac")):
        return None  # nothing that the search below could find; it is the dearest on long texts
    position = 0
    while (parts := read_parts(squeezed.text, position)) is not None and squeezed.line_of(parts.start) <= at:
        if parts.telling and _covers(squeezed, parts, at):
            return _message(lines, squeezed, parts)
        position = max(parts.end, position + 1)
    return None


def _covers(squeezed: Squeezed, parts: Parts, at: int) -> bool:
    return squeezed.line_of(parts.start) <= at <= squeezed.line_of(max(parts.start, parts.end - 1))


def _starts(squeezed: Squeezed, at: int) -> list[int]:
    """Offsets of the heads that begin in line `at` or above it: those of the line first, then the nearest above."""
    found = []
    for match in HEAD.finditer(squeezed.text):
        line = squeezed.line_of(match.start())
        if line > at:
            break
        found.append((-line, match.start()))
    return [start for _, start in sorted(found)[:_MOST_HEADS]]


def _reach(lines: Sequence[str], at: int) -> tuple[int, int]:
    """Lines that may belong to the same message as line `at`: the first, and the one behind the last."""
    above = range(at - 1, max(-1, at - _MOST_ABOVE), -1)
    below = range(at + 1, min(len(lines), at + _MOST_BELOW))
    return at - _count(lines, above), at + 1 + _count(lines, below)


def _count(lines: Sequence[str], indices: range) -> int:
    """Count the lines up to the first that cannot belong to the message."""
    room = _MOST_CHARACTERS
    for count, index in enumerate(indices):
        room -= len(lines[index])
        if room < 0 or _ends(lines[index]):
            return count
    return len(indices)


def _ends(line: str) -> bool:
    return _BREAK.match(bare(line)) is not None


def _message(lines: Sequence[str], squeezed: Squeezed, parts: Parts) -> Message:
    first = squeezed.line_of(parts.start)
    last = squeezed.line_of(max(parts.start, parts.end - 1))
    kind, device = _kind(squeezed.text, parts)
    return Message(
        kind=kind,
        is_oom=True,
        device=device,
        text=_text(lines, first, last),
        facts=facts_from(parts.numbers, parts.processes, own_line=parts.own_line),
        first=first,
        last=last,
    )


def _text(lines: Sequence[str], first: int, last: int) -> str:
    beginning = _BEGINNING.search(bare(lines[first]))
    head = bare(lines[first]) if beginning is None else bare(lines[first])[beginning.start() :]
    return join([head, *lines[first + 1 : last + 1]])


def _kind(text: str, parts: Parts) -> tuple[str, MemoryDevice]:
    head = HEAD.match(text, parts.start)
    if head is not None and head["device"] is not None:
        if head["device"] == "cuda" and "preemptivelyrejected" in text[head.end() : head.end() + 60]:
            return "cuda-allocator-rejected", "cuda"
        return _KINDS[head["device"]]
    own = text[parts.start : parts.end + _HINT]
    return next((kind for sign, kind in _SIGNS if sign in own), _KINDS["cuda"])
