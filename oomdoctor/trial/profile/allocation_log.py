"""Join the allocator's history with the marks, and summarise it: memory by category and module when it matters.

The sizes of blocks come from following the allocator's rules (`oomdoctor.agent.allocator_blocks`), which is checked
against the allocator's own count at every mark; where they differ, there is no profile.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.agent.allocator_blocks import AllocatorBlocks, HistoryMismatchError
from oomdoctor.results import (
    Category,
    CategoryBytes,
    ModuleBytes,
    PhaseMemory,
    PhaseName,
    StepMemory,
    TimelinePoint,
)
from oomdoctor.trial.profile.marks import COUNTED, Label, Mark, MarkKind, MicroPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

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
        is_counted = action in COUNTED
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
            self.live[address] = block = ProfiledBlock(change_bytes, Category.WORKSPACE, self._module())
            phase = self._phase()
            if phase is PhaseName.FORWARD or (phase is PhaseName.BACKWARD and bool(self.stack)):
                self.fresh.append(block)
            change = block, change_bytes
        elif action == "free_requested":
            change = self._free(address), change_bytes
        else:
            self.reserved += _RESERVED_SIGNS.get(action, 0) * size
        self.log.changes.append(change)
        self.log.reserved.append(self.reserved)
        if change is not None:
            self.allocated += change_bytes
            if self.stage is not None:
                span = self.log.spans[-1]
                if self.allocated > span.peak_bytes:
                    span.peak_bytes, span.peak = self.allocated, len(self.log.changes)

    def _free(self, address: int) -> ProfiledBlock:
        block = self.live.pop(address, None)
        if block is None:
            raise HistoryMismatchError("a block was freed that was not live")
        block.is_gone = True
        if self.is_clearing and not block.is_labelled:
            block.category, block.module, block.is_labelled = Category.WORKSPACE, None, True
        return block

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

    def _module(self) -> int | None:
        phase = self._phase()
        if phase is None or not phase.calls_model:
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


CATEGORIES: Final = tuple(Category)
ORDER: Final = {category: number for number, category in enumerate(CATEGORIES)}

Totals = tuple[int, ...]
"""Bytes by category, in the order of `Category`."""


def totals_by_moment(log: AllocationLog, moments: AbstractSet[int]) -> dict[int, Totals]:
    """Return bytes by category at some moments."""
    return {moment: tuple(totals) for moment, totals in _scan(log) if moment in moments}


def peaks_by_category(log: AllocationLog, begin: int, end: int) -> list[int]:
    """Return for each category the first moment from `begin` to `end` when it is largest."""
    largest, when = [-1] * len(CATEGORIES), [begin] * len(CATEGORIES)
    for moment, totals in _scan(log):
        if begin <= moment <= end:
            for number, total in enumerate(totals):
                if total > largest[number]:
                    largest[number], when[number] = total, moment
    return when


def live_at(log: AllocationLog, moment: int) -> list[ProfiledBlock]:
    """Return the blocks that are live at a moment."""
    live = dict.fromkeys(log.before)
    for change in log.changes[:moment]:
        if change is not None and change[1] > 0:
            live[change[0]] = None
        elif change is not None:
            del live[change[0]]
    return list(live)


def _scan(log: AllocationLog) -> Iterator[tuple[int, list[int]]]:
    """Yield each moment with the bytes by category then, in one list that changes."""
    totals = [0] * len(CATEGORIES)
    for block in log.before:
        totals[ORDER[block.category]] += block.size
    yield 0, totals
    for moment, change in enumerate(log.changes, start=1):
        if change is not None:
            totals[ORDER[change[0].category]] += change[1]
        yield moment, totals


_MOST_POINTS: Final = 400


def summarise(
    log: AllocationLog, names: Sequence[str], micro_batch: int, micro_steps: int, reserved_bytes: int
) -> StepMemory:
    """Put the result together.

    Args:
        log: The log of all blocks.
        names: The modules' names.
        micro_batch: Size that was run.
        micro_steps: Micro-batches in each optimizer step.
        reserved_bytes: Most bytes held from the driver.
    """
    highest = max(log.spans, key=lambda span: span.peak_bytes)
    shown = _shown(log, highest.peak)
    at = totals_by_moment(log, {*shown, *(moment for one in log.spans for moment in (one.peak, one.end))})
    found = [
        CategoryBytes(category, total) for category, total in zip(CATEGORIES, at[highest.peak], strict=True) if total
    ]
    return StepMemory(
        micro_batch=micro_batch,
        micro_steps=micro_steps,
        peak_allocated_bytes=highest.peak_bytes,
        peak_reserved_bytes=reserved_bytes,
        peak_event=highest.peak,
        peak_iteration=highest.stage.iteration,
        peak_phase=highest.stage.phase,
        categories=tuple(sorted(found, key=lambda entry: -entry.allocated_bytes)),
        modules=_modules(live_at(log, highest.peak), names),
        category_peaks=_category_peaks(log, names),
        phases=tuple(_phase(span, at) for span in log.spans),
        timeline=tuple(TimelinePoint(moment, None, log.reserved[moment], at[moment]) for moment in shown),
    )


def _phase(span: PhaseSpan, at: Mapping[int, Totals]) -> PhaseMemory:
    return PhaseMemory(
        iteration=span.stage.iteration,
        micro_step=span.stage.micro_step,
        phase=span.stage.phase,
        first_event=span.begin,
        last_event=span.end,
        peak_categories=at[span.peak],
        end_categories=at[span.end],
    )


def _modules(blocks: Iterable[ProfiledBlock], names: Sequence[str]) -> tuple[ModuleBytes, ...]:
    """Blocks of one module's name and category as one, largest first."""
    sizes: Counter[tuple[str | None, Category]] = Counter()
    counts: Counter[tuple[str | None, Category]] = Counter()
    for block in blocks:
        key = (None if block.module is None else names[block.module], block.category)
        sizes[key] += block.size
        counts[key] += 1
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0][0] or "", ORDER[item[0][1]]))
    return tuple(ModuleBytes(*key, allocated_bytes=size, blocks=counts[key]) for key, size in ordered)


