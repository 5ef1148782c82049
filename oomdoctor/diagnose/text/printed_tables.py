"""Read the tables that logs hold beside an error: those of `nvidia-smi` and of `torch.cuda.memory_summary()`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnose.text.numbers import read_size
from oomdoctor.results import ProcessMemory
from oomdoctor.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable

MARKS: Final = (b"NVIDIA-SMI", b"CUDA memory summary")
"""What stands in the first line of such a table."""

LONGEST_TABLE: Final = 1 << 15  # bytes; eight cards with a dozen processes each are a third of it

_CARD: Final = re.compile(r"\|\s{1,6}(\d{1,3})\s{1,6}(\S.{0,60}?)\s+(?:On|Off|N/A)\s*\|")
_USAGE: Final = re.compile(r"(\d{1,8})\s*MiB\s*/\s*(\d{1,8})\s*MiB")
_PROCESS: Final = re.compile(
    r"\|\s{1,6}(\d{1,3})\s+(?:(?:N/A|\d{1,3})\s+(?:N/A|\d{1,3})\s+)?(\d{1,10})\s+[CGM+]{1,5}\s+(?:\S.{0,200}\s)?(\d{1,8})MiB\s*\|"
)
_SUMMARY: Final = re.compile(r"\|\s*(Allocated|GPU reserved) memory\s*\|\s*(\d{1,12})\s*([KMGT]?i?B)\s*\|")
_INDEX: Final = re.compile(r"device ID (\d{1,4})")


@dataclass(frozen=True, slots=True)
class CardReading:
    """What `nvidia-smi` said of one card.

    Attributes:
        index: The card's number.
        name: Its name, as far as the column held it.
        used_bytes: Memory in use, of every process.
        total_bytes: Memory of the card.
        processes: Processes that were listed; none in most containers.
    """

    index: int
    name: str
    used_bytes: int
    total_bytes: int
    processes: tuple[ProcessMemory, ...] = ()


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """The current figures of `torch.cuda.memory_summary()`.

    Attributes:
        index: The device's number.
        allocated_bytes: Bytes in tensors.
        reserved_bytes: Bytes that the allocator holds.
    """

    index: int
    allocated_bytes: int
    reserved_bytes: int


def read_cards(lines: Iterable[str]) -> tuple[CardReading, ...]:
    """Read the table of `nvidia-smi` that begins with the first line; empty where it holds no card's memory."""
    cards: list[CardReading] = []
    processes: list[tuple[int, ProcessMemory]] = []
    index, name = -1, ""
    for line in lines:
        if (found := _PROCESS.match(line)) is not None:
            processes.append((int(found[1]), ProcessMemory(int(found[2]), int(found[3]) * MIB)))
        elif (found := _CARD.match(line)) is not None:
            index, name = int(found[1]), found[2].strip()
        elif index >= 0 and (found := _USAGE.search(line)) is not None:
            cards.append(CardReading(index, name, int(found[1]) * MIB, int(found[2]) * MIB))
            index = -1
        elif line.strip() and line.lstrip()[0] not in "|+":
            break
    return tuple(
        CardReading(
            card.index,
            card.name,
            card.used_bytes,
            card.total_bytes,
            tuple(process for number, process in processes if number == card.index),
        )
        for card in cards
    )


def read_summary(lines: Iterable[str]) -> MemorySummary | None:
    """Read the table of `memory_summary()` whose title is the first line; None where it is another's, or cut."""
    index = 0
    sizes: dict[str, int | None] = {}
    for line in lines:
        if (found := _INDEX.search(line)) is not None:
            index = int(found[1])
        elif (found := _SUMMARY.search(line)) is not None:
            sizes.setdefault(found[1], read_size(f"{found[2]}{found[3]}".lower()))
        if len(sizes) == len(("Allocated", "GPU reserved")):
            break
    allocated, reserved = sizes.get("Allocated"), sizes.get("GPU reserved")
    return None if allocated is None or reserved is None else MemorySummary(index, allocated, reserved)
