"""Whether memory grows over training steps: a series of readings for each process and figure, thinned as it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.text.steps import read_memory, read_step
from oomdoctor.results import MemoryTrend
from oomdoctor.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_SERIES: Final = 64
_MOST_READINGS: Final = 2048  # of a series; every second one is dropped where there are more

_FEWEST_READINGS: Final = 5
_WARM_UP_SHARE: Final = 5  # one part in so many of the steps is warm-up
_PARTS: Final = 8
_RISING_SHARE: Final = 0.7  # of the parts must end higher than the one before
_LARGEST_JUMP_SHARE: Final = 0.6  # one jump that makes up more of the rise is no growth
_SMALLEST_RISE_SHARE: Final = 100
_SMALLEST_RISE_BYTES: Final = 8 * MIB


@dataclass(slots=True)
class _Series:
    """Readings of one figure, as pairs of step and bytes; steps that begin anew are counted on."""

    points: list[tuple[int, int]] = field(default_factory=list)
    seen: int = 0
    _every: int = 1
    _before: int = 0
    _last: int | None = None
    _latest: tuple[int, int] | None = None

    def add(self, step: int | None, used_bytes: int) -> None:
        """Add a reading; without a step it is the next one."""
        number = step if step is not None else (0 if self._last is None else self._last + 1)
        if self._last is not None and number < self._last:
            self._before += self._last
        self._last = number
        self._latest = (self._before + number, used_bytes)
        if self.seen % self._every == 0:
            self.points.append(self._latest)
        self.seen += 1
        if len(self.points) > _MOST_READINGS:
            self.points, self._every = self.points[::2], 2 * self._every

    def all_points(self) -> list[tuple[int, int]]:
        """The points that are kept, the latest one included."""
        if self._latest is None or self.points[-1] == self._latest:
            return self.points
        return [*self.points, self._latest]


class TrendReader:
    """Reads steps and memory from lines of a log.

    Attributes:
        step: The latest training step.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self._series: dict[tuple[int | None, str], _Series] = {}

    def add(self, line: str, rank: int | None = None) -> None:
        """Read a line, without its prefixes."""
        step = read_step(line)
        if step is not None:
            self.step = step
        reading = read_memory(line)
        if reading is None:
            return
        key = (rank, reading.label)
        if key in self._series or len(self._series) < _MOST_SERIES:
            self._series.setdefault(key, _Series()).add(step if step is not None else self.step, reading.used_bytes)

    def trend(self) -> MemoryTrend | None:
        """Judge the figure that tells most: one that grows before one that does not, then the one read most often."""
        trends = [_judge(series) for series in self._series.values()]
        return max(trends, key=lambda trend: (trend.growing, trend.readings), default=None)


def judge_readings(readings: Iterable[tuple[int, int]]) -> MemoryTrend | None:
    """Judge pairs of step and bytes that somebody else read; None where there are none."""
    series = _Series()
    for step, used_bytes in readings:
        series.add(step, used_bytes)
    return _judge(series) if series.seen else None


def _judge(series: _Series) -> MemoryTrend:
    points = series.all_points()
    rate = _bytes_per_step(points)
    return MemoryTrend(
        readings=series.seen,
        first_step=points[0][0],
        last_step=points[-1][0],
        first_bytes=points[0][1],
        last_bytes=points[-1][1],
        growing=rate > 0,
        bytes_per_step=rate,
    )


def _bytes_per_step(points: list[tuple[int, int]]) -> int:
    """Tell how fast memory grows; 0 where it does not.

    What counts is the floor: the lowest reading of each part of the run. It does not rise with a saw-tooth, with noise
    or on a plateau, however often single readings do.
    """
    steady = points[max(1, len(points) // _WARM_UP_SHARE) :]
    if len(points) < _FEWEST_READINGS or steady[-1][0] == steady[0][0]:
        return 0
    parts = _split(steady, min(_PARTS, len(steady)))
    floors = [min(used for _, used in part) for part in parts]
    rises = [after - before for before, after in pairwise(floors)]
    rise = floors[-1] - floors[0]
    if rise < max(_SMALLEST_RISE_BYTES, floors[0] // _SMALLEST_RISE_SHARE):
        return 0
    is_steady = (
        sum(step > 0 for step in rises) >= _RISING_SHARE * len(rises) and max(rises) <= _LARGEST_JUMP_SHARE * rise
    )
    steps = median_low([step for step, _ in parts[-1]]) - median_low([step for step, _ in parts[0]])
    return max(1, round(rise / steps)) if is_steady and steps > 0 else 0


def _split(points: list[tuple[int, int]], parts: int) -> list[list[tuple[int, int]]]:
    cuts = [len(points) * part // parts for part in range(parts + 1)]
    return [points[first:last] for first, last in pairwise(cuts)]
