"""Where versions of PyTorch's allocator differ, each difference with a name.

Source: c10/cuda/CUDACachingAllocator.cpp, c10/cuda/CUDAAllocatorConfig.cpp and c10/core/AllocatorConfig.cpp. The oldest
and the newest are held to PyTorch itself, 2.6 and 2.15; between them only the sources and printed messages were seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

_OLD_PAGE: Final = "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables"
_NEW_PAGE: Final = (
    "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the allocator of one version does differently from another's.

    Attributes:
        variable: Environment variable that the out-of-memory message advises to set.
        page: Page of the documentation that it names.
        whole_fraction_limits: Whether a memory fraction of 1.0 is a limit at all.
        rest_of_divisions_begins_late: Whether `>` in `roundup_power2_divisions` leaves the last interval alone.
        prefers_older_segments: Whether, of free blocks of the same size, the one of the segment that was had first is
            taken; otherwise the one with the lowest address.
        knows_address_space: Whether addresses of expandable segments are thought of as something that can run out:
            nothing is reserved for a request that no segment can hold, and the message is another.
        reads_card_once: Whether the card's total is looked up at the start and never again.
        unified_settings: Whether `PYTORCH_ALLOC_CONF` is read, and keys that came with it.
        counts_rejections: Whether the statistics have what came with `throw_on_cudamalloc_oom`.
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


OLDEST: Final = Rules(
    variable="PYTORCH_CUDA_ALLOC_CONF",
    page=_OLD_PAGE,
    whole_fraction_limits=True,
    rest_of_divisions_begins_late=False,
    prefers_older_segments=False,
    knows_address_space=False,
    reads_card_once=False,
    unified_settings=False,
    counts_rejections=False,
)
"""torch 2.6 to 2.8."""

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
_BY_VERSION: Final = (((2, 9), OLDEST), ((2, 11), _SINCE_2_9), ((2, 13), _SINCE_2_11), ((2, 14), _SINCE_2_13))
"""Rules by the first version that they do not hold for."""


def rules_of(version: str) -> Rules:
    """The rules of a version of torch.

    Args:
        version: As `torch.__version__` gives it, such as `2.15.0+cu132`; what is no version is taken for the newest.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    number = (int(match[1]), int(match[2])) if match else (99, 0)
    return next((rules for end, rules in _BY_VERSION if number < end), NEWEST)
