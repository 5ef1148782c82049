"""What a story of blocks is summed up to."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.results import Category, PhaseName, StepMemory
from oomdoctor.trial.profile.allocation_log import AllocationLog, PhaseSpan, ProfiledBlock, summarise
from oomdoctor.trial.profile.marks import MicroPhase


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
