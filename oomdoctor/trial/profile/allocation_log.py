"""Join the allocator's history with the marks: every block with its category and its module.

The history says what was asked for, and where the block lies. Its size is what was asked for rounded up, or the whole
free block where the allocator does not split off the rest. Unlike the simulator in `oomdoctor.engines.allocator`, this
never chooses a block: it follows what was chosen. That it is right is checked against the allocator's own count at
every mark; where it is not, there is no profile. Source: `try_merge_blocks` in c10/cuda/CUDACachingAllocator.cpp,
torch 2.6 to 2.15.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oomdoctor.engines.allocator.settings import DIVISIONS, LARGEST_SMALL, NO_LIMIT, is_split, rounded_size
from oomdoctor.results import Category, PhaseName
from oomdoctor.trial.profile.marks import Label, Mark, MarkKind, MicroPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from oomdoctor.trial.profile.marks import HistoryStart


class HistoryMismatchError(Exception):
    """The history cannot be what the allocator did; the text says where."""


class FreeBlocks:
    """Free blocks by address.

    Args:
        segments: What the allocator holds from the driver, as `torch.cuda.memory._snapshot` gives it.
        settings: The allocator's settings, from the same.
    """

    def __init__(self, segments: Iterable[Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
        self._free: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._first: set[int] = set()  # where segments begin and end, across which nothing is joined
        self._last: set[int] = set()
        largest_split = int(settings.get("max_split_size", -1))
        self._largest_split = NO_LIMIT if largest_split < 0 else largest_split
        self._divisions = _divisions(settings.get("roundup_power2_divisions"))
        self._expandable: list[tuple[int, int]] = []
        for segment in segments:
            self._take_over(segment)

    def allocate(self, address: int, requested: int) -> int:
        """Take the block that begins at `address`; its bytes."""
        available = self._free.pop(address, None)
        size = rounded_size(requested, self._divisions)
        if available is None or available < size:
            raise HistoryMismatchError(f"{requested} bytes were allocated where the model has {available} free ones")
        del self._ends[address + available]
        if not self._is_split(address, size, available):
            return available
        if available > size:
            self._put(address + size, available - size)
        return size

    def release(self, address: int, size: int) -> None:
        """Give a block back; it joins free neighbours of its own segment."""
        before = self._ends.get(address)
        if before is not None and not self._is_border(address):
            size += self._take(before)
            address = before
        end = address + size
        if end in self._free and not self._is_border(end):
            size += self._take(end)
        self._put(address, size)

    def add_segment(self, address: int, size: int) -> None:
        """A segment came from the driver; neighbours in other segments are no neighbours."""
        self._note_segment(address, size)
        self._put(address, size)

    def remove_segment(self, address: int, size: int) -> None:
        """A segment went back to the driver."""
        if self._free.get(address) != size:
            raise HistoryMismatchError("a segment was given back that is not free")
        self._take(address)
        self._first.discard(address)
        self._last.discard(address + size)

    def map(self, address: int, size: int) -> None:
        """Pages of an expandable segment came from the driver."""
        self._expandable.append((address, address + size))
        self.release(address, size)

    def unmap(self, address: int, size: int) -> None:
        """Pages of an expandable segment went back; what is left of the free block around them stays."""
        start = next((begin for begin, length in self._free.items() if begin <= address < begin + length), None)
        if start is None:
            raise HistoryMismatchError("pages were given back that are not free")
        end = start + self._take(start)
        if start < address:
            self._put(start, address - start)
        if address + size < end:
            self._put(address + size, end - address - size)

    def _take_over(self, segment: Mapping[str, Any]) -> None:
        address, size = segment["address"], segment["total_size"]
        if segment.get("is_expandable"):
            self._expandable.append((address, address + size))
        else:
            self._note_segment(address, size)
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                self._put(address, block["size"])
            address += block["size"]

    def _note_segment(self, address: int, size: int) -> None:
        self._first.add(address)
        self._last.add(address + size)

    def _is_border(self, address: int) -> bool:
        return address in self._first or address in self._last

    def _put(self, address: int, size: int) -> None:
        self._free[address] = size
        self._ends[address + size] = address

    def _take(self, address: int) -> int:
        size = self._free.pop(address)
        del self._ends[address + size]
        return size

    def _is_split(self, address: int, size: int, available: int) -> bool:
        fine = size <= LARGEST_SMALL or any(begin <= address < end for begin, end in self._expandable)
        return is_split(available - size, size, small=fine, largest_split=self._largest_split)


def _divisions(setting: object) -> tuple[int, ...]:
    """Divisions by power of two, from a setting such as `{"1": 0, "2": 4}` whose keys are MiB."""
    if not isinstance(setting, dict):
        return ()
    found = {int(key).bit_length() - 1: int(value) for key, value in setting.items() if str(key).isdecimal() and value}
    return tuple(found.get(power, 0) for power in range(DIVISIONS)) if found else ()


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
    """Where in the history a phase lies; moments count the events until then.

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
    """What happened, event by event.

    Attributes:
        before: Blocks that were live when the history began.
        changes: For each event the block that it allocated, or freed, and its bytes or less its bytes; None for others.
        reserved: Bytes held from the driver at each moment; a moment counts the events until then.
        stretches: The phases in order.
    """

    before: list[ProfiledBlock] = field(default_factory=list)
    changes: list[tuple[ProfiledBlock, int] | None] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    stretches: list[PhaseSpan] = field(default_factory=list)


