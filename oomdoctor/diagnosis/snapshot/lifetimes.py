"""Pair what was allocated with where it was freed, and with what was still live when the snapshot was taken.

A history is a ring buffer: its beginning may be lost, and recording may have begun late. Then a block that is live at
the end has no allocation in the history, or one is freed that was never allocated there. Both are older than the
history. Recording may also have stopped before the snapshot; then what is live at the end is not what the history says,
and the blocks of the segments are believed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.snapshot.raw import Action, BlockState

if TYPE_CHECKING:
    from oomdoctor.diagnosis.snapshot.raw import Block, DeviceSnapshot, TraceEvent

OLDER: Final = -1
"""Where a block was allocated that is older than the history."""

_SMALLEST_BLOCK: Final = 512


@dataclass(slots=True)
class Lifetime:
    """One block from its allocation to its end.

    Attributes:
        address: Where it begins.
        size: Its bytes as `torch.cuda.memory_allocated` counts them; of a block that is gone they are rounded up here.
        requested: Bytes that were asked for.
        stack: Index in the snapshot's stacks of where it was allocated.
        born: Event that allocated it; -1 if older than the history, the number of events if younger.
        died: Event that freed it; the number of events if none did.
        released: Event after which its bytes could be used again, later than `died` where a stream still used it.
        freed_by: Index of the stack that freed it; 0 where nothing did, or nothing in Python.
        held: Whether it is live in the segments, when the snapshot was taken.
    """

    address: int
    size: int
    requested: int
    stack: int
    born: int
    died: int
    released: int
    freed_by: int = 0
    held: bool = False


def rounded(size: int) -> int:
    """Bytes of the block that a request gets, if it is split off a larger one.

    Source: `round_size` in c10/cuda/CUDACachingAllocator.cpp, without `roundup_power2_divisions`.
    """
    return max(_SMALLEST_BLOCK, -(-size // _SMALLEST_BLOCK) * _SMALLEST_BLOCK)


def pair(device: DeviceSnapshot) -> list[Lifetime]:
    """Every block that the history or the segments know, in the order in which they were allocated."""
    pairing = _Pairing(len(device.events))
    for index, event in enumerate(device.events):
        pairing.follow(index, event)
    for segment in device.segments:
        for block in segment.blocks:
            if block.state is not BlockState.FREE:
                pairing.settle(block)
    return sorted(pairing.lifetimes, key=lambda lifetime: lifetime.born)


class _Pairing:
    def __init__(self, count: int) -> None:
        self.count = count
        self.lifetimes: list[Lifetime] = []
        self.live: dict[int, Lifetime] = {}
        self.pending: dict[int, Lifetime] = {}
        self.seen: set[int] = set()

    def follow(self, index: int, event: TraceEvent) -> None:
        """Take one event into account."""
        if event.action is Action.ALLOC:
            self._allocate(index, event)
        elif event.action is Action.FREE_REQUESTED:
            self._free(index, event)
        elif event.action is Action.FREE_COMPLETED:
            lifetime = self.pending.pop(event.address, None)
            if lifetime is not None:
                lifetime.released = index

    def _allocate(self, index: int, event: TraceEvent) -> None:
        lost = self.live.pop(event.address, None)
        if lost is not None:  # its end was not recorded, but it has ended
            lost.died = lost.released = index
        self.pending.pop(event.address, None)
        count = self.count
        new = Lifetime(event.address, rounded(event.size), event.size, event.stack, index, count, count)
        self.live[event.address] = new
        self.seen.add(event.address)
        self.lifetimes.append(new)

    def _free(self, index: int, event: TraceEvent) -> None:
        lifetime = self.live.pop(event.address, None)
        if lifetime is None:
            # Where frees have no stack of their own, the history shows the allocation's, but one cannot tell which.
            lifetime = Lifetime(event.address, rounded(event.size), event.size, 0, OLDER, index, self.count)
            self.seen.add(event.address)
            self.lifetimes.append(lifetime)
        lifetime.died, lifetime.released, lifetime.freed_by = index, self.count, event.stack
        self.pending[event.address] = lifetime

    def settle(self, block: Block) -> None:
        """Take a block of the segments into account: it is in use at the end."""
        if block.state is BlockState.PENDING:
            lifetime = self.pending.get(block.address)
        else:
            lifetime = self.live.pop(block.address, None)
        if lifetime is None:
            if block.state is BlockState.PENDING:
                return
            born = self.count if block.address in self.seen else OLDER
            count = self.count
            lifetime = Lifetime(block.address, block.size, block.requested, block.stack, born, count, count)
            self.lifetimes.append(lifetime)
        lifetime.size = block.size
        lifetime.stack = lifetime.stack or block.stack  # the segments may keep stacks that the history does not
        lifetime.held = block.state is BlockState.LIVE
