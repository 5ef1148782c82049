"""What counts as worse of two memories at one micro-batch, whatever is known of what they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.checking.baseline import wording
from oomdoctor.results import FigureKind, Movement
from oomdoctor.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.checking.baseline.figures import MemoryFigures
    from oomdoctor.checking.baseline.trials import TrialFigures

_SEGMENT_BYTES: Final = 20 * MIB
_NEGLIGIBLE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory then and now.

    Attributes:
        before: The baseline's.
        after: That of now.
        tolerance: Share by which a figure may be worse.
    """

    before: MemoryFigures | TrialFigures
    after: MemoryFigures | TrialFigures
    tolerance: float

    @property
    def floor(self) -> float:
        """Bytes below which a part of the peak moves nothing."""
        return _NEGLIGIBLE * self.tolerance * self.before.peak_allocated_bytes

    def is_worse(self, before: int, after: int, floor: float) -> bool:
        """Whether a figure grew beyond the tolerance, and by more than a floor in bytes."""
        return after - before > max(self.tolerance * before, floor)

    def is_part_worse(self, before: int, after: int) -> bool:
        """Whether a part of memory fails the check; none does on the way to a lower peak."""
        peak = self.before.peak_allocated_bytes
        is_better = peak - self.after.peak_allocated_bytes > self.tolerance * peak
        return not is_better and self.is_worse(before, after, self.floor)

    def peaks(self) -> Iterator[Movement]:
        """How the peaks moved."""
        for name, floor in (("allocated", 0), ("reserved", _SEGMENT_BYTES)):
            before, after = (getattr(side, f"peak_{name}_bytes") for side in (self.before, self.after))
            if before != after:
                text = wording.peak(name, before, after, self.after)
                is_beyond = self.is_worse(before, after, floor)
                yield Movement(FigureKind.PEAK, f"peak {name}", before, after, is_beyond, text)
