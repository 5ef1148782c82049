"""Training steps and memory, as logs of many trainers print them, and whether memory grows from step to step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from oomdoctor.units import GIB, KIB, MIB, TIB

_STEP: Final = re.compile(
    r"(?<![a-z])(?:global[_ ]?step|num[_ ]?updates?|iteration|iters?|steps?|update|batch|it|itr)\b[\"']?"
    r"\s{0,4}[:=#]?\s{0,4}[\"'(\[]?\s{0,4}(\d{1,12})(?![\d.]*[.]\d|\d*\s?(?:it)?/s|\d*\s?[kmg]?i?b\b)",
    re.IGNORECASE,
)
_EPOCH_AND_STEP: Final = re.compile(
    r"(?:epoch|train|test|val)\b[\"']?[ :=\[(]{0,4}(\d{1,6})\]?(?:\s?/\s?\d{1,6}\]?)?[\s:,]{0,4}"
    r"[\[(]\s{0,6}(\d{1,9})\s?/\s?(\d{1,9})\s?[\])(]",
    re.IGNORECASE,
)
_STEPS_AFTER: Final = re.compile(
    r"(?:\bafter (\d{1,12}) (?:iterations|steps)|(\d{1,12})\s?/\s{0,4}\d{1,12} (?:batches|steps|iterations))\b"
)
_PROGRESS_BAR: Final = re.compile(r"\|\s{0,8}(\d{1,12})/(\d{1,12}) \[")
_OF_TOTAL: Final = re.compile(r"\[\s{0,8}(\d{1,12})\s?/\s?(\d{1,12})\]")
_ULTRALYTICS: Final = re.compile(r"\s{0,12}(\d{1,6})/(\d{1,6})\s{2,12}(\d{1,6}(?:\.\d{1,6})?)([GM])\b")

_UNIT: Final = r"(?:[KMGT]i?B?|bytes|B)\b"
_MEMORY: Final = re.compile(
    r"(?P<label>(?:\b|_|/)(?:mem(?:ory)?|vram|(?:max[ _])?(?:alloc(?:ated)?|reserved))"
    r"(?:[ _.]?(?:mem(?:ory)?|allocated|alloc|reserved|cached|used|usage|use|peak|max|footprint|consumption))*)"
    rf"(?:[ _]?[(\[]?(?P<label_unit>{_UNIT})[)\]]?)?[\"']?"
    r"(?:\s{0,3}\|\s{0,3}(?P<part>(?:max )?(?:allocated|reserved)))?"
    rf"\s{{0,4}}[:=|]?\s{{0,4}}[\"'(]?(?P<value>\d{{1,18}}(?:\.\d{{1,18}})?)\s?(?P<unit>{_UNIT})?(?![\d.]*[%\d])",
    re.IGNORECASE,
)
_OTHER_MEMORY: Final = re.compile(
    r"(?:cpu|host|ram|sys(?:tem)?|shared|free|total|limit|virtual)[ _.:/]{0,3}$", re.IGNORECASE
)
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
    return min(found, key=_distance_from_tensors, default=None)


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


def _distance_from_tensors(reading: MemoryReading) -> int:
    is_whole = "reserved" in reading.label or "cached" in reading.label
    is_peak = "max" in reading.label or "peak" in reading.label
    return 2 * is_whole + is_peak
