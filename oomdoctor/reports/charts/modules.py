"""The peak by module: the largest ones by category, and the rest as one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.results import Category

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from oomdoctor.results import ModuleBytes

_MOST_ROWS: Final = 12


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module, or all the small ones.

    Attributes:
        module: Its path; empty for the model itself; None for what no module accounts for.
        others: How many modules are in this row, where it stands for several; else 0.
        parts: Bytes by category, in the order of `Category`.
        total_bytes: Their sum.
        blocks: How many blocks.
    """

    module: str | None
    others: int
    parts: tuple[tuple[Category, int], ...]
    total_bytes: int
    blocks: int


def rows(modules: Iterable[ModuleBytes]) -> list[ModuleRow]:
    """The largest modules first, and last the rest of them, so that the rows sum to the whole."""
    by_module: dict[str | None, list[ModuleBytes]] = defaultdict(list)
    for found in modules:
        by_module[found.module].append(found)
    made = sorted((_row(name, 0, found) for name, found in by_module.items()), key=lambda row: -row.total_bytes)
    # A rest of one is a row of its own.
    if len(made) <= _MOST_ROWS + 1:
        return made
    rest = [found for row in made[_MOST_ROWS:] for found in by_module[row.module]]
    return [*made[:_MOST_ROWS], _row(None, len(made) - _MOST_ROWS, rest)]


def _row(name: str | None, others: int, found: Sequence[ModuleBytes]) -> ModuleRow:
    sizes: Mapping[Category, int] = {
        category: sum(part.allocated_bytes for part in found if part.category is category) for category in Category
    }
    parts = tuple((category, size) for category, size in sizes.items() if size)
    return ModuleRow(name, others, parts, sum(sizes.values()), sum(part.blocks for part in found))
