"""How many bytes a step keeps alive at most, were nothing lost to packing; `oomdoctor.probing.replay` has it too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.probing.fitting.lowering import Player

if TYPE_CHECKING:
    from oomdoctor.probing.fitting.lowering import Program, Scripts

_GRANULARITY: Final = 512
"""What is there before the trial is known as the allocator counts it, in whole blocks."""


class _Counted:
    """An allocator that only counts; see `oomdoctor.allocator.caching` for the names."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self.granularity = _GRANULARITY
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0

    def malloc(self, nbytes: int) -> int:
        size = -(-nbytes // self.granularity) * self.granularity
        self._sizes.append(size)
        self.allocated_bytes += size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return len(self._sizes)

    def free(self, address: int) -> None:
        if address:
            self.allocated_bytes -= self._sizes[address - 1]

    def empty_cache(self) -> None:
        """There is none."""

    def reset_peak_stats(self) -> None:
        """The peak is the whole trial's."""


def live_peak(program: Program, scripts: Scripts) -> int:
    """The bytes of what was loaded, and the most that the trial keeps alive besides."""
    counted = _Counted()
    player = Player(counted, scripts)
    player.play(program.loading)
    counted.granularity = 1
    counted.peak_allocated_bytes = counted.allocated_bytes
    player.play(program.trial)
    return counted.peak_allocated_bytes
