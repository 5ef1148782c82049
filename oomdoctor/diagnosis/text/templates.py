"""The out-of-memory messages of PyTorch's allocators, from torch 1.0 to the newest, as parts that follow each other.

Versions, devices and quotations differ in which parts there are and in what order, while each part reads the same
wherever it stands. So a message is its head and the parts behind it, whatever is missing or was cut away. All is read
in lower case and without white space (`joining`), so that no wrapping hurts.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from oomdoctor.diagnosis.text.numbers import SIZE, read_size
from oomdoctor.results import ProcessMemory

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

_COMMON: Final = (
    ("tried_bytes", rf"triedtoallocate{SIZE}|requestedsize:?{SIZE}|requested:{SIZE}"),
    ("tried_unknown", r"triedtoallocatemorethan1eb"),
    ("gpu_index", r"\((?:gpu|npu|xpu|hpu)\d{1,4};|gpu\d{1,4}(?=hasatotalcapac)|allocationondevice\d{1,4}(?=would)"),
    ("total_bytes", rf"totalcapaci?tyof{SIZE}|{SIZE}totalcapacity|devicelimit:{SIZE}"),
    ("free_bytes", rf"{SIZE}isfree|{SIZE}free(?=[;),.]|$)|free\(accordingtocuda\):{SIZE}"),
    ("process_bytes", rf"thisprocesshas{SIZE}memoryinuse"),
    ("other_process", rf"process\d{{1,10}}has{SIZE}memoryinuse"),
    ("allocated_bytes", rf"{SIZE}alreadyallocated|{SIZE}isallocatedbypytorch|currentlyallocated:{SIZE}"),
    ("active", rf"{SIZE}currentactive"),
    ("private_pool_bytes", rf"with{SIZE}allocatedinprivatepools"),
    ("reserved_unallocated_bytes", rf"{SIZE}isreservedbypytorchbutunallocated|{SIZE}cached(?=\))"),
    ("reserved_bytes", rf"{SIZE}reservedintotal"),
    ("allowed_bytes", rf"(?<!max){SIZE}allowed|memoryfraction\):{SIZE}"),
    ("hint", r"ifreserved(?:butunallocated)?memoryis|seedocumentationformemory|pleaseuseempty_cache"),
)
_APPLE: Final = (
    ("allocated_bytes", rf"mpsallocated:{SIZE}"),
    ("mps_other_bytes", rf"otherallocations:{SIZE}"),
    ("mps_max_bytes", rf"maxallowed:{SIZE}"),
    ("tried_bytes", rf"triedtoallocate{SIZE}"),
    ("hint", r"usepytorch_mps_high_watermark_ratio"),
)


def _compile(parts: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in parts))


_PARTS: Final = _compile(_COMMON)
_APPLE_PARTS: Final = _compile(_APPLE)
_INDEX: Final = re.compile(r"(?:gpu|npu|xpu|hpu|device)(\d+)")
_PROCESS: Final = re.compile(rf"process(\d+)has({SIZE})")

_TELLING: Final = frozenset({"total_bytes", "allocated_bytes", "reserved_bytes", "reserved_unallocated_bytes"})
"""Parts that only such a message has; without a head, one of them must be there and one more part."""


@dataclass(slots=True)
class Parts:
    """What was read of one message.

    Attributes:
        start: Offset at which its first part begins.
        end: Offset behind its last part.
        numbers: By the name of the field; None where the message says that it does not know.
        processes: Processes that are listed by number.
        own_line: Whether the message has the sentence about its own process.
        headed: Whether the message's head was found.
    """

    start: int
    end: int
    numbers: dict[str, int | None] = field(default_factory=dict)
    processes: list[ProcessMemory] = field(default_factory=list)
    own_line: bool = False
    headed: bool = False

    @property
    def telling(self) -> bool:
        """Whether this is a message and not a few words that look like one."""
        if self.headed:
            return bool(self.numbers)
        return len(self.numbers) > 1 and not _TELLING.isdisjoint(self.numbers)


def read_parts(text: str, start: int = 0) -> Parts | None:
    """Read the message whose head begins at `start`, or the first parts without a head behind it.

    Args:
        text: Lines in lower case without white space.
        start: Where to begin.

    Returns:
        What was read, telling or not; None where nothing was found.
    """
    head = HEAD.match(text, start)
    device = None if head is None else head["device"]
    pattern = _APPLE_PARTS if device == "mpsbackend" else _PARTS
    parts = Parts(start=start, end=start, headed=head is not None)
    position = start
    if head is not None and device is not None:
        parts.end = position = head.end()
    stop = _next_head(text, parts.end if device is not None else start + 1)
    while (match := pattern.search(text, position, _reach(parts, stop))) is not None and _take(parts, match):
        position = match.end()
    return parts if parts.headed or parts.numbers else None


def _next_head(text: str, start: int) -> int:
    """Offset of the next message's head, which ends this one."""
    heads = _heads(text)
    index = bisect_left(heads, start)
    return heads[index] if index < len(heads) else len(text)


@lru_cache(maxsize=4)
def _heads(text: str) -> tuple[int, ...]:
    """Offsets of all heads; a text without any is searched from many places, and but once for them."""
    return tuple(match.start() for match in HEAD.finditer(text) if match["device"] is not None)


def _reach(parts: Parts, stop: int) -> int:
    """How far the next part may end; the first part of a message without a head may be anywhere."""
    if not parts.headed and not parts.numbers:
        return stop
    return min(stop, parts.end + LONGEST_GAP + _LONGEST_PART)


def _take(parts: Parts, match: re.Match[str]) -> bool:
    """Add one part; False where it belongs to something else."""
    name = match.lastgroup or ""
    if not parts.headed and not parts.numbers:
        parts.start = parts.end = match.start()
    if match.start() - parts.end > LONGEST_GAP:
        return False
    if name == "other_process":
        _take_process(parts, match[0])
    elif name in parts.numbers and name != "hint":
        return False
    else:
        parts.numbers[name] = _number(name, match[0])
    parts.own_line = parts.own_line or name == "process_bytes"
    parts.end = max(parts.end, match.end())
    return True


def _take_process(parts: Parts, text: str) -> None:
    match = _PROCESS.search(text)
    if match is not None and len(parts.processes) < _MOST_PROCESSES:
        parts.processes.append(ProcessMemory(pid=int(match[1]), used_bytes=read_size(match[2])))


def _number(name: str, text: str) -> int | None:
    if name != "gpu_index":
        return read_size(text)
    match = _INDEX.search(text)
    return None if match is None else int(match[1])
