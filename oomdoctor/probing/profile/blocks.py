"""Join the allocator's history with the marks: every block that was live, what it was for and whose it was."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oomdoctor.probing.profile.heap import Heap, UnexplainedError
from oomdoctor.probing.profile.marks import Kind, Label, Mark, Stage
from oomdoctor.results import Category, PhaseName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oomdoctor.probing.profile.history import Start


@dataclass(slots=True, eq=False)
class Block:
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
class Stretch:
    """Where in the history a phase lies; moments count the events until then.

    Attributes:
        stage: Which phase.
        begin: When it began.
        end: When it ended.
        peak_bytes: Most bytes in live blocks during it.
        peak: When there first were as many.
    """

    stage: Stage
    begin: int
    end: int
    peak_bytes: int
    peak: int


@dataclass(slots=True)
class Story:
    """What happened, event by event.

    Attributes:
        before: Blocks that were live when the history began.
        changes: For each event the block that it allocated, or freed, and its bytes or less its bytes; None for others.
        reserved: Bytes held from the driver at each moment; a moment counts the events until then.
        stretches: The phases in order.
    """

    before: list[Block] = field(default_factory=list)
    changes: list[tuple[Block, int] | None] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)


def tell(start: Start, events: Sequence[Mapping[str, Any]], marks: Sequence[Mark]) -> Story:
    """Go through the history with the marks.

    Args:
        start: What there was when the history began.
        events: The history.
        marks: Made meanwhile, in order.

    Raises:
        UnexplainedError: The bytes in live blocks are not what the allocator counted at one of the marks.
    """
    teller = _Teller(start)
    waiting = iter(marks)
    mark = next(waiting, None)
    count = start.count
    for event in events:
        action = event["action"]
        is_counted = action in _COUNTED
        while mark is not None and mark.events <= count and is_counted:
            teller.mark(mark)
            mark = next(waiting, None)
        count += is_counted
        teller.event(action, event.get("addr", 0), event["size"])
    while mark is not None:
        if mark.events != count:
            raise UnexplainedError("the history lost some of its events")
        teller.mark(mark)
        mark = next(waiting, None)
    return teller.story


_COUNTED = frozenset({"alloc", "free_requested"})


class _Teller:
    def __init__(self, start: Start) -> None:
        self.story = Story(reserved=[start.reserved_bytes])
        self.heap = Heap(start.segments, start.settings)
        self.reserved = start.reserved_bytes
        self.live: dict[int, Block] = {}
        self.ending: dict[int, int] = {}
        self.stage: Stage | None = None
        self.stack: list[int] = []
        self.reached: int | None = None
        self.fresh: list[Block] = []
        self.is_clearing = False
        self.allocated = 0
        for segment in start.segments:
            self._take_over(segment)

    def _take_over(self, segment: Mapping[str, Any]) -> None:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                self.live[address] = before = Block(block["size"], Category.OTHER, None)
                self.story.before.append(before)
                self.allocated += before.size
            elif block["state"] != "inactive":
                self.ending[address] = block["size"]
            address += block["size"]

    # --- the history ---

    def event(self, action: str, address: int, size: int) -> None:
        change = None
        if action == "alloc":
            change = self._allocate(address, size)
        elif action == "free_requested":
            change = self._free(address)
        elif action == "free_completed":
            self._release(address)
        else:
            self._segment(action, address, size)
        self.story.changes.append(change)
        self.story.reserved.append(self.reserved)
        if change is not None:
            self._note_peak(change[1])

    def _allocate(self, address: int, requested: int) -> tuple[Block, int]:
        size = self.heap.allocate(address, requested)
        block = Block(size, Category.WORKSPACE, self._module())
        self.live[address] = block
        if self._in_forward():
            self.fresh.append(block)
        return block, size

    def _free(self, address: int) -> tuple[Block, int]:
        block = self.live.pop(address, None)
        if block is None:
            raise UnexplainedError("a block was freed that was not live")
        self.ending[address] = block.size
        block.is_gone = True
        if self.is_clearing and not block.is_labelled:
            block.category, block.module, block.is_labelled = Category.WORKSPACE, None, True
        return block, -block.size

    def _release(self, address: int) -> None:
        if address not in self.ending:
            raise UnexplainedError("a block became free that was not given back")
        self.heap.release(address, self.ending.pop(address))

    def _segment(self, action: str, address: int, size: int) -> None:
        if action == "segment_alloc":
            self.heap.add_segment(address, size)
            self.reserved += size
        elif action == "segment_free":
            self.heap.remove_segment(address, size)
            self.reserved -= size
        elif action == "segment_map":
            self.heap.map(address, size)
            self.reserved += size
        elif action == "segment_unmap":
            self.heap.unmap(address, size)
            self.reserved -= size

    def _note_peak(self, change: int) -> None:
        self.allocated += change
        if self.stage is not None:
            stretch = self.story.stretches[-1]
            if self.allocated > stretch.peak_bytes:
                stretch.peak_bytes, stretch.peak = self.allocated, len(self.story.changes)

    # --- the marks ---

    def mark(self, mark: Mark) -> None:
        if mark.allocated_bytes != self.allocated:
            raise UnexplainedError(
                f"the history comes to {self.allocated} bytes where the allocator counted {mark.allocated_bytes}"
            )
        _MARKS[mark.kind](self, mark.value)

    def begin(self, stage: Stage) -> None:
        at = len(self.story.changes)
        self.stage = stage
        self.stack.clear()
        self.reached = None
        self.fresh.clear()
        self.story.stretches.append(Stretch(stage, at, at, self.allocated, at))

    def end(self, _: object) -> None:
        self._keep_fresh()
        self.story.stretches[-1].end = len(self.story.changes)
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
        """What a forward allocated and left behind is what the backward will need."""
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


_MARKS: Mapping[Kind, Callable[[_Teller, Any], None]] = {
    Kind.BEGIN: _Teller.begin,
    Kind.END: _Teller.end,
    Kind.ENTER: _Teller.enter,
    Kind.LEAVE: _Teller.leave,
    Kind.BACK: _Teller.back,
    Kind.LABEL: _Teller.label,
    Kind.CLEAR: _Teller.clear,
    Kind.CLEARED: _Teller.cleared,
}
