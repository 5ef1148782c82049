"""What a story of blocks is summed up to."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.results import Category, PhaseName, StepMemory
from oomdoctor.trial.profile.allocation_log import AllocationLog, PhaseSpan, ProfiledBlock, summarise
from oomdoctor.trial.profile.marks import MicroPhase
from oomdoctor.trial.profile.operators import Origin, lines_at


def _summary(changes: list[tuple[ProfiledBlock, int]]) -> StepMemory:
    total, highest, peak = 0, 0, 0
    for moment, (_, size) in enumerate(changes, start=1):
        total += size
        if total > highest:
            highest, peak = total, moment
    stretch = PhaseSpan(MicroPhase(1, 1, PhaseName.FORWARD), 0, len(changes), highest, peak)
    return summarise(AllocationLog([], list(changes), [highest] * (len(changes) + 1), [stretch]), ["a"], 1, 1, highest)


def test_the_order_in_which_blocks_are_let_go_is_of_no_account() -> None:
    """Autocast frees its casts in any order, and every order gives the same result to the last point of the time."""
    blocks = [ProfiledBlock(512 * size, Category.ACTIVATIONS, 0) for size in (1, 2, 3)]
    begin = [(block, block.size) for block in blocks]
    last = ProfiledBlock(4096, Category.WORKSPACE, None)

    found = {
        _summary([*begin, *((block, -block.size) for block in order), (last, 4096)]) for order in permutations(blocks)
    }

    assert len(found) == 1
    assert [point.event for point in found.pop().timeline] == [0, 3, 6, 7]


SUM, OTHER = Origin("aten::add", "model.py:1", is_sum=True), Origin("aten::mm", "model.py:2")


def _aligned(sizes: list[int], noted: list[tuple[int, Origin | None]]) -> list[str | None]:
    log = AllocationLog([], [(ProfiledBlock(size, Category.WORKSPACE, None), size) for size in sizes])
    lines = lines_at(log, [{"action": "alloc", "size": size} for size in sizes], noted, len(sizes))
    assert sum(part.allocated_bytes for part in lines) in (sum(sizes), 0)
    return sorted((part.operator or "") for part in lines)


def test_operators_are_told_by_a_trial_with_more_sums() -> None:
    """Sums of gradients that are made in place when nobody watches are left out, wherever they are."""
    noted = [(2048, OTHER), (4096, SUM), (4096, None), (4096, SUM), (2048, OTHER), (4096, SUM)]
    assert _aligned([2048, 4096, 2048], noted) == ["", "aten::mm"]
    assert _aligned([2048, 4096, 4096, 2048, 4096], noted) == ["", "aten::add", "aten::mm"]


def test_trials_that_differ_tell_nothing() -> None:
    """Another size, or one that is missing, makes every attribution doubtful."""
    assert _aligned([2048, 4096], [(2048, OTHER), (8192, OTHER)]) == []
    assert _aligned([2048, 4096], [(2048, OTHER)]) == []
    assert _aligned([2048], [(2048, OTHER), (4096, OTHER)]) == []
    assert _aligned([2048], []) == []


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=1500))
def test_the_timeline_keeps_the_first_the_peak_and_the_last(steps: list[tuple[int, bool]]) -> None:
    """However long the history, there are at most 400 points, in order, and the peak is one of them."""
    live: list[ProfiledBlock] = []
    changes = []
    for size, frees in steps:
        if frees and live:
            block = live.pop()
            changes.append((block, -block.size))
        else:
            live.append(ProfiledBlock(512 * size, Category.ACTIVATIONS, 0))
            changes.append((live[-1], live[-1].size))
    memory = _summary(changes)
    events = [point.event for point in memory.timeline]

    assert len(events) <= 400
    assert events == sorted(set(events))
    assert {0, memory.peak_event, len(changes)} <= set(events)
    assert max(sum(point.categories) for point in memory.timeline) == memory.peak_allocated_bytes
