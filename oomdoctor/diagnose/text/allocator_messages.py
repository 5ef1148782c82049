"""Out-of-memory messages of PyTorch's allocators, from torch 1.0 to the newest.

Versions, devices and quotations differ in which parts there are and in what order, while each part reads the same
wherever it stands. So a message is its head and the parts behind it, whatever is missing or was cut away. All is read
in lower case and without white space (`headlines.compact`), so that no wrapping hurts.

PyTorch's warning about a failed call to the driver has exact bytes where the error has two decimals. It also comes
before a retry that succeeds, so that it is no error by itself.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnose.evidence import Message
from oomdoctor.diagnose.tables import Patterns
from oomdoctor.diagnose.text.headlines import compact, join, last_line, undecorated
from oomdoctor.diagnose.text.numbers import SIZE, facts_from, read_size
from oomdoctor.results import ProcessMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.diagnose.text.headlines import CompactText
    from oomdoctor.results import Facts, MemoryDevice


HEAD: Final = re.compile(
    r"(?P<device>cuda|hip|xpu|npu|mpsbackend|hpu)outofmemory"
    r"|(?:allocationondevice\d{1,4})?wouldexceedallowedmemory"
    r"|cannotallocatememoryblockwithsizelargerthan"
)
"""Where a message begins; the words alone are not a message yet."""

LONGEST_GAP: Final = 120
"""Characters between two parts that are taken for a quotation's own words, such as an ellipsis."""

_LONGEST_PART: Final = 120  # characters of one part
_MOST_PROCESSES: Final = 256  # per message

_PATTERNS: Final = Patterns(__name__, size=SIZE)


def _compile(parts: str) -> re.Pattern[str]:
    alternatives = _PATTERNS.table[parts].items()
    return re.compile("|".join(f"(?P<{name}>{_PATTERNS.filled(pattern)})" for name, pattern in alternatives))


_PARTS: Final = _compile("common")
_APPLE_PARTS: Final = _compile("apple")
_RETOLD: Final = _compile("retold")
_MOST_RETOLD: Final = 8  # numbers of one message
_INDEX: Final = re.compile(r"(?:gpu|npu|xpu|hpu|device)(\d+)")
_PROCESS: Final = re.compile(rf"process(\d+)has({SIZE})")

_NUMBERS_OF_A_MESSAGE: Final = frozenset(
    {"total_bytes", "allocated_bytes", "reserved_bytes", "reserved_unallocated_bytes"}
)
"""Parts that only such a message has; without a head, one of them must be there and one more part."""


@dataclass(slots=True)
class MessageParts:
    """Numbers read from one message.

    Attributes:
        start: Offset at which its first part begins.
        end: Offset behind its last part.
        numbers: By the name of the field; None where the message says that it does not know.
        processes: Processes that are listed by number.
        has_own_process: Whether the message has the sentence about its own process.
        has_head: Whether the message's head was found.
    """

    start: int
    end: int
    numbers: dict[str, int | None] = field(default_factory=dict)
    processes: list[ProcessMemory] = field(default_factory=list)
    has_own_process: bool = False
    has_head: bool = False

    @property
    def is_message(self) -> bool:
        """Return whether this is a message and not a few words that look like one."""
        if self.has_head:
            return bool(self.numbers)
        return len(self.numbers) > 1 and not _NUMBERS_OF_A_MESSAGE.isdisjoint(self.numbers)


def read_parts(text: str, start: int = 0) -> MessageParts | None:
    """Read the message whose head begins at `start`, or the first parts without a head behind it.

    Args:
        text: Lines in lower case without white space.
        start: Where to begin.

    Returns:
        What was read, is_message or not; None where nothing was found.
    """
    head = HEAD.match(text, start)
    device = None if head is None else head["device"]
    pattern = _APPLE_PARTS if device == "mpsbackend" else _PARTS
    parts = MessageParts(start=start, end=start, has_head=head is not None)
    position = start
    if head is not None and device is not None:
        parts.end = position = head.end()
    heads = _heads(text)
    following = bisect_left(heads, parts.end if device is not None else start + 1)
    stop = heads[following] if following < len(heads) else len(text)  # the next message's head ends this one
    while (match := pattern.search(text, position, _template_reach(parts, stop))) is not None and _take(parts, match):
        position = match.end()
    return parts if parts.has_head or parts.numbers else None


