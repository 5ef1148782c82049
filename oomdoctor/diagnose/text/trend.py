"""Training steps and memory as logs print them, and whether memory grows from step to step."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnose.tables import Patterns
from oomdoctor.results import MemoryTrend
from oomdoctor.units import GIB, KIB, MIB, TIB

if TYPE_CHECKING:
    from collections.abc import Iterable


_PATTERNS: Final = Patterns(__name__)
_STEP: Final = _PATTERNS("step", re.IGNORECASE)
_EPOCH_AND_STEP: Final = _PATTERNS("epoch_and_step", re.IGNORECASE)
_STEPS_AFTER: Final = _PATTERNS("steps_after")
_PROGRESS_BAR: Final = re.compile(r"\|\s{0,8}(\d{1,12})/(\d{1,12}) \[")
_OF_TOTAL: Final = re.compile(r"\[\s{0,8}(\d{1,12})\s?/\s?(\d{1,12})\]")
_ULTRALYTICS: Final = re.compile(r"\s{0,12}(\d{1,6})/(\d{1,6})\s{2,12}(\d{1,6}(?:\.\d{1,6})?)([GM])\b")

_MEMORY: Final = _PATTERNS("memory", re.IGNORECASE)
_OTHER_MEMORY: Final = _PATTERNS("other_memory", re.IGNORECASE)
_PEAK: Final = re.compile(r"(?:max|peak)[ _]?$", re.IGNORECASE)
_UNITS: Final = {"": 0, "B": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB}

_LONGEST_LINE: Final = 2000
_LARGEST_BYTES: Final = 1 << 50
_BYTES_FROM: Final = 10_000_000  # a bare number this large is bytes; a smaller one is MiB, or GiB with decimals


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Memory that a line tells.

    Attributes:
        label: What it is called, in lower case.
        used_bytes: How much; `GB` is read as `GiB`, which is what trainers that print it divide by.
    """

    label: str
    used_bytes: int


def read_step(line: str) -> int | None:
    """Read the number of the training step, counted through the epochs where the line tells their length."""
    line = line[:_LONGEST_LINE]
    if match := _EPOCH_AND_STEP.search(line):
        epoch, step, total = (int(number) for number in match.groups())
        return epoch * total + step if step <= total else step
    for pattern in (_STEP, _STEPS_AFTER, _PROGRESS_BAR, _OF_TOTAL, _ULTRALYTICS):
        if match := pattern.search(line):
            return int(match[1] or match[2])
    return None


def read_memory(line: str) -> MemoryReading | None:
    """Read the device memory in use; of several figures the one that is nearest to live tensors."""
    line = line[:_LONGEST_LINE]
    if match := _ULTRALYTICS.match(line):
        return _reading("gpu_mem", match[3], match[4])
    found = [reading for match in _MEMORY.finditer(line) if (reading := _of_match(match, line)) is not None]
    whole, peak = ("reserved", "cached"), ("max", "peak")
    return min(
        found,
        key=lambda one: 2 * any(word in one.label for word in whole) + any(word in one.label for word in peak),
        default=None,
    )


def _of_match(match: re.Match[str], line: str) -> MemoryReading | None:
    before = line[max(0, match.start() - 16) : match.start("label")]
    if _OTHER_MEMORY.search(before):
        return None
    peak = _PEAK.search(before)
    label = f"{peak[0] if peak else ''}{match['part'] or match['label']}".lower()
    return _reading(label.strip(" _/"), match["value"], match["unit"] or match["label_unit"] or "")


def _reading(label: str, value: str, unit: str) -> MemoryReading | None:
    number = Fraction(value)
    scale = _UNITS["" if not unit else unit[0].upper()]
    if scale == 0:
        scale = 1 if number >= _BYTES_FROM else GIB if "." in value and number < KIB else MIB
    used = round(number * scale)
    return MemoryReading(label, used) if 0 < used <= _LARGEST_BYTES else None


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
    """Return the bytes that memory grows by in a step; 0 where it does not.

    What counts is the floor: the lowest reading of each part of the run. It does not rise with a saw-tooth, with noise
    or on a plateau, however often single readings do.
    """
    steady = points[max(1, len(points) // _WARM_UP_SHARE) :]
    if len(points) < _FEWEST_READINGS or steady[-1][0] == steady[0][0]:
        return 0
    count = min(_PARTS, len(steady))
    parts = [steady[first:last] for first, last in pairwise(len(steady) * part // count for part in range(count + 1))]
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
