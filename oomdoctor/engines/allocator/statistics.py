"""Counters of the allocator, named as `torch.cuda.memory_stats` names them.

Allocations and frees have a total in and a total out. Peaks are updated only before something is counted out, since
nothing shrinks between two allocations. The peak of both pools together is not the sum of their peaks.

Source: `DeviceStats` in c10/core/CachingDeviceAllocator.h and its use in c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add
from typing import Any


@dataclass(slots=True, eq=False)
class Stat:
    """One number over time."""

    current: int = 0
    peak: int = 0
    increased: int = 0
    decreased: int = 0

    def increase(self, amount: int) -> None:
        """Add to the number."""
        self.current += amount
        self.increased += amount
        if self.current > self.peak:  # noqa: PLR1730 - `max` takes three times as long
            self.peak = self.current

    def decrease(self, amount: int) -> None:
        """Subtract from the number."""
        self.current -= amount
        self.decreased += amount

    def as_torch(self) -> dict[str, int]:
        """Return the entry of `torch.cuda.memory_stats_as_nested_dict`."""
        return {
            "current": self.current,
            "peak": self.peak,
            "allocated": self.increased,
            "freed": self.decreased,
        }


class PoolStatistics:
    """Counters of one pool.

    Attributes:
        blocks_in: Blocks allocated.
        blocks_out: Blocks freed.
        bytes_in: Bytes of the blocks allocated.
        bytes_out: Bytes of the blocks freed.
        requested_in: Bytes requested.
        requested_out: Bytes requested, of blocks that can be used again.
        pending: Blocks that are freed and cannot be used again yet.
        pending_bytes: Their bytes.
    """

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
        """Return the blocks, active blocks, bytes, active bytes and requested bytes in use."""
        blocks = self.blocks_in - self.blocks_out
        size = self.bytes_in - self.bytes_out
        requested = self.requested_in - self.requested_out
        return [blocks, blocks + self.pending, size, size + self.pending_bytes, requested]

    def totals(self) -> list[int]:
        """Return the totals in of the same five, then the totals out."""
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
    """Counters of both pools together, and of the driver's calls.

    Args:
        small: Counters of the small pool.
        large: Counters of the large pool.

    Attributes:
        segments: Segments from the driver, without expandable ones.
        reserved_bytes: Bytes from the driver.
        inactive_split: Free blocks whose segment has other blocks.
        inactive_split_bytes: Their bytes.
        oversize_allocations: Blocks that are too large to be split.
        oversize_segments: Segments that are too large to be split.
        retries: Times that all cached memory was returned before another try.
        ooms: Times that this did not suffice.
        synchronizations: Times that all streams were waited for.
        driver_allocations: Allocations from the driver.
        driver_frees: Returns to the driver.
        rejections: Requests that were rejected before the driver was asked.
        grown: Whether something was allocated since the peaks were updated.
        counts_all: Whether all counters are kept; else only allocated and reserved bytes, which is faster.
    """

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
        """Update the peaks, before something is counted out or read."""
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
        """Add or subtract free blocks whose segment has other blocks, and their bytes."""
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
        """Return one of the five of `PoolStatistics.current`, of both pools."""
        return self._small.current()[index] + self._large.current()[index]

    def peak(self, index: int) -> int:
        """Return the peak of one of the five since the last reset."""
        self.settle()
        return self._peaks[index]

    def reset_peaks(self) -> None:
        """Reset peaks as `torch.cuda.reset_peak_memory_stats` does."""
        self.grown = False
        self._small.peaks, self._large.peaks = self._small.current(), self._large.current()
        self._peaks = [*map(sum, zip(self._small.peaks, self._large.peaks, strict=True))]
        for stat in self._all_stats():
            stat.peak = stat.current

    def reset_totals(self) -> None:
        """Reset totals as `torch.cuda.reset_accumulated_memory_stats` does."""
        self._small.base, self._large.base = self._small.totals(), self._large.totals()
        for stat in self._all_stats():
            stat.increased = stat.decreased = 0
        self.retries = self.ooms = self.rejections = 0
        self.synchronizations = self.driver_allocations = self.driver_frees = 0

    def as_torch(self) -> dict[str, Any]:
        """Return the counters of `torch.cuda.memory_stats_as_nested_dict`."""
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