def _read_retold(lines: Sequence[str], compacted: CompactText, parts: MessageParts) -> None:
    """Add the numbers of a message that somebody told in other words, as long as they follow each other closely."""
    head, text = HEAD.match(compacted.text, parts.start), compacted.text
    told = parts.numbers.keys() & {"total_bytes", "allocated_bytes"}
    if head is None or head["device"] in {None, "mpsbackend"} or told:
        return
    below = last_line(lines, compacted.line_of(parts.start)) + 1 - compacted.first
    stop = compacted.starts[below] if below < len(compacted.starts) else len(text)
    position = head.end()
    for _ in range(_MOST_RETOLD):
        match = _RETOLD.search(text, position, min(stop, position + LONGEST_GAP // 2 + _LONGEST_PART))
        if match is None or match.start() - position > LONGEST_GAP // 2:
            return
        parts.numbers.setdefault(match.lastgroup or "", read_size(match[0]))
        position = match.end()
        parts.end = max(parts.end, position)


@lru_cache(maxsize=4)
def _heads(text: str) -> tuple[int, ...]:
    """Offsets of all heads; a text without any is searched from many places, and but once for them."""
    return tuple(match.start() for match in HEAD.finditer(text) if match["device"] is not None)


def _template_reach(parts: MessageParts, stop: int) -> int:
    """Return where the next part has to end; the first part of a message without a head may be anywhere."""
    if not parts.has_head and not parts.numbers:
        return stop
    return min(stop, parts.end + LONGEST_GAP + _LONGEST_PART)


def _take(parts: MessageParts, match: re.Match[str]) -> bool:
    """Add one part; False where it belongs to something else."""
    name = match.lastgroup or ""
    if not parts.has_head and not parts.numbers:
        parts.start = parts.end = match.start()
    if match.start() - parts.end > LONGEST_GAP:
        return False
    process = _PROCESS.search(match[0])
    if name == "other_process":
        if process is not None and len(parts.processes) < _MOST_PROCESSES:
            parts.processes.append(ProcessMemory(pid=int(process[1]), used_bytes=read_size(process[2])))
    elif name in parts.numbers and name != "hint":
        return False
    else:
        index = _INDEX.search(match[0]) if name == "gpu_index" else None
        parts.numbers[name] = read_size(match[0]) if index is None else int(index[1])
    parts.has_own_process = parts.has_own_process or name == "process_bytes"
    parts.end = max(parts.end, match.end())
    return True


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
    compacted = compact(lines, *_reach(lines, at))
    for start in _starts(compacted, at):
        parts = read_parts(compacted.text, start)
        if parts is not None:
            _read_retold(lines, compacted, parts)
        if parts is not None and parts.is_message and _covers(compacted, parts, at):
            return _message(lines, compacted, parts)
    return _read_without_head(lines, compacted, at)


def _read_without_head(lines: Sequence[str], compacted: CompactText, at: int) -> Message | None:
    """Read a message whose beginning was cut away."""
    if not any(word in compacted.text for word in ("alloca", "capac")):
        return None  # nothing that the search below could find; it is the dearest on long texts
    position = 0
    while (parts := read_parts(compacted.text, position)) is not None and compacted.line_of(parts.start) <= at:
        if parts.is_message and _covers(compacted, parts, at):
            return _message(lines, compacted, parts)
        position = max(parts.end, position + 1)
    return None


def _covers(compacted: CompactText, parts: MessageParts, at: int) -> bool:
    return compacted.line_of(parts.start) <= at <= compacted.line_of(max(parts.start, parts.end - 1))


def _starts(compacted: CompactText, at: int) -> list[int]:
    """Offsets of the heads that begin in line `at` or above it: those of the line first, then the nearest above."""
    found = []
    for match in HEAD.finditer(compacted.text):
        line = compacted.line_of(match.start())
        if line > at:
            break
        found.append((-line, match.start()))
    return [start for _, start in sorted(found)[:_MOST_HEADS]]


def _reach(lines: Sequence[str], at: int) -> tuple[int, int]:
    """Return the range of lines that may belong to the same message as line `at`, its end excluded."""
    above = range(at - 1, max(-1, at - _MOST_ABOVE), -1)
    below = range(at + 1, min(len(lines), at + _MOST_BELOW))
    return at - _count(lines, above), at + 1 + _count(lines, below)


def _count(lines: Sequence[str], indices: range) -> int:
    """Count the lines up to the first that cannot belong to the message."""
    budget = _MOST_CHARACTERS
    for count, index in enumerate(indices):
        budget -= len(lines[index])
        if budget < 0 or _BREAK.match(undecorated(lines[index])) is not None:
            return count
    return len(indices)


def _message(lines: Sequence[str], compacted: CompactText, parts: MessageParts) -> Message:
    first = compacted.line_of(parts.start)
    last = compacted.line_of(max(parts.start, parts.end - 1))
    kind, device = _kind(compacted.text, parts)
    opening = undecorated(lines[first])
    beginning = _BEGINNING.search(opening)
    return Message(
        kind=kind,
        is_oom=True,
        device=device,
        text=join([opening if beginning is None else opening[beginning.start() :], *lines[first + 1 : last + 1]]),
        facts=facts_from(parts.numbers, parts.processes, has_own_process=parts.has_own_process),
        first=first,
        last=last,
    )


def _kind(text: str, parts: MessageParts) -> tuple[str, MemoryDevice]:
    head = HEAD.match(text, parts.start)
    if head is not None and head["device"] is not None:
        if head["device"] == "cuda" and "preemptivelyrejected" in text[head.end() : head.end() + 60]:
            return "cuda-allocator-rejected", "cuda"
        return _KINDS[head["device"]]
    own = text[parts.start : parts.end + _HINT]
    return next((kind for sign, kind in _SIGNS if sign in own), _KINDS["cuda"])


_WARNING: Final = re.compile(
    r"failedwithoomondevice(\d{1,4})whiletryingtoallocate(\d{1,18})bytes(?:\(free:(\d{1,18})(?:bytes)?,?total:(\d{1,18}))?"
)
_MOST_LINES_ABOVE: Final = 60  # lines between the warning and the error: a traceback
_HALF_A_PERCENT: Final = 200  # one part in so many; the coarsest that two decimals can be


def exact_numbers(lines: Sequence[str], message: Message) -> Facts:
    """Replace what was printed with two decimals by the exact bytes of the warning above, where they agree."""
    facts = message.facts
    if message.kind != "cuda-allocator" or facts.tried_bytes is None:
        return facts
    above = [
        line
        for line in lines[max(0, message.first - _MOST_LINES_ABOVE) : message.first]
        if "with OOM on device" in line
    ]
    for match in reversed(list(_WARNING.finditer(compact(above, 0, len(above)).text))):
        index, tried, free, total = (None if group is None else int(group) for group in match.groups())
        if facts.gpu_index in {None, index} and _agree(facts.tried_bytes, tried):
            return replace(
                facts,
                tried_bytes=tried,
                free_bytes=free if _agree(facts.free_bytes, free) else facts.free_bytes,
                total_bytes=total if _agree(facts.total_bytes, total) else facts.total_bytes,
            )
    return facts


def _agree(printed: int | None, exact: int | None) -> bool:
    return printed is not None and exact is not None and abs(printed - exact) * _HALF_A_PERCENT <= max(printed, exact)
