"""Counters of the allocator, named as `torch.cuda.memory_stats` names them.

What changes with every allocation and free is counted in and counted out, and its peaks are taken only before something
is counted out: between two allocations nothing shrinks. Peaks of both pools together are no sum of their peaks.

Source: `DeviceStats` in c10/core/CachingDeviceAllocator.h and how c10/cuda/CUDACachingAllocator.cpp counts.
"""

from __future__ import annotations

from operator import add
from typing import Any


class Stat:
    """One number over time."""

    __slots__ = ("current", "decreased", "increased", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.increased = self.decreased = 0

    def increase(self, amount: int) -> None:
        """Count something in."""
        self.current += amount
        self.increased += amount
        if self.current > self.peak:  # noqa: PLR1730 - `max` takes three times as long
            self.peak = self.current

    def decrease(self, amount: int) -> None:
        """Count something out."""
        self.current -= amount
        self.decreased += amount

    def as_torch(self) -> dict[str, int]:
        """As `torch.cuda.memory_stats_as_nested_dict` gives it."""
        return {
            "current": self.current,
            "peak": self.peak,
            "allocated": self.increased,
            "freed": self.decreased,
        }


class PoolStatistics:
    """What is counted of one pool.

    Attributes:
        blocks_in: Blocks that were handed out, ever.
        blocks_out: Blocks that were freed, ever.
        bytes_in: Bytes of the blocks that were handed out.
        bytes_out: Bytes of the blocks that were freed.
        requested_in: Bytes that were asked for.
        requested_out: Bytes that were asked for, of blocks that can be used again.
        pending: Blocks that were freed and cannot be used again yet.
        pending_bytes: Their bytes.
    """

    __slots__ = (
        "base",
        "blocks_in",
        "blocks_out",
        "bytes_in",
        "bytes_out",
        "inactive_split",
        "inactive_split_bytes",
        "peaks",
        "pending",
        "pending_bytes",
        "requested_in",
        "requested_out",
        "reserved_bytes",
        "segments",
    )

    def __init__(self) -> None:
        self.blocks_in = self.blocks_out = 0
        self.bytes_in = self.bytes_out = 0
        self.requested_in = self.requested_out = 0
        self.pending = self.pending_bytes = 0
        self.peaks = [0] * 5
        self.base = [0] * 10
        self.segments = Stat()
        self.reserved_bytes = Stat()
        self.inactive_split = Stat()
        self.inactive_split_bytes = Stat()

    def current(self) -> list[int]:
        """Blocks, active blocks, bytes, active bytes and requested bytes that are in use."""
        blocks = self.blocks_in - self.blocks_out
        size = self.bytes_in - self.bytes_out
        requested = self.requested_in - self.requested_out
        return [blocks, blocks + self.pending, size, size + self.pending_bytes, requested]

    def totals(self) -> list[int]:
        """What was counted in of the same five, then what was counted out."""
        blocks_in, bytes_in = self.blocks_in, self.bytes_in
        counted_in = [blocks_in, blocks_in, bytes_in, bytes_in, self.requested_in]
        return [*counted_in, *(total - now for total, now in zip(counted_in, self.current(), strict=True))]


_COUNTED = ("allocation", "active", "allocated_bytes", "active_bytes", "requested_bytes")
_STATS = {
    "segment": "segments",
    "inactive_split": "inactive_split",
    "reserved_bytes": "reserved_bytes",
    "inactive_split_bytes": "inactive_split_bytes",
}


class Statistics:
    """What is counted of both pools together, and of the driver's calls.

    Args:
        small: What is counted of the small pool.
        large: What is counted of the large pool.

    Attributes:
        segments: Segments that the driver gave, expandable ones not counted.
        reserved_bytes: Bytes that the driver gave.
        inactive_split: Free blocks whose segment has other blocks.
        inactive_split_bytes: Their bytes.
        oversize_allocations: Blocks that are too large to be split.
        oversize_segments: Segments that are too large to be split.
        retries: How often everything was given back to try again.
        ooms: How often that did not help.
        synchronizations: How often all streams were waited for.
        driver_allocations: How often the driver gave memory.
        driver_frees: How often it got memory back.
        rejections: How often a request was refused before the driver was asked.
        grown: Whether something was handed out since the peaks were taken.
        counts_all: Whether all figures are kept; else only allocated and reserved bytes, which takes less time.
    """

    __slots__ = (
        "_large",
        "_peaks",
        "_small",
        "counts_all",
        "driver_allocations",
        "driver_frees",
        "grown",
        "inactive_split",
        "inactive_split_bytes",
        "ooms",
        "oversize_allocations",
        "oversize_segments",
        "rejections",
        "reserved_bytes",
        "retries",
        "segments",
        "synchronizations",
    )

    def __init__(self, small: PoolStatistics, large: PoolStatistics) -> None:
        self._small, self._large = small, large
        self._peaks = [0] * 5
        self.grown = False
        self.counts_all = True
        self.segments = Stat()
        self.reserved_bytes = Stat()
        self.inactive_split = Stat()
        self.inactive_split_bytes = Stat()
        self.oversize_allocations = Stat()
        self.oversize_segments = Stat()
        self.retries = self.ooms = self.rejections = 0
        self.synchronizations = self.driver_allocations = self.driver_frees = 0

    def settle(self) -> None:
        """Take the peaks, before something is counted out or somebody asks."""
        if not self.counts_all:
            self._settle_bytes()
            return
        small, large = self._small.current(), self._large.current()
        self.grown = False
        self._small.peaks = [*map(max, self._small.peaks, small)]
        self._large.peaks = [*map(max, self._large.peaks, large)]
        self._peaks = [*map(max, self._peaks, map(add, small, large))]

    def _settle_bytes(self) -> None:
        small, large = self._small, self._large
        size = small.bytes_in - small.bytes_out + large.bytes_in - large.bytes_out
        self.grown = False
        self._peaks[2] = max(self._peaks[2], size)

    def count_split(self, pool: PoolStatistics, blocks: int, size: int) -> None:
        """Count free blocks whose segment has other blocks, more of them or fewer, and their bytes."""
        if not self.counts_all:
            return
        for counted in (pool, self):
            if blocks > 0:
                counted.inactive_split.increase(blocks)
            elif blocks < 0:
                counted.inactive_split.decrease(-blocks)
            if size > 0:
                counted.inactive_split_bytes.increase(size)
            elif size < 0:
                counted.inactive_split_bytes.decrease(-size)

    def current(self, index: int) -> int:
        """One of `PoolStatistics.current` of both pools."""
        return self._small.current()[index] + self._large.current()[index]

    def peak(self, index: int) -> int:
        """The most that it was since the last reset."""
        self.settle()
        return self._peaks[index]

    def reset_peaks(self) -> None:
        """As `torch.cuda.reset_peak_memory_stats`."""
        self.grown = False
        self._small.peaks, self._large.peaks = self._small.current(), self._large.current()
        self._peaks = [*map(sum, zip(self._small.peaks, self._large.peaks, strict=True))]
        for stat in self._all_stats():
            stat.peak = stat.current

    def reset_totals(self) -> None:
        """As `torch.cuda.reset_accumulated_memory_stats`."""
        self._small.base, self._large.base = self._small.totals(), self._large.totals()
        for stat in self._all_stats():
            stat.increased = stat.decreased = 0
        self.retries = self.ooms = self.rejections = 0
        self.synchronizations = self.driver_allocations = self.driver_frees = 0

    def as_torch(self) -> dict[str, Any]:
        """As `torch.cuda.memory_stats_as_nested_dict` gives it, but for what is no count."""
        self.settle()
        kinds = {"all": self, "small_pool": self._small, "large_pool": self._large}
        return {
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
            "num_sync_all_streams": self.synchronizations,
            "num_device_alloc": self.driver_allocations,
            "num_device_free": self.driver_frees,
            "num_oom_rejections": self.rejections,
            **{name: self._counted(index) for index, name in enumerate(_COUNTED)},
            **{name: {kind: getattr(of, at).as_torch() for kind, of in kinds.items()} for name, at in _STATS.items()},
            "oversize_allocations": self.oversize_allocations.as_torch(),
            "oversize_segments": self.oversize_segments.as_torch(),
        }

    def _counted(self, index: int) -> dict[str, dict[str, int]]:
        small, large = _counted_of(self._small, index), _counted_of(self._large, index)
        both = {name: small[name] + large[name] for name in small}
        return {"all": both | {"peak": self._peaks[index]}, "small_pool": small, "large_pool": large}

    def _all_stats(self) -> list[Stat]:
        per_pool = [getattr(of, name) for of in (self, self._small, self._large) for name in _STATS.values()]
        return [*per_pool, self.oversize_allocations, self.oversize_segments]


def _counted_of(pool: PoolStatistics, index: int) -> dict[str, int]:
    totals = [total - base for total, base in zip(pool.totals(), pool.base, strict=True)]
    return {
        "current": pool.current()[index],
        "peak": pool.peaks[index],
        "allocated": totals[index],
        "freed": totals[index + len(_COUNTED)],
    }
