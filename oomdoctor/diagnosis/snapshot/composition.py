"""What memory is made of at one moment: by category, by line, and the largest blocks."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from oomdoctor.results import Category, CategoryBytes, Composition, LiveAllocation, MemoryLine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oomdoctor.diagnosis.snapshot.labelled import Labelled
    from oomdoctor.results import SourceLine

MOST_LINES: Final = 20
_MOST_BLOCKS: Final = 20


def compose(live: Sequence[Labelled], reserved_bytes: int) -> Composition:
    """Sum up live blocks.

    Args:
        live: The blocks that are live at the moment.
        reserved_bytes: Bytes held from the driver then.
    """
    by_category: Counter[Category] = Counter()
    for block in live:
        by_category[block.category] += block.lifetime.size
    return Composition(
        allocated_bytes=sum(by_category.values()),
        reserved_bytes=reserved_bytes,
        categories=tuple(CategoryBytes(category, size) for category, size in _largest_first(by_category)),
        lines=_lines(live),
    )


def largest(live: Iterable[Labelled]) -> tuple[LiveAllocation, ...]:
    """The largest of some live blocks, those that are alike as one, the lowest address first where sizes are equal."""
    blocks = sorted(live, key=lambda block: (-block.lifetime.size, block.lifetime.address))
    alike = Counter((block.lifetime.size, block.category, block.place, block.innermost) for block in blocks)
    return tuple(LiveAllocation(*block, blocks=count) for block, count in list(alike.items())[:_MOST_BLOCKS])


def main_category(sizes: Counter[Category]) -> Category:
    """The category that most of some memory is of."""
    return _largest_first(sizes)[0][0]


def _lines(live: Iterable[Labelled]) -> tuple[MemoryLine, ...]:
    sizes: defaultdict[SourceLine | None, Counter[Category]] = defaultdict(Counter)
    blocks: Counter[SourceLine | None] = Counter()
    for block in live:
        sizes[block.place][block.category] += block.lifetime.size
        blocks[block.place] += 1
    lines = [MemoryLine(place, main_category(of), sum(of.values()), blocks[place]) for place, of in sizes.items()]
    lines.sort(key=lambda line: (-line.allocated_bytes, *_order(line.place)))
    return tuple(lines[:MOST_LINES])


def _order(place: SourceLine | None) -> tuple[str, int]:
    return ("", 0) if place is None else (place.path, place.line)


def _largest_first(sizes: Counter[Category]) -> list[tuple[Category, int]]:
    order = list(Category)
    return sorted(sizes.items(), key=lambda item: (-item[1], order.index(item[0])))
