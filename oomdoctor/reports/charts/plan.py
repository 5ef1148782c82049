"""An accumulation plan as a row of blocks, each as wide as its samples."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from oomdoctor.reports.charts.labels import Words, longest_fitting
from oomdoctor.reports.charts.scales import SCALE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MOST_BLOCKS: Final = 16


@dataclass(frozen=True, slots=True)
class Block:
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


def blocks(micro_batches: Sequence[int]) -> tuple[Block, ...]:
    """The plan's micro-batches in order: each its own block, or those of a size as one where there are many."""
    runs = [(size, 1) for size in micro_batches]
    if len(runs) > _MOST_BLOCKS:
        runs = [(size, len(list(run))) for size, run in groupby(micro_batches)]
    # Only a plan from elsewhere has so many sizes.
    rest = runs[_MOST_BLOCKS:]
    whole = max(sum(micro_batches), 1)
    return tuple(_placed(runs[:_MOST_BLOCKS], rest, whole))


def _placed(runs: Iterable[tuple[int, int]], rest: Sequence[tuple[int, int]], whole: int) -> Iterable[Block]:
    done = 0
    for size, steps in runs:
        yield _block(done, size * steps, whole, size, steps)
        done += size * steps
    if rest:
        yield _block(done, sum(size * steps for size, steps in rest), whole, None, sum(steps for _, steps in rest))


def _block(done: int, samples: int, whole: int, size: int | None, steps: int) -> Block:
    left, right = (round(edge * SCALE / whole, 1) for edge in (done, done + samples))
    width = round(right - left, 1)
    return Block(left, width, size, steps, longest_fitting(_names(size, steps), width))


def _names(size: int | None, steps: int) -> tuple[str, ...]:
    if size is None:
        return (f"{steps} more", "...")
    return (str(size),) if steps == 1 else (f"{steps} \u00d7 {size}", f"{steps}\u00d7")
