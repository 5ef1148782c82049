"""Summarise an allocation log: memory by category and module at the moments that matter."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from oomdoctor.results import Category, CategoryBytes, ModuleBytes, PhaseMemory, StepMemory, TimelinePoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from oomdoctor.trial.profile.allocation_log import AllocationLog, PhaseSpan, ProfiledBlock


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
    return StepMemory(
        micro_batch=micro_batch,
        micro_steps=micro_steps,
        peak_allocated_bytes=highest.peak_bytes,
        peak_reserved_bytes=reserved_bytes,
        peak_event=highest.peak,
        peak_iteration=highest.stage.iteration,
        peak_phase=highest.stage.phase,
        categories=_categories(at[highest.peak]),
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


def _categories(totals: Totals) -> tuple[CategoryBytes, ...]:
    """Return the categories that hold bytes, largest first; of equal ones the first in the order of `Category`."""
    found = [CategoryBytes(category, total) for category, total in zip(CATEGORIES, totals, strict=True) if total]
    return tuple(sorted(found, key=lambda entry: -entry.allocated_bytes))


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
    allocated, turns = _allocated(log), _turns(log)
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


def _allocated(log: AllocationLog) -> list[int]:
    """Return bytes in live blocks at each moment until the last phase ends; later frees are no part of a step."""
    found = [sum(block.size for block in log.before)]
    for change in log.changes[: log.spans[-1].end]:
        found.append(found[-1] + (0 if change is None else change[1]))
    return found
