"""Other shapes of a frontier than its table: a grid of two sizes, and bars of what fits, in plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.report import gpus
from oomdoctor.report.plain_text import clean

if TYPE_CHECKING:
    from oomdoctor.output import Terminal
    from oomdoctor.results import FrontierCell, FrontierResult

_UNICODE_BAR, _ASCII_BAR = ("\u2588", "\u2592"), ("#", "=")
_SHORTEST_BAR, _LONGEST_BAR, _MOST_BARS = 10, 50, 60
_LONGEST_NAME: Final = 40


def counted(result: FrontierResult) -> str:
    """Return what the cells count: micro-batches, or the size that is searched."""
    return "micro-batch" if result.searched_size is None else result.searched_size.name


def grid(result: FrontierResult) -> tuple[list[str], list[tuple[str, ...]]] | None:
    """Return headings and rows of a table of two sizes, a row for each value of the first and a column for the other.

    None where the cells do not differ by two sizes.
    """
    if len(result.axes) != 2 or any(len(cell.sizes) != 2 for cell in result.cells):  # noqa: PLR2004 - rows and columns
        return None
    found = {(cell.sizes[0].size, cell.sizes[1].size): cell for cell in result.cells}
    first, second = (list(dict.fromkeys(sizes[place] for sizes in found)) for place in (0, 1))
    headings = [result.axes[0], *(f"{result.axes[1]} {size}" for size in second)]
    rows = [(str(size), *(_both(found.get((size, other))) for other in second)) for size in first]
    return (headings, rows) if len(first) > 1 and len(second) > 1 else None


def _both(cell: FrontierCell | None) -> str:
    """Return what fits, and in brackets what is recommended."""
    if cell is None or cell.problem is not None:
        return "no answer"
    return f"{cell.maximum} ({cell.recommended or '-'})" if cell.maximum else "-"


def grid_title(result: FrontierResult) -> str:
    """Return what stands in the grid."""
    return f"largest {counted(result)}, and in brackets the recommended one"


def grid_lines(result: FrontierResult, terminal: Terminal) -> list[str]:
    """Return the grid for a terminal, an empty line behind it; nothing where there is none."""
    if (found := grid(result)) is None:
        return []
    headings, rows = found
    columns = [gpus.Column(heading, [row[place] for row in rows], right=True) for place, heading in enumerate(headings)]
    return [f"{grid_title(result)}:", *gpus.table(columns, terminal), ""]


def bars(result: FrontierResult, width: int, *, unicode: bool) -> list[str]:
    """Return a line for each cell, as long as what fits there; nothing where two cells have no answer above nothing.

    Args:
        result: The frontier.
        width: Columns that a line may have.
        unicode: Whether the output takes characters beyond ASCII.
    """
    cells = [cell for cell in result.cells if cell.problem is None]
    most = max((cell.maximum for cell in cells), default=0)
    if sum(cell.maximum > 0 for cell in cells) <= 1:
        return []
    names = [clean(", ".join(str(axis.size) for axis in cell.sizes))[:_LONGEST_NAME] for cell in cells]
    heading = clean(", ".join(result.axes))[:_LONGEST_NAME]
    beside = max(map(len, (heading, *names)))
    length = min(_LONGEST_BAR, width - beside - len(f"    {most}"))
    full, rest = _UNICODE_BAR if unicode else _ASCII_BAR
    if length < _SHORTEST_BAR:
        return []
    shown = list(zip(names, cells, strict=True))[:_MOST_BARS]
    lines = [f"{heading.rjust(beside)}  {counted(result)}: {full} recommended {rest} largest"]
    lines += [f"{name.rjust(beside)}  {_bar(cell, most, length, full, rest)}  {cell.maximum}" for name, cell in shown]
    return [*lines, *([f"... and {len(cells) - len(shown)} more"] if len(cells) > len(shown) else [])]


def _bar(cell: FrontierCell, most: int, length: int, full: str, rest: str) -> str:
    largest = max(0, cell.maximum) * length // most
    recommended = min(largest, max(0, cell.recommended) * length // most)
    return full * recommended + rest * (largest - recommended)
