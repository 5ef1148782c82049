"""Frames, sections, tables and bars of a report on a terminal, laid out with Rich."""

from __future__ import annotations

import re
from io import StringIO
from itertools import pairwise
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import JustifyMethod, RenderableType

    from oomdoctor.output import Terminal


MINIMUM_WIDTH = 60
"""Columns below which the tables are no longer readable; narrower terminals get this."""

_HEIGHT = 25  # of no effect, except that rich believes the width on every terminal only where it has both
_WIDEST_SIZE = len("1023.99 MiB")
_COMMAND = re.compile(r"^((?:\s|\x1b\[[0-9;]*m)*):(?=:)")


def readable_width(terminal: Terminal) -> int:
    """Return columns that a report takes: the terminal's, and not fewer than `MINIMUM_WIDTH`."""
    return max(terminal.width, MINIMUM_WIDTH)


def printed(parts: Iterable[RenderableType], terminal: Terminal) -> str:
    """Return the parts as lines of at most `readable_width` columns without spaces at their ends."""
    console = Console(
        file=StringIO(),
        width=readable_width(terminal),
        height=_HEIGHT,
        color_system="standard" if terminal.color else None,
        force_terminal=terminal.color,
        no_color=not terminal.color,
        force_jupyter=False,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    lines = (line.rstrip() for line in capture.get().rstrip("\n").split("\n"))
    # GitHub's runner takes no line for a command, wherever somebody's text was broken.
    return "".join(_COMMAND.sub(r"\1|", line).replace("##[", "##(") + "\n" for line in lines)


def answer(lines: Iterable[RenderableType], style: str, *, unicode: bool) -> RenderableType:
    """Return the frame that a report opens with."""
    panel = Panel(Group(*lines), box=box.HEAVY if unicode else box.ASCII, border_style=style, padding=(1, 2))
    return Padding(panel, (0, 0, 1, 0))


def section(title: str, *parts: RenderableType) -> RenderableType:
    """Return a title, its parts indented below it, and an empty line."""
    return Padding(Group(Text(title, "bold"), *(Padding(part, (0, 0, 0, 2)) for part in parts)), (0, 0, 1, 0))


def indented(part: RenderableType) -> RenderableType:
    """Return a part without a title, and an empty line."""
    return Padding(part, (0, 0, 1, 2))


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Return names and what belongs to them."""
    grid = aligned(1)
    for name, text in rows:
        grid.add_row(Text(name, "dim"), Text(text))
    return grid


def aligned(columns_before_last: int) -> Table:
    """Return columns as wide as they need to be, and a last one that wraps."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(columns_before_last):
        grid.add_column(overflow="fold")
    grid.add_column(overflow="fold")
    return grid


def table(*headings: str, sizes: Iterable[str] = ()) -> Table:
    """Return a table without lines.

    Args:
        headings: Each column's; one that begins with `>` is of a column of numbers.
        sizes: Those of columns of sizes, without the `>`: wide enough that a realistic size stays on one line.
    """
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    wide = set(sizes)
    for heading in headings:
        justify: JustifyMethod = "right" if heading.startswith(">") else "left"
        name = heading.removeprefix(">")
        made.add_column(name, justify=justify, overflow="fold", min_width=_WIDEST_SIZE if name in wide else None)
    return made


def cells(sizes: Sequence[int], width: int) -> list[int]:
    """Return the number of `width` characters that each size gets in a bar of them all.

    The ends of the parts are rounded, not their lengths, so that together they are exactly `width`; what is larger than
    nothing gets at least one where there is room.
    """
    whole = max(sum(sizes), 1)
    ends, total = [0], 0
    for size in sizes:
        total += size
        ends.append((2 * total * width + whole) // (2 * whole))
    lengths = [last - first for first, last in pairwise(ends)]
    for index, size in enumerate(sizes):
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        if size and not lengths[index] and lengths[longest] > 1:
            lengths[index] += 1
            lengths[longest] -= 1
    return lengths
