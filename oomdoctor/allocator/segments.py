"""What the allocator holds from the driver, cut into blocks, as `torch.cuda.memory_snapshot` tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from oomdoctor.allocator.blocks import LIVE, PENDING, UNMAPPED, Block

if TYPE_CHECKING:
    from oomdoctor.allocator.heap import Heap


class BlockInfo(NamedTuple):
    """A part of a segment.

    Attributes:
        size: Its bytes.
        requested: Bytes that were asked for when it was last handed out.
        state: `active_allocated`, `active_pending_free` or `inactive`.
    """

    size: int
    requested: int
    state: str


class Segment(NamedTuple):
    """A stretch of memory from the driver.

    Attributes:
        address: Where it begins.
        size: Its bytes.
        stream: The stream that it belongs to.
        small: Whether it is of the small pool.
        expandable: Whether it is a stretch of an expandable segment.
        blocks: What it is cut into.
    """

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    blocks: tuple[BlockInfo, ...]


_STATES = {LIVE: "active_allocated", PENDING: "active_pending_free"}


def list_segments(heap: Heap) -> list[Segment]:
    """The segments by address; of an expandable segment, each stretch that is mapped."""
    return [_segment(block) for block in heap.blocks() if block.before is None or block.before.state == UNMAPPED]


def _segment(first: Block) -> Segment:
    blocks = []
    block: Block | None = first
    while block is not None and block.state != UNMAPPED:
        blocks.append(BlockInfo(block.size, block.requested, _STATES.get(block.state, "inactive")))
        block = block.after
    size = sum(part.size for part in blocks)
    return Segment(first.address, size, first.stream, first.pool.small, first.segment is not None, tuple(blocks))