def _category_peaks(log: AllocationLog, names: Sequence[str]) -> tuple[ModuleBytes, ...]:
    """Return each category by module at the first moment when that category is largest."""
    moments = peaks_by_category(log, log.spans[0].begin, log.spans[-1].end)
    live = {moment: live_at(log, moment) for moment in set(moments)}
    return tuple(
        found
        for category, moment in zip(CATEGORIES, moments, strict=True)
        for found in _modules((block for block in live[moment] if block.category is category), names)
    )


def _shown(log: AllocationLog, peak: int) -> list[int]:
    """Moments of the timeline: of each part of the history the highest, and always the first, the peak and the last."""
    found = [sum(block.size for block in log.before)]
    for change in log.changes[: log.spans[-1].end]:
        found.append(found[-1] + (0 if change is None else change[1]))
    allocated, turns = found, _turns(log)
    always = {0, peak, len(allocated) - 1}
    if len(turns) + len(always) <= _MOST_POINTS:
        return sorted(always.union(turns))
    parts = _MOST_POINTS - len(always)
    highest: dict[int, int] = {}
    for moment in turns:
        part = moment * parts // len(allocated)
        if part not in highest or allocated[moment] > allocated[highest[part]]:
            highest[part] = moment
    return sorted(always.union(highest.values()))


def _turns(log: AllocationLog) -> list[int]:
    """Moments when memory stops to rise or to fall, until the last phase ends.

    Autocast lets go of its casts in an order that differs from process to process, so that no moment on the way down is
    the same in two of them; before the first and after the last free they are.
    """
    found: list[int] = []
    rises = None
    for moment, change in enumerate(log.changes[: log.spans[-1].end], start=1):
        if change is None:
            continue
        if found and rises == (change[1] > 0):
            found.pop()
        rises = change[1] > 0
        found.append(moment)
    return found
