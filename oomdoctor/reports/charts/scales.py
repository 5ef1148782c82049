"""Values along the edges of a plot: where they lie, and which of them are worth a label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from oomdoctor.units import format_size

SCALE: Final = 1000
"""Units of a plot's width and height."""

_MOST_LEVELS: Final = 5
_MOST_COUNTS: Final = 8
_ROUND: Final = (1, 2, 5)  # and ten times these, and so on


@dataclass(frozen=True, slots=True)
class Scale:
    """A range of values along an edge; what is outside of it lies at the nearer end.

    Attributes:
        low: Value at the beginning.
        high: Value at the end, above `low`.
        is_log: Whether equal steps are equal factors; `low` is above 0 then.
    """

    low: float
    high: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Distance of a value from the beginning, in units of the plot."""
        inside = min(max(value, self.low), self.high)
        if self.is_log:
            share = math.log(inside / self.low) / math.log(self.high / self.low)
        else:
            share = (inside - self.low) / (self.high - self.low)
        return round(share * SCALE, 1)

    def below_top(self, value: float) -> float:
        """Distance of a value from the upper edge, where the scale goes up."""
        return round(SCALE - self.at(value), 1)


def sizes(highest_bytes: float) -> Scale:
    """The scale of memory, from nothing to a little above `highest_bytes`."""
    return Scale(0, max(highest_bytes, 1) * 1.06)


def round_sizes(scale: Scale) -> list[int]:
    """Sizes that are powers of two times each other's distance, so that they read well in MiB and GiB."""
    step = 1
    while scale.high // step > _MOST_LEVELS:
        step *= 2
    return [step * number for number in range(1, math.ceil(scale.high / step))]


def size_label(size_bytes: int) -> str:
    """A round size as short as can be, such as `8 GiB`."""
    return format_size(size_bytes).replace(".00 ", " ")


def round_counts(scale: Scale) -> list[int]:
    """Whole numbers that are worth a label: powers of two on a logarithmic scale, else 5, 10, 15 and the like."""
    return _powers(scale) if scale.is_log else _multiples(scale)


def _multiples(scale: Scale) -> list[int]:
    step = next(
        digit * 10**power
        for power in range(400)
        for digit in _ROUND
        if (scale.high - scale.low) / (digit * 10**power) <= _MOST_COUNTS
    )
    # Floor division stays exact where a float would not.
    first = max(1, -int(-scale.low // step))
    return [step * number for number in range(first, int(scale.high // step) + 1)]


def _powers(scale: Scale) -> list[int]:
    exponents = range(max(0, math.ceil(math.log2(scale.low))), math.floor(math.log2(scale.high)) + 1)
    return [2**exponent for exponent in exponents[:: max(1, -(-len(exponents) // _MOST_COUNTS))]]
