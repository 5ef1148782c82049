"""The allocator's settings, its sizes, and the rules that differ between versions of PyTorch.

The rules of 2.6 and 2.15 are compared with PyTorch itself; between them only the sources and messages were seen.

Source: `get_allocation_size` in c10/cuda/CUDACachingAllocator.cpp; `parseArgs` of c10/cuda/CUDAAllocatorConfig.cpp, and
of c10/core/AllocatorConfig.cpp in newer versions; torch 2.6 to 2.15.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.agent.allocator_blocks import DIVISIONS, LARGEST_SMALL, NO_LIMIT, SMALL_SEGMENT
from oomdoctor.errors import NoAnswerError, UsageError
from oomdoctor.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


LARGE_SEGMENT: Final = 20 * MIB
"""Bytes that the driver is asked for where the large pool has no block, for requests below `SMALLEST_OWN_SEGMENT`."""
SMALLEST_OWN_SEGMENT: Final = 10 * MIB
"""Rounded requests from here on have a segment of their own size."""
SEGMENT_STEP: Final = 2 * MIB
"""Segments of their own size are rounded up to a multiple of this."""


def segment_size(size: int, large_segment: int = LARGE_SEGMENT) -> int:
    """Return the bytes that the driver is asked for where no block is free.

    Args:
        size: Bytes of the block, rounded.
        large_segment: `large_segment_size_mb`, in bytes.
    """
    if size <= LARGEST_SMALL:
        return SMALL_SEGMENT
    if size < SMALLEST_OWN_SEGMENT:
        return large_segment
    return -(-size // SEGMENT_STEP) * SEGMENT_STEP


_OLD_PAGE: Final = "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables"
_NEW_PAGE: Final = (
    "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
)


@dataclass(frozen=True, slots=True)
class Rules:
    """The differences between the allocator of one version and others.

    Attributes:
        variable: Environment variable that the out-of-memory message advises to set.
        page: Page of the documentation that it names.
        whole_fraction_limits: Whether a memory fraction of 1.0 is a limit.
        rest_of_divisions_begins_late: Whether `>` in `roundup_power2_divisions` excludes the last interval.
        prefers_older_segments: Whether, of free blocks of the same size, that of the oldest segment is taken; otherwise
            that with the lowest address.
        knows_address_space: Whether addresses of expandable segments can run out: nothing is reserved for a request
            larger than any segment, and the message differs.
        reads_card_once: Whether the card's total is read at the start only.
        unified_settings: Whether `PYTORCH_ALLOC_CONF` is read, and its keys.
        counts_rejections: Whether the statistics count requests that `throw_on_cudamalloc_oom` rejects.
    """

    variable: str
    page: str
    whole_fraction_limits: bool
    rest_of_divisions_begins_late: bool
    prefers_older_segments: bool
    knows_address_space: bool
    reads_card_once: bool
    unified_settings: bool
    counts_rejections: bool


NEWEST: Final = Rules(
    variable="PYTORCH_CUDA_ALLOC_CONF",
    page=_NEW_PAGE,
    whole_fraction_limits=False,
    rest_of_divisions_begins_late=True,
    prefers_older_segments=True,
    knows_address_space=True,
    reads_card_once=True,
    unified_settings=True,
    counts_rejections=True,
)
"""torch 2.14 and 2.15."""

_SINCE_2_13: Final = replace(NEWEST, knows_address_space=False)
_SINCE_2_11: Final = replace(_SINCE_2_13, prefers_older_segments=False, counts_rejections=False)
_SINCE_2_9: Final = replace(_SINCE_2_11, variable="PYTORCH_ALLOC_CONF", page=_OLD_PAGE)
OLDEST: Final = replace(
    _SINCE_2_9,
    variable="PYTORCH_CUDA_ALLOC_CONF",
    whole_fraction_limits=True,
    rest_of_divisions_begins_late=False,
    reads_card_once=False,
    unified_settings=False,
)
"""torch 2.6 to 2.8."""
_BY_VERSION: Final = (((2, 9), OLDEST), ((2, 11), _SINCE_2_9), ((2, 13), _SINCE_2_11), ((2, 14), _SINCE_2_13))
"""Rules by the first version to which they do not apply."""


def rules_of(version: str) -> Rules:
    """Return the rules of a version of torch.

    Args:
        version: `torch.__version__`, such as `2.15.0+cu132`; a text that is no version counts as the newest.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    number = (int(match[1]), int(match[2])) if match else (99, 0)
    return next((rules for end, rules in _BY_VERSION if number < end), NEWEST)


_VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """The allocator's settings.

    Attributes:
        largest_split: `max_split_size_mb` in bytes: blocks from here on are not split; `NO_LIMIT` where it is not set.
        largest_rounding: `max_non_split_rounding_mb` in bytes: the most that an unsplit block may exceed a request.
        large_segment: `large_segment_size_mb` in bytes.
        divisions: `roundup_power2_divisions` from 1 MiB on; empty where none are set.
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


def settings_from_environment(environment: Mapping[str, str], rules: Rules = NEWEST) -> AllocatorSettings:
    """Return the settings of a process with this environment.

    Raises:
        UsageError: PyTorch refuses them.
        NoAnswerError: They ask for an allocator that is not simulated.
    """
    names = _VARIABLES if rules.unified_settings else _VARIABLES[:1]
    name = next((name for name in names if name in environment), None)
    return AllocatorSettings() if name is None else parse_settings(environment[name], rules, name=name)


def parse_settings(text: str, rules: Rules = NEWEST, *, name: str = _VARIABLES[0]) -> AllocatorSettings:
    """Read settings such as `expandable_segments:True,roundup_power2_divisions:[256:1,>:4]`.

    Args:
        text: Keys and values.
        rules: The rules of the version of torch.
        name: The variable of the text, for an error.

    Raises:
        UsageError: PyTorch refuses them.
        NoAnswerError: They ask for an allocator that is not simulated.
    """
    try:
        return _Parser(text, rules).settings()
    except _RefusedSettingsError as wrong:
        raise UsageError(f"PyTorch refuses `{name}={text}`: {wrong}") from None


class _RefusedSettingsError(Exception):
    """The text is not valid for PyTorch."""


class _Parser:
    def __init__(self, text: str, rules: Rules) -> None:
        # Commas separate, except those inside brackets.
        items = re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", re.sub(r"\s", "", text))
        self.pairs = [_pair(item) for item in items]
        self.rules = rules

    def settings(self) -> AllocatorSettings:
        # The size of large segments limits the others, whatever its position.
        found = AllocatorSettings()
        for key, value in self.pairs:
            if key == "large_segment_size_mb" and self.rules.unified_settings:
                size = _megabytes(value, key, SMALLEST_OWN_SEGMENT + MIB)
                found = replace(found, large_segment=size, largest_rounding=size)
        for key, value in self.pairs:
            found = replace(found, **self.read(key, value, found))
        return found

    def read(self, key: str, value: str, found: AllocatorSettings) -> dict[str, Any]:
        if key in _READERS:
            return _READERS[key](value, found, self.rules)
        if self.rules.unified_settings and key in _NEW_READERS:
            return _NEW_READERS[key](value, found, self.rules)
        known = _IGNORED_KEYS | (_NEW_IGNORED_KEYS if self.rules.unified_settings else frozenset())
        if key not in known:
            raise _RefusedSettingsError(f"`{key}` is none of its keys")
        return {}


def _pair(item: str) -> tuple[str, str]:
    key, colon, value = item.partition(":")
    if not colon or not value:
        raise _RefusedSettingsError(f"`{item}` is not a key, a colon and a value")
    return key, value


def _number(value: str) -> int:
    match = re.match(r"\d+", value)
    if match is None:
        raise _RefusedSettingsError(f"`{value}` is not a number")
    return int(match[0])


def _megabytes(value: str, key: str, least: int) -> int:
    size = _number(value) * MIB
    if size < least:
        raise _RefusedSettingsError(f"`{key}` must be {least // MIB} or more")
    return min(size, NO_LIMIT // MIB * MIB)


def _boolean(value: str) -> bool:
    if value not in {"True", "False"}:
        raise _RefusedSettingsError(f"`{value}` is neither `True` nor `False`")
    return value == "True"


def _fraction(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise _RefusedSettingsError(f"`{value}` is not a number") from None


def _above_segment(value: str, key: str, found: AllocatorSettings, rules: Rules) -> int:
    # Before 2.9 the size had to be larger than a large segment.
    return _megabytes(value, key, found.large_segment + (0 if rules.unified_settings else MIB))


def _collection_threshold(value: str, _: AllocatorSettings, __: Rules) -> dict[str, Any]:
    threshold = _fraction(value)
    if not 0 < threshold < 1:
        raise _RefusedSettingsError("`garbage_collection_threshold` must be above 0 and below 1")
    return {"collection_threshold": threshold}


def _memory_fraction(value: str, _: AllocatorSettings, __: Rules) -> dict[str, Any]:
    fraction = _fraction(value)
    if not 0 <= fraction <= 1:
        raise _RefusedSettingsError("`per_process_memory_fraction` must be 0 to 1")
    return {"memory_fraction": fraction}


def _backend(value: str, _: AllocatorSettings, __: Rules) -> dict[str, Any]:
    if value == "cudaMallocAsync":
        raise NoAnswerError(
            "PyTorch's own allocator is simulated, and `backend:cudaMallocAsync` asks for CUDA's",
            hint="unset it in `PYTORCH_CUDA_ALLOC_CONF`, or probe on a machine with a CUDA GPU",
        )
    if value != "native":
        raise _RefusedSettingsError("`backend` must be `native` or `cudaMallocAsync`")
    return {}


def _divisions(value: str, _: AllocatorSettings, rules: Rules) -> dict[str, Any]:
    if not value.startswith("["):
        return {"divisions": (_power_of_two(value),) * DIVISIONS}
    divisions: list[int] = [0] * DIVISIONS
    last: int | None = None
    for item in value[1:].removesuffix("]").split(","):
        start, colon, count = item.partition(":")
        if not colon:
            raise _RefusedSettingsError(f"`{item}` is not a size in MiB, a colon and a number of divisions")
        divisions, last = _with_interval(divisions, last, start, count, rules)
    return {"divisions": tuple(divisions)}


def _with_interval(
    divisions: list[int], last: int | None, start: str, count: str, rules: Rules
) -> tuple[list[int], int | None]:
    """Return the divisions with those of one interval; the first interval covers all smaller sizes too."""
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
        raise _RefusedSettingsError(f"in `roundup_power2_divisions`, `{value}` is no power of two")
    return number


_READERS: Final[dict[str, Callable[[str, AllocatorSettings, Rules], dict[str, Any]]]] = {
    "max_split_size_mb": lambda value, *at: {"largest_split": _above_segment(value, "max_split_size_mb", *at)},
    "max_non_split_rounding_mb": lambda value, *at: {
        "largest_rounding": _above_segment(value, "max_non_split_rounding_mb", *at)
    },
    "garbage_collection_threshold": _collection_threshold,
    "roundup_power2_divisions": _divisions,
    "expandable_segments": lambda value, _, __: {"expandable": _boolean(value)},
    "backend": _backend,
}
_NEW_READERS: Final[dict[str, Callable[[str, AllocatorSettings, Rules], dict[str, Any]]]] = {
    "large_segment_size_mb": lambda _, __, ___: {},
    "per_process_memory_fraction": _memory_fraction,
    "throw_on_cudamalloc_oom": lambda value, _, __: {"rejects_early": _boolean(value)},
}
# These change host memory, locks, graphs or addresses.
_IGNORED_KEYS: Final = frozenset(
    {
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "pinned_num_register_threads",
        "pinned_use_background_threads",
    }
)
_NEW_IGNORED_KEYS: Final = frozenset(
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
