"""The allocator's settings, from the text of `PYTORCH_CUDA_ALLOC_CONF`.

Source: `parseArgs` of c10/cuda/CUDAAllocatorConfig.cpp, and of c10/core/AllocatorConfig.cpp where it moved to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.allocator.rounding import DIVISIONS, LARGE_SEGMENT, NO_LIMIT, SMALLEST_OWN_SEGMENT
from oomdoctor.allocator.rules import NEWEST, Rules
from oomdoctor.errors import NoAnswerError, UsageError
from oomdoctor.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the allocator is told.

    Attributes:
        largest_split: `max_split_size_mb` in bytes: blocks from here on are not split; `NO_LIMIT` where it is not set.
        largest_rounding: `max_non_split_rounding_mb` in bytes: what a block that is not split may have to spare.
        large_segment: `large_segment_size_mb` in bytes.
        divisions: `roundup_power2_divisions` from 1 MiB on; nothing where none are set.
        collection_threshold: `garbage_collection_threshold`; 0 for no garbage collection.
        expandable: `expandable_segments`.
        memory_fraction: `per_process_memory_fraction`.
        rejects_early: `throw_on_cudamalloc_oom`.
    """

    largest_split: int = NO_LIMIT
    largest_rounding: int = LARGE_SEGMENT
    large_segment: int = LARGE_SEGMENT
    divisions: tuple[int, ...] = ()
    collection_threshold: float = 0.0
    expandable: bool = False
    memory_fraction: float = 1.0
    rejects_early: bool = False


def settings_of(environment: Mapping[str, str], rules: Rules = NEWEST) -> Settings:
    """The settings that a process with this environment would have.

    Raises:
        UsageError: PyTorch refuses them.
        NoAnswerError: They ask for an allocator that is not simulated.
    """
    names = _VARIABLES if rules.unified_settings else _VARIABLES[:1]
    name = next((name for name in names if name in environment), None)
    return Settings() if name is None else parse_settings(environment[name], rules, name=name)


def parse_settings(text: str, rules: Rules = NEWEST, *, name: str = _VARIABLES[0]) -> Settings:
    """Read settings such as `expandable_segments:True,roundup_power2_divisions:[256:1,>:4]`.

    Args:
        text: Keys and values.
        rules: Those of the version of torch.
        name: Where the text was had from, for an error.

    Raises:
        UsageError: PyTorch refuses them.
        NoAnswerError: They ask for an allocator that is not simulated.
    """
    try:
        return _Parser(text, rules).settings()
    except _WrongError as wrong:
        raise UsageError(f"PyTorch refuses `{name}={text}`: {wrong}") from None


class _WrongError(Exception):
    """The text is not what PyTorch reads."""


class _Parser:
    def __init__(self, text: str, rules: Rules) -> None:
        self.pairs = [_pair(item) for item in _items(text)]
        self.rules = rules

    def settings(self) -> Settings:
        # The size of large segments decides what the others may be, wherever it stands.
        found = Settings()
        for key, value in self.pairs:
            if key == "large_segment_size_mb" and self.rules.unified_settings:
                size = _megabytes(value, key, SMALLEST_OWN_SEGMENT + MIB)
                found = replace(found, large_segment=size, largest_rounding=size)
        for key, value in self.pairs:
            found = replace(found, **self.read(key, value, found))
        return found

    def read(self, key: str, value: str, found: Settings) -> dict[str, Any]:
        if key in _READERS:
            return _READERS[key](value, found, self.rules)
        if self.rules.unified_settings and key in _NEW_READERS:
            return _NEW_READERS[key](value, found, self.rules)
        known = _WITHOUT_EFFECT | (_NEW_WITHOUT_EFFECT if self.rules.unified_settings else frozenset())
        if key not in known:
            raise _WrongError(f"`{key}` is none of its keys")
        return {}


