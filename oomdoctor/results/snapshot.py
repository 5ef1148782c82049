"""Memory in a snapshot of PyTorch's allocator, and the lines of code that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from oomdoctor.codec import ADDED_LATER


class TrainingPhase(StrEnum):
    """Part of the program that ran, as its traceback tells."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer_step"
    MODEL_TO_DEVICE = "model_to_device"
    BATCH_TO_DEVICE = "batch_to_device"
    CHECKPOINT_LOAD = "checkpoint_load"
    EVALUATION = "evaluation"
    DATA_LOADING = "data_loading"


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of the user's own code.

    Attributes:
        path: As the traceback prints it.
        line: From 1.
        function: The function's name, such as `train`; None where it is not printed.
        code: The line's text; None where it is not printed.
    """

    path: str
    line: int
    function: str | None = None
    code: str | None = None


class Category(StrEnum):
    """Use of allocated memory."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATIONS = "activations"
    INPUT = "input"
    WORKSPACE = "workspace"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class CategoryBytes:
    """Memory of one category.

    Attributes:
        category: What it is for.
        allocated_bytes: Bytes in live blocks.
    """

    category: Category
    allocated_bytes: int


@dataclass(frozen=True, slots=True)
class LineBytes:
    """Memory of one category that one operator allocated for one of the user's lines.

    Attributes:
        operator: Such as `aten::addmm`; None for what no operator allocated while it was watched, such as weights.
        line: The innermost of the user's lines, such as `model.py:12`; of the backward, the line whose operator's
            gradient was computed; None where none is known.
        category: What it is for.
        allocated_bytes: Bytes in live blocks.
        blocks: How many blocks.
    """

    operator: str | None
    line: str | None
    category: Category
    allocated_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """Memory that one line of code allocated.

    Attributes:
        place: The line; None for memory allocated before recording began.
        category: What most of it is for.
        allocated_bytes: Bytes in live blocks.
        blocks: How many blocks.
    """

    place: SourceLine | None
    category: Category
    allocated_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Composition:
    """Memory by category and by line of code at one moment.

    Attributes:
        allocated_bytes: Bytes in live blocks; the categories sum to it exactly.
        reserved_bytes: Bytes held from the driver.
        categories: By category, largest first.
        lines: By the user's own lines, largest first, at most 20; the rest is left out.
    """

    allocated_bytes: int
    reserved_bytes: int
    categories: tuple[CategoryBytes, ...]
    lines: tuple[MemoryLine, ...]


@dataclass(frozen=True, slots=True)
class LiveAllocation:
    """One block that was live at the end, or several that are alike.

    Attributes:
        size_bytes: Size of one block.
        category: What it is for.
        place: The user's own line that allocated it; None where recording had not begun.
        innermost: The innermost frame, such as `linear (torch/nn/functional.py:2294)`; None without frames.
        blocks: How many blocks are alike in all of this.
    """

    size_bytes: int
    category: Category
    place: SourceLine | None
    innermost: str | None
    blocks: int = 1


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Reserved memory that lies in holes between live blocks.

    Attributes:
        segments: Segments held from the driver.
        segments_with_holes: Those that hold live and free blocks at once.
        hole_bytes: Free bytes in those segments.
        largest_hole_bytes: The largest free block among them.
        cached_bytes: Free bytes in segments without a live block, which the allocator can give back.
    """

    segments: int
    segments_with_holes: int
    hole_bytes: int
    largest_hole_bytes: int
    cached_bytes: int


@dataclass(frozen=True, slots=True)
class GrowingLine:
    """A line whose live memory rose step after step.

    Attributes:
        place: The line.
        category: What most of it is for.
        first_bytes: What it held early on.
        last_bytes: What it held at the end.
        first_blocks: In how many blocks early on.
        last_blocks: In how many at the end.
    """

    place: SourceLine | None
    category: Category
    first_bytes: int
    last_bytes: int
    first_blocks: int
    last_blocks: int


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """Memory after one event of the history.

    Attributes:
        event: Index of the event in the history.
        microseconds: Time since the first event; None where no times were recorded.
        reserved_bytes: Bytes held from the driver.
        categories: Bytes in live blocks by category, in the order of `weights`, `gradients`, `optimizer_state`,
            `activations`, `input`, `workspace`, `other`.
    """

    event: int
    microseconds: int | None
    reserved_bytes: int
    categories: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HistoryReplay:
    """A history held to the rules by which PyTorch's allocator places blocks.

    Attributes:
        events: Allocations and frees that were replayed.
        segment_events: Segments that came and went as recorded.
        departed_at: Position of the first event that is not as the rules have it, from 0; None where all are.
        departure: What the rules have there and what the history has.
    """

    events: int
    segment_events: int
    departed_at: int | None
    departure: str | None


@dataclass(frozen=True, slots=True)
class SnapshotSummary:
    """Memory of one device in a snapshot.

    Attributes:
        source: The file as it was given.
        device_index: The device.
        total_bytes: Memory of the device, where the snapshot tells.
        has_history: Whether it has a history of allocations.
        truncated: Whether the history lost its beginning, so that older blocks have no frames.
        events: Events in the history.
        end: Memory when the snapshot was taken.
        peak: Memory at the peak of the history; as `end` where there is none.
        largest: The largest live blocks at the end, those that are alike as one, at most 20.
        fragmentation: Holes at the end.
        growing: Lines whose memory rose step after step, worst first, at most 10.
        timeline: Memory over the history, thinned to at most 400 points; empty without a history.
        tried_bytes: What was asked for when memory ran out; None where the history holds no such moment.
        free_bytes: What the device had free at that moment.
        phase: What the program was doing at that moment, from its frames.
        user_line: The user's own line at that moment.
        replay: The history held to the allocator's rules; None where it cannot be.
    """

    source: str
    device_index: int
    total_bytes: int | None
    has_history: bool
    truncated: bool
    events: int
    end: Composition
    peak: Composition
    largest: tuple[LiveAllocation, ...]
    fragmentation: Fragmentation
    growing: tuple[GrowingLine, ...]
    timeline: tuple[TimelinePoint, ...]
    tried_bytes: int | None = None
    free_bytes: int | None = None
    phase: TrainingPhase | None = None
    user_line: SourceLine | None = None
    replay: HistoryReplay | None = field(default=None, metadata=ADDED_LATER)


@dataclass(frozen=True, slots=True)
class DifferingLine:
    """One line's memory in two snapshots.

    Attributes:
        place: The line; None for memory allocated before recording began.
        before_bytes: In the first.
        after_bytes: In the second.
    """

    place: SourceLine | None
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotComparison:
    """Two snapshots side by side, each at its peak.

    Attributes:
        before: The first file.
        after: The second file.
        before_bytes: Allocated at the peak of the first.
        after_bytes: Allocated at the peak of the second.
        before_categories: By category in the first, in the order of `Category`.
        after_categories: By category in the second, in the same order.
        lines: Lines that differ, largest difference first, at most 20.
    """

    before: str
    after: str
    before_bytes: int
    after_bytes: int
    before_categories: tuple[int, ...]
    after_categories: tuple[int, ...]
    lines: tuple[DifferingLine, ...]
