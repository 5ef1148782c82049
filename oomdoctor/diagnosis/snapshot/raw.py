"""A memory snapshot as it was written, in types of our own whatever the version that wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple


class Action(StrEnum):
    """What the allocator did. Actions that newer versions add are passed over."""

    ALLOC = "alloc"
    FREE_REQUESTED = "free_requested"
    FREE_COMPLETED = "free_completed"
    SEGMENT_ALLOC = "segment_alloc"
    SEGMENT_FREE = "segment_free"
    SEGMENT_MAP = "segment_map"
    SEGMENT_UNMAP = "segment_unmap"
    OOM = "oom"


class BlockState(Enum):
    """What a block of a segment is."""

    LIVE = "active_allocated"
    PENDING = "active_pending_free"  # freed, but a kernel on another stream may still use it
    FREE = "inactive"


class Frame(NamedTuple):
    """One Python frame of a stack."""

    function: str
    path: str
    line: int


Stack = tuple[Frame, ...]
"""Frames, innermost first. Frames of C++ are left out, so that a stack of the autograd engine's thread is empty."""


class TraceEvent(NamedTuple):
    """One entry of the history.

    Attributes:
        action: What happened.
        address: Where; of an `oom`, the bytes that the device had free.
        size: Bytes that were asked for; of segments, their size.
        stack: Index in the snapshot's stacks.
        microseconds: The clock's time; None where the snapshot has none.
        stream: The CUDA stream that it was for.
        private: Whether it was in a private pool, as CUDA graphs have; older versions do not say.
    """

    action: Action
    address: int
    size: int
    stack: int
    microseconds: int | None
    stream: int = 0
    private: bool = False


class Block(NamedTuple):
    """A part of a segment.

    Attributes:
        address: Where it begins.
        size: Its bytes, as `torch.cuda.memory_allocated` counts them: rounded up.
        requested: Bytes that were asked for.
        state: Whether it is in use.
        stack: Index in the snapshot's stacks of where it was allocated.
    """

    address: int
    size: int
    requested: int
    state: BlockState
    stack: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory that the allocator holds from the driver.

    Attributes:
        address: Where it begins.
        size: Its bytes; of an expandable segment, of a stretch that is mapped.
        blocks: What it is cut into, by address.
        expandable: Whether it can grow.
        stream: The CUDA stream that it is for.
        small: Whether it is for small blocks.
        private: Whether it is of a private pool, as CUDA graphs have.
    """

    address: int
    size: int
    blocks: tuple[Block, ...]
    expandable: bool
    stream: int = 0
    small: bool = False
    private: bool = False


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """What a snapshot holds of one device."""

    index: int
    segments: tuple[Segment, ...]
    events: tuple[TraceEvent, ...]


@dataclass(frozen=True, slots=True)
class RawSnapshot:
    """A memory snapshot.

    Attributes:
        source: The file as it was given.
        devices: Those that hold memory or have a history.
        stacks: Every different stack; the first is empty.
        allocator_settings: What PyTorch's allocator was told, by name, as text.
    """

    source: str
    devices: tuple[DeviceSnapshot, ...]
    stacks: tuple[Stack, ...]
    allocator_settings: dict[str, str]
