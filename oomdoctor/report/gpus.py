"""`oomdoctor gpus` on the terminal.

The catalogue, or the GPUs of this machine with the processes that hold their memory.

The columns are laid out by hand: importing Rich and measuring ninety rows with it takes longer than all the rest of the
command.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.report.plain_text import count
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.local_gpus import GpuReading, LocalGpu
    from oomdoctor.output import Terminal


_WIDTH_FOR_NAMES: Final = 100
_GAP: Final = "  "
_UNKNOWN: Final = "unknown"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and the cells below it; sizes and numbers stand to the right.

    Attributes:
        heading: The heading.
        cells: One a row.
        right: Whether they stand to the right.
    """

    heading: str
    cells: Sequence[str]
    right: bool = False

    def aligned(self) -> list[str]:
        """Return heading and cells, padded to the longest."""
        # A process can call itself anything.
        seen = ("".join(each if each.isprintable() else "?" for each in cell) for cell in self.cells)
        texts = [self.heading, *seen]
        width = max(map(len, texts))
        return [text.rjust(width) if self.right else text.ljust(width) for text in texts]


def render_cards(cards: Sequence[Card], terminal: Terminal) -> str:
    """Return the catalogue, one card a line; a narrow terminal gets no names as PyTorch prints them."""
    columns = [
        Column("--gpu", [card.key for card in cards]),
        Column("name", [card.name for card in cards]),
        Column("memory", [format_size(card.total_bytes) for card in cards], right=True),
        Column("usable", [format_size(card.capacity_bytes) for card in cards], right=True),
        Column("cc", [".".join(map(str, card.compute_capability)) for card in cards], right=True),
    ]
    if terminal.width < _WIDTH_FOR_NAMES:
        del columns[1]
    return "\n".join(
        [
            *table(columns, terminal),
            "",
            count(len(cards), "card"),
            "memory: what CUDA sees on Linux; usable: what PyTorch may take of it, after the CUDA context",
            "cc: compute capability; `--json` has the source of each number",
            "",
        ]
    )


def render_reading(reading: GpuReading, terminal: Terminal) -> str:
    """Return the local GPUs, one a line, and below them the processes that hold their memory."""
    gpus = reading.gpus
    columns = [
        Column("GPU", [str(gpu.index) for gpu in gpus], right=True),
        Column("name", [_name(gpu) for gpu in gpus]),
        Column("total", [_size(gpu.total_bytes) for gpu in gpus], right=True),
        Column("used", [_size(gpu.used_bytes) for gpu in gpus], right=True),
        Column("free", [_size(gpu.free_bytes) for gpu in gpus], right=True),
        Column(
            "busy",
            [_UNKNOWN if busy is None else f"{busy} %" for busy in (gpu.utilisation_percent for gpu in gpus)],
            right=True,
        ),
    ]
    return "\n".join([*table(columns, terminal), "", *_process_lines(reading, terminal), ""])


def _process_lines(reading: GpuReading, terminal: Terminal) -> list[str]:
    lines: list[str] = []
    held = [(gpu.index, process) for gpu in reading.gpus for process in gpu.processes or ()]
    untold = [str(gpu.index) for gpu in reading.gpus if gpu.processes is None]
    if held:
        columns = [
            Column("GPU", [str(index) for index, _ in held], right=True),
            Column("pid", [str(process.pid) for _, process in held], right=True),
            Column("holds", [_size(process.used_bytes) for _, process in held], right=True),
            Column("process", [process.name or _UNKNOWN for _, process in held]),
        ]
        lines += table(columns, terminal)
    elif not untold:
        lines.append("no process holds memory, as far as the driver tells")
    if untold:
        lines.append(f"processes: unknown for GPU {', '.join(untold)}")
    return lines


def table(columns: Sequence[Column], terminal: Terminal) -> list[str]:
    """Return lines of a table: the headings, a rule and the rows."""
    heading, *rows = (
        _GAP.join(cells).rstrip() for cells in zip(*(column.aligned() for column in columns), strict=True)
    )
    width = max(map(len, (heading, *rows)))
    rule = ("\N{BOX DRAWINGS LIGHT HORIZONTAL}" if terminal.unicode else "-") * width
    return [f"{_BOLD}{heading}{_PLAIN}" if terminal.color else heading, rule, *rows]


def _name(gpu: LocalGpu) -> str:
    name = gpu.name or _UNKNOWN
    return name if gpu.error is None else f"{name} (cannot be read: {gpu.error})"


def _size(size_bytes: int | None) -> str:
    return _UNKNOWN if size_bytes is None else format_size(size_bytes)
