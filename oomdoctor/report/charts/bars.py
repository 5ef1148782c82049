"""Bars: memory by module, and the micro-batches of an accumulation plan."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from oomdoctor.report.charts.scales import SCALE, Words, longest_fitting
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


def module_rows(modules: Iterable[ModuleBytes]) -> list[ModuleRow]:
    """Return the largest modules first, and last the rest of them, so that the rows sum to the whole."""
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


_MOST_BLOCKS: Final = 16


@dataclass(frozen=True, slots=True)
class MicroBatchBar:
    """Micro-batches of one size, one after another.

    Attributes:
        left: Where the block begins, in units of the row.
        width: How wide it is, in the same units.
        micro_batch: Samples in each; None where several sizes are one block.
        steps: How many.
        words: What it says, as far as there is room.
    """

    left: float
    width: float
    micro_batch: int | None
    steps: int
    words: Words


def micro_batch_bars(micro_batches: Sequence[int]) -> tuple[MicroBatchBar, ...]:
    """Return the plan's micro-batches in order: each its own block, or those of a size as one where there are many."""
    runs = [(size, 1) for size in micro_batches]
    if len(runs) > _MOST_BLOCKS:
        runs = [(size, len(list(run))) for size, run in groupby(micro_batches)]
    # Only a plan from elsewhere has so many sizes.
    rest = runs[_MOST_BLOCKS:]
    whole = max(sum(micro_batches), 1)
    return tuple(_placed(runs[:_MOST_BLOCKS], rest, whole))


def _placed(runs: Iterable[tuple[int, int]], rest: Sequence[tuple[int, int]], whole: int) -> Iterable[MicroBatchBar]:
    done = 0
    for size, steps in runs:
        yield _block(done, size * steps, whole, size, steps)
        done += size * steps
    if rest:
        yield _block(done, sum(size * steps for size, steps in rest), whole, None, sum(steps for _, steps in rest))


def _block(done: int, samples: int, whole: int, size: int | None, steps: int) -> MicroBatchBar:
    left, right = (round(edge * SCALE / whole, 1) for edge in (done, done + samples))
    width = round(right - left, 1)
    return MicroBatchBar(left, width, size, steps, longest_fitting(_names(size, steps), width))


def _names(size: int | None, steps: int) -> tuple[str, ...]:
    if size is None:
        return (f"{steps} more", "...")
    return (str(size),) if steps == 1 else (f"{steps} \u00d7 {size}", f"{steps}\u00d7")
