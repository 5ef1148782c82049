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


def totals_by_moment(story: AllocationLog, moments: AbstractSet[int]) -> dict[int, Totals]:
    """Bytes by category at some moments."""
    return {moment: tuple(totals) for moment, totals in _scan(story) if moment in moments}


def peaks_by_category(story: AllocationLog, begin: int, end: int) -> list[int]:
    """For each category the first moment between two, themselves among them, when it is largest."""
    largest, when = [-1] * len(CATEGORIES), [begin] * len(CATEGORIES)
    for moment, totals in _scan(story):
        if begin <= moment <= end:
            for number, total in enumerate(totals):
                if total > largest[number]:
                    largest[number], when[number] = total, moment
    return when


def live_at(story: AllocationLog, moment: int) -> list[ProfiledBlock]:
    """The blocks that are live at a moment."""
    live = dict.fromkeys(story.before)
    for change in story.changes[:moment]:
        if change is not None and change[1] > 0:
            live[change[0]] = None
        elif change is not None:
            del live[change[0]]
    return list(live)


def _scan(story: AllocationLog) -> Iterator[tuple[int, list[int]]]:
    """Each moment with the bytes by category then; it is one list, which changes."""
    totals = [0] * len(CATEGORIES)
    for block in story.before:
        totals[ORDER[block.category]] += block.size
    yield 0, totals
    for moment, change in enumerate(story.changes, start=1):
        if change is not None:
            totals[ORDER[change[0].category]] += change[1]
        yield moment, totals


_MOST_POINTS: Final = 400


def summarise(
    story: AllocationLog, names: Sequence[str], micro_batch: int, micro_steps: int, reserved_bytes: int
) -> StepMemory:
    """Put the result together.

    Args:
        story: What happened.
        names: The modules' names.
        micro_batch: Size that was run.
        micro_steps: Micro-batches in each optimizer step.
        reserved_bytes: Most bytes held from the driver.
    """
    highest = max(story.stretches, key=lambda stretch: stretch.peak_bytes)
    shown = _shown(story, highest.peak)
    at = totals_by_moment(story, {*shown, *(moment for one in story.stretches for moment in (one.peak, one.end))})
    return StepMemory(
        micro_batch=micro_batch,
        micro_steps=micro_steps,
        peak_allocated_bytes=highest.peak_bytes,
        peak_reserved_bytes=reserved_bytes,
        peak_event=highest.peak,
        peak_iteration=highest.stage.iteration,
        peak_phase=highest.stage.phase,
        categories=_categories(at[highest.peak]),
        modules=_modules(live_at(story, highest.peak), names),
        category_peaks=_category_peaks(story, names),
        phases=tuple(_phase(stretch, at) for stretch in story.stretches),
        timeline=tuple(TimelinePoint(moment, None, story.reserved[moment], at[moment]) for moment in shown),
    )


def _phase(stretch: PhaseSpan, at: Mapping[int, Totals]) -> PhaseMemory:
    return PhaseMemory(
        iteration=stretch.stage.iteration,
        micro_step=stretch.stage.micro_step,
        phase=stretch.stage.phase,
        first_event=stretch.begin,
        last_event=stretch.end,
        peak_categories=at[stretch.peak],
        end_categories=at[stretch.end],
    )


def _categories(totals: Totals) -> tuple[CategoryBytes, ...]:
    """Those that are there, largest first; of equal ones the first in the order of `Category`."""
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


def _category_peaks(story: AllocationLog, names: Sequence[str]) -> tuple[ModuleBytes, ...]:
    """Each category by module at the first moment of its own when it is largest."""
    moments = peaks_by_category(story, story.stretches[0].begin, story.stretches[-1].end)
    live = {moment: live_at(story, moment) for moment in set(moments)}
    return tuple(
        found
        for category, moment in zip(CATEGORIES, moments, strict=True)
        for found in _modules((block for block in live[moment] if block.category is category), names)
    )


def _shown(story: AllocationLog, peak: int) -> list[int]:
    """Moments of the timeline: of each part of the history the highest, and always the first, the peak and the last."""
    allocated, turns = _allocated(story), _turns(story)
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


def _turns(story: AllocationLog) -> list[int]:
    """Moments when memory stops to rise or to fall, until the last phase ends.

    Autocast lets go of its casts in an order that differs from process to process, so that no moment on the way down is
    the same in two of them; before the first and after the last free they are.
    """
    found: list[int] = []
    rises = None
    for moment, change in enumerate(story.changes[: story.stretches[-1].end], start=1):
        if change is None:
            continue
        if found and rises == (change[1] > 0):
            found.pop()
        rises = change[1] > 0
        found.append(moment)
    return found


def _allocated(story: AllocationLog) -> list[int]:
    """Bytes in live blocks at each moment until the last phase ends; what is put away after it is no part of a step."""
    found = [sum(block.size for block in story.before)]
    for change in story.changes[: story.stretches[-1].end]:
        found.append(found[-1] + (0 if change is None else change[1]))
    return found