def _items(text: str) -> list[str]:
    """What stands between commas outside of brackets."""
    return [item for item in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", re.sub(r"\s", "", text)) if item]


def _pair(item: str) -> tuple[str, str]:
    key, colon, value = item.partition(":")
    if not colon or not value:
        raise _WrongError(f"`{item}` is not a key, a colon and a value")
    return key, value


def _number(value: str) -> int:
    match = re.match(r"\d+", value)
    if match is None:
        raise _WrongError(f"`{value}` is not a number")
    return int(match[0])


def _megabytes(value: str, key: str, least: int) -> int:
    size = _number(value) * MIB
    if size < least:
        raise _WrongError(f"`{key}` must be {least // MIB} or more")
    return min(size, NO_LIMIT // MIB * MIB)


def _truth(value: str) -> bool:
    if value not in {"True", "False"}:
        raise _WrongError(f"`{value}` is neither `True` nor `False`")
    return value == "True"


def _fraction(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise _WrongError(f"`{value}` is not a number") from None


def _largest_split(value: str, found: Settings, rules: Rules) -> dict[str, Any]:
    # Before 2.9 the size had to be larger than a large segment.
    least = found.large_segment + (0 if rules.unified_settings else MIB)
    return {"largest_split": _megabytes(value, "max_split_size_mb", least)}


def _largest_rounding(value: str, found: Settings, rules: Rules) -> dict[str, Any]:
    least = found.large_segment + (0 if rules.unified_settings else MIB)
    return {"largest_rounding": _megabytes(value, "max_non_split_rounding_mb", least)}


def _collection_threshold(value: str, _: Settings, __: Rules) -> dict[str, Any]:
    threshold = _fraction(value)
    if not 0 < threshold < 1:
        raise _WrongError("`garbage_collection_threshold` must be above 0 and below 1")
    return {"collection_threshold": threshold}


def _expandable(value: str, _: Settings, __: Rules) -> dict[str, Any]:
    return {"expandable": _truth(value)}


def _memory_fraction(value: str, _: Settings, __: Rules) -> dict[str, Any]:
    fraction = _fraction(value)
    if not 0 <= fraction <= 1:
        raise _WrongError("`per_process_memory_fraction` must be 0 to 1")
    return {"memory_fraction": fraction}


def _rejects_early(value: str, _: Settings, __: Rules) -> dict[str, Any]:
    return {"rejects_early": _truth(value)}


def _backend(value: str, _: Settings, __: Rules) -> dict[str, Any]:
    if value == "cudaMallocAsync":
        raise NoAnswerError(
            "PyTorch's own allocator is simulated, and `backend:cudaMallocAsync` asks for CUDA's",
            hint="unset it in `PYTORCH_CUDA_ALLOC_CONF`, or probe on a machine with a CUDA GPU",
        )
    if value != "native":
        raise _WrongError("`backend` must be `native` or `cudaMallocAsync`")
    return {}


def _divisions(value: str, _: Settings, rules: Rules) -> dict[str, Any]:
    if not value.startswith("["):
        return {"divisions": (_power_of_two(value),) * DIVISIONS}
    divisions: list[int] = [0] * DIVISIONS
    last: int | None = None
    for item in value[1:].removesuffix("]").split(","):
        start, colon, count = item.partition(":")
        if not colon:
            raise _WrongError(f"`{item}` is not a size in MiB, a colon and a number of divisions")
        divisions, last = _with_interval(divisions, last, start, count, rules)
    return {"divisions": tuple(divisions)}


def _with_interval(
    divisions: list[int], last: int | None, start: str, count: str, rules: Rules
) -> tuple[list[int], int | None]:
    """The divisions with those of one interval, which the first one gives to all smaller sizes too."""
    value = _power_of_two(count, or_none=True)
    if start == ">":
        begin = (last or 0) + (1 if rules.rest_of_divisions_begins_late else 0)
        return divisions[:begin] + [value] * (DIVISIONS - begin), last
    index = min(_power_of_two(start).bit_length() - 1, DIVISIONS - 1)
    if last is None:
        divisions = [value] * index + divisions[index:]
    return [*divisions[:index], value, *divisions[index + 1 :]], index


def _power_of_two(value: str, *, or_none: bool = False) -> int:
    number = _number(value)
    if number.bit_count() != 1 and not (or_none and number == 0):
        raise _WrongError(f"in `roundup_power2_divisions`, `{value}` is no power of two")
    return number


_READERS: Final[dict[str, Callable[[str, Settings, Rules], dict[str, Any]]]] = {
    "max_split_size_mb": _largest_split,
    "max_non_split_rounding_mb": _largest_rounding,
    "garbage_collection_threshold": _collection_threshold,
    "roundup_power2_divisions": _divisions,
    "expandable_segments": _expandable,
    "backend": _backend,
}
_NEW_READERS: Final[dict[str, Callable[[str, Settings, Rules], dict[str, Any]]]] = {
    "large_segment_size_mb": lambda _, __, ___: {},
    "per_process_memory_fraction": _memory_fraction,
    "throw_on_cudamalloc_oom": _rejects_early,
}
# What these change is host memory, locks, graphs or addresses.
_WITHOUT_EFFECT: Final = frozenset(
    {
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "pinned_num_register_threads",
        "pinned_use_background_threads",
    }
)
_NEW_WITHOUT_EFFECT: Final = frozenset(
    {
        "pinned_reserve_segment_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_max_cached_size_mb",
        "pinned_free_catch_all",
        "graph_capture_record_stream_reuse",
        "expandable_segments_reserve",
        "expandable_segments_reserve_by_class",
    }
)
