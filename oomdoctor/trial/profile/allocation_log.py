"""Join the allocator's history with the marks: every block with its category and its module.

The sizes of blocks come from following the allocator's rules (`oomdoctor.agent.allocator_blocks`), which is checked
against the allocator's own count at every mark; where they differ, there is no profile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oomdoctor.agent.allocator_blocks import AllocatorBlocks, HistoryMismatchError
from oomdoctor.results import Category, PhaseName
from oomdoctor.trial.profile.marks import Label, Mark, MarkKind, MicroPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oomdoctor.trial.profile.marks import HistoryStart


@dataclass(slots=True, eq=False)
class ProfiledBlock:
    """One block from its allocation to its end.

    Attributes:
        size: Its bytes, as `torch.cuda.memory_allocated` counts them.
        category: What it is for.
        module: Index of the module that it belongs to, or that ran when it was allocated; None for no module.
        is_labelled: Whether the category is known, not concluded from when it was allocated.
        is_gone: Whether it has been freed.
    """

    size: int
    category: Category
    module: int | None
    is_labelled: bool = False
    is_gone: bool = False


@dataclass(slots=True)
class PhaseSpan:
    """Span of a phase in the history; a moment is the number of events until then.

    Attributes:
        stage: Which phase.
        begin: When it began.
        end: When it ended.
        peak_bytes: Most bytes in live blocks during it.
        peak: When there first were as many.
    """

    stage: MicroPhase
    begin: int
    end: int
    peak_bytes: int
    peak: int


@dataclass(slots=True)
class AllocationLog:
    """Log of all blocks, event by event.

    Attributes:
        before: Blocks that were live when the history began.
        changes: For each event the block that it allocated, or freed, and its bytes or less its bytes; None for others.
        reserved: Bytes held from the driver at each moment; a moment counts the events until then.
        spans: The phases in order.
    """

    before: list[ProfiledBlock] = field(default_factory=list)
    changes: list[tuple[ProfiledBlock, int] | None] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    spans: list[PhaseSpan] = field(default_factory=list)


def build_log(start: HistoryStart, events: Sequence[Mapping[str, Any]], marks: Sequence[Mark]) -> AllocationLog:
    """Go through the history with the marks.

    Args:
        start: What there was when the history began.
        events: The history.
        marks: Made meanwhile, in order.

    Raises:
        HistoryMismatchError: The bytes in live blocks are not what the allocator counted at one of the marks.
    """
    builder = _LogBuilder(start)
    waiting = iter(marks)
    mark = next(waiting, None)
    count = start.count
    for event in events:
        action = event["action"]
        is_counted = action in _COUNTED
        while mark is not None and mark.events <= count and is_counted:
            builder.mark(mark)
            mark = next(waiting, None)
        count += is_counted
        builder.event(action, event.get("addr", 0), event["size"])
    while mark is not None:
        if mark.events != count:
            raise HistoryMismatchError("the history lost some of its events")
        builder.mark(mark)
        mark = next(waiting, None)
    return builder.log


_COUNTED = frozenset({"alloc", "free_requested"})
_RESERVED_SIGNS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


class _LogBuilder:
    def __init__(self, start: HistoryStart) -> None:
        self.log = AllocationLog(reserved=[start.reserved_bytes])
        self.blocks = AllocatorBlocks(start.settings, start.segments)
        self.reserved = start.reserved_bytes
        self.live: dict[int, ProfiledBlock] = {}
        self.stage: MicroPhase | None = None
        self.stack: list[int] = []
        self.reached: int | None = None
        self.fresh: list[ProfiledBlock] = []
        self.is_clearing = False
        self.allocated = 0
        for segment in start.segments:
            self._take_over(segment)

    def _take_over(self, segment: Mapping[str, Any]) -> None:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                self.live[address] = before = ProfiledBlock(block["size"], Category.OTHER, None)
                self.log.before.append(before)
                self.allocated += before.size
            address += block["size"]

    # --- the history ---

    def event(self, action: str, address: int, size: int) -> None:
        change_bytes = self.blocks.apply(action, address, size)
        change = None
        if action == "alloc":
            change = self._allocate(address, change_bytes), change_bytes
        elif action == "free_requested":
            change = self._free(address), change_bytes
        else:
            self.reserved += _RESERVED_SIGNS.get(action, 0) * size
        self.log.changes.append(change)
        self.log.reserved.append(self.reserved)
        if change is not None:
            self._note_peak(change_bytes)

    def _allocate(self, address: int, size: int) -> ProfiledBlock:
        self.live[address] = block = ProfiledBlock(size, Category.WORKSPACE, self._module())
        if self._in_forward():
            self.fresh.append(block)
        return block

    def _free(self, address: int) -> ProfiledBlock:
        block = self.live.pop(address, None)
        if block is None:
            raise HistoryMismatchError("a block was freed that was not live")
        block.is_gone = True
        if self.is_clearing and not block.is_labelled:
            block.category, block.module, block.is_labelled = Category.WORKSPACE, None, True
        return block

    def _note_peak(self, change: int) -> None:
        self.allocated += change
        if self.stage is not None:
            span = self.log.spans[-1]
            if self.allocated > span.peak_bytes:
                span.peak_bytes, span.peak = self.allocated, len(self.log.changes)

    # --- the marks ---

    def mark(self, mark: Mark) -> None:
        if mark.allocated_bytes != self.allocated:
            raise HistoryMismatchError(
                f"the history comes to {self.allocated} bytes where the allocator counted {mark.allocated_bytes}"
            )
        _MARKS[mark.kind](self, mark.value)

    def begin(self, stage: MicroPhase) -> None:
        at = len(self.log.changes)
        self.stage = stage
        self.stack.clear()
        self.reached = None
        self.fresh.clear()
        self.log.spans.append(PhaseSpan(stage, at, at, self.allocated, at))

    def end(self, _: object) -> None:
        self._keep_fresh()
        self.log.spans[-1].end = len(self.log.changes)
        self.stage = None

    def enter(self, index: int) -> None:
        if self._phase() is PhaseName.BACKWARD and not self.stack:
            self.fresh.clear()
        self.stack.append(index)

    def leave(self, index: int) -> None:
        while self.stack and self.stack.pop() != index:
            pass
        if self._phase() is PhaseName.BACKWARD and not self.stack:
            self._keep_fresh()

    def back(self, index: int | None) -> None:
        self.reached = index

    def label(self, labels: Sequence[Label]) -> None:
        for label in labels:
            block = self.live.get(label.address)
            if block is not None and not block.is_labelled:
                block.category, block.module, block.is_labelled = label.category, label.module, True

    def clear(self, _: object) -> None:
        self.is_clearing = True

    def cleared(self, _: object) -> None:
        self.is_clearing = False

    def _keep_fresh(self) -> None:
        """Label what a forward allocated and left behind as activations, which the backward will need."""
        for block in self.fresh:
            if not block.is_labelled and not block.is_gone:
                block.category = Category.ACTIVATIONS
        self.fresh.clear()

    def _phase(self) -> PhaseName | None:
        return None if self.stage is None else self.stage.phase

    def _in_forward(self) -> bool:
        phase = self._phase()
        return phase is PhaseName.FORWARD or (phase is PhaseName.BACKWARD and bool(self.stack))

    def _module(self) -> int | None:
        if self._phase() not in (PhaseName.FORWARD, PhaseName.BACKWARD):
            return None
        return self.stack[-1] if self.stack else self.reached


_MARKS: Mapping[MarkKind, Callable[[_LogBuilder, Any], None]] = {
    MarkKind.BEGIN: _LogBuilder.begin,
    MarkKind.END: _LogBuilder.end,
    MarkKind.ENTER: _LogBuilder.enter,
    MarkKind.LEAVE: _LogBuilder.leave,
    MarkKind.BACK: _LogBuilder.back,
    MarkKind.LABEL: _LogBuilder.label,
    MarkKind.CLEAR: _LogBuilder.clear,
    MarkKind.CLEARED: _LogBuilder.cleared,
}