def build_log(start: HistoryStart, events: Sequence[Mapping[str, Any]], marks: Sequence[Mark]) -> AllocationLog:
    """Go through the history with the marks.

    Args:
        start: What there was when the history began.
        events: The history.
        marks: Made meanwhile, in order.

    Raises:
        UnexplainedError: The bytes in live blocks are not what the allocator counted at one of the marks.
    """
    teller = _LogBuilder(start)
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
            raise HistoryMismatchError("the history lost some of its events")
        teller.mark(mark)
        mark = next(waiting, None)
    return teller.story


_COUNTED = frozenset({"alloc", "free_requested"})


class _LogBuilder:
    def __init__(self, start: HistoryStart) -> None:
        self.story = AllocationLog(reserved=[start.reserved_bytes])
        self.heap = FreeBlocks(start.segments, start.settings)
        self.reserved = start.reserved_bytes
        self.live: dict[int, ProfiledBlock] = {}
        self.ending: dict[int, int] = {}
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

    def _allocate(self, address: int, requested: int) -> tuple[ProfiledBlock, int]:
        size = self.heap.allocate(address, requested)
        block = ProfiledBlock(size, Category.WORKSPACE, self._module())
        self.live[address] = block
        if self._in_forward():
            self.fresh.append(block)
        return block, size

    def _free(self, address: int) -> tuple[ProfiledBlock, int]:
        block = self.live.pop(address, None)
        if block is None:
            raise HistoryMismatchError("a block was freed that was not live")
        self.ending[address] = block.size
        block.is_gone = True
        if self.is_clearing and not block.is_labelled:
            block.category, block.module, block.is_labelled = Category.WORKSPACE, None, True
        return block, -block.size

    def _release(self, address: int) -> None:
        if address not in self.ending:
            raise HistoryMismatchError("a block became free that was not given back")
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
            raise HistoryMismatchError(
                f"the history comes to {self.allocated} bytes where the allocator counted {mark.allocated_bytes}"
            )
        _MARKS[mark.kind](self, mark.value)

    def begin(self, stage: MicroPhase) -> None:
        at = len(self.story.changes)
        self.stage = stage
        self.stack.clear()
        self.reached = None
        self.fresh.clear()
        self.story.stretches.append(PhaseSpan(stage, at, at, self.allocated, at))

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
