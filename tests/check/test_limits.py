"""Each limit against every kind of answer: what holds, what is broken, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.check.entries import Entry
from oomdoctor.check.verdicts import baseline_limit, judge
from oomdoctor.request import ProbeRequest
from oomdoctor.results import (
    Device,
    FigureKind,
    LeastMemory,
    Limit,
    LimitName,
    MicroBatch,
    Movement,
    Outcome,
    PhaseName,
    ProbeResult,
    StepMemory,
    Trial,
)
from oomdoctor.results.throughput import SizeThroughput, Throughput
from oomdoctor.search.probe_search import plan_accumulation
from oomdoctor.units import MIB

CAPACITY = 1000 * MIB
QUESTION = ProbeRequest(target="model.py", directory=Path("/"), target_batch=64)


def trial(size: int, reserved: int, **changes: Any) -> Trial:
    """A trial that fits and holds so many MiB."""
    return replace(Trial(size, Outcome.FITS, CAPACITY, reserved * MIB, reserved * MIB), **changes)


def answer(maximum: int, recommended: int, *trials: Trial, **changes: Any) -> ProbeResult:
    """What a probe with the target 64 found."""
    result = ProbeResult(
        target="model.py",
        precision="fp32",
        optimizer="AdamW",
        micro_batch=MicroBatch(maximum, recommended, "memory"),
        accumulation=plan_accumulation(64, maximum) if maximum else None,
        capacity_bytes=CAPACITY,
        headroom=0.05,
        weights_bytes=MIB,
        device=Device("null", "Tesla T4", "7.5", 2 * CAPACITY),
        stable=True,
        trials=trials,
        phases=(),
        reasons=(),
    )
    return replace(result, **changes)


def recorded(size: int, reserved: int) -> StepMemory:
    """Memory at one size, of which only what is held counts here."""
    return StepMemory(size, 2, MIB, reserved * MIB, 0, 2, PhaseName.BACKWARD, (), (), (), (), ())


def limit(result: ProbeResult, name: LimitName, **asked: Any) -> Limit:
    """What comes of one limit."""
    (found,) = [each for each in judge(Entry("pretrain", QUESTION, **asked), result) if each.name is name]
    return found


def test_fitting_is_asked_of_everyone() -> None:
    """An entry without a limit asks that a micro-batch fits."""
    (holds,) = judge(Entry("pretrain", QUESTION), answer(12, 11))
    assert holds == Limit(LimitName.FITS, 1, 12, holds=True, text="micro-batch 12 is the largest that fits")
    (broken,) = judge(Entry("pretrain", QUESTION), answer(0, 0))
    assert (broken.found, broken.holds) == (0, False)
    assert broken.text == "nothing fits, not even the smallest size"


@given(st.integers(0, 64), st.integers(1, 64), st.integers(1, 64))
def test_numbers_are_compared(maximum: int, wanted: int, most: int) -> None:
    """A maximum of at least what is asked for and a plan of at most so many steps hold, and nothing else does."""
    entry = Entry("pretrain", QUESTION, min_micro_batch=wanted, max_accumulation_steps=most)
    found = {each.name: each for each in judge(entry, answer(maximum, maximum))}
    assert found[LimitName.MIN_MICRO_BATCH].holds == (maximum >= wanted)
    assert found[LimitName.MIN_MICRO_BATCH].found == maximum
    assert found[LimitName.MAX_ACCUMULATION_STEPS].holds == (maximum > 0 and -(-64 // maximum) <= most)
    assert found[LimitName.MAX_ACCUMULATION_STEPS].found == (-(-64 // maximum) if maximum else None)


@pytest.mark.parametrize(("most", "holds"), [(3, False), (4, True), (5, True)])
def test_a_plan_may_be_as_long_as_is_allowed(most: int, holds: bool) -> None:
    """A plan of four steps holds where four may be taken, and the text has both numbers."""
    judged = limit(answer(16, 16), LimitName.MAX_ACCUMULATION_STEPS, max_accumulation_steps=most)
    assert (judged.holds, judged.found, judged.asked) == (holds, 4, most)
    assert judged.text == f"the plan takes 4 accumulation steps, and at most {most} may be taken"


@given(st.integers(0, 64), st.integers(0, 64), st.floats(0, 0.99), st.integers(1, 64))
def test_broken_ones_come_first(maximum: int, recommended: int, headroom: float, wanted: int) -> None:
    """Whatever was found, everything asked for is judged once, and the broken ones are read first."""
    entry = Entry("pretrain", QUESTION, None, wanted, 8, 500 * MIB, headroom)
    limits = judge(entry, answer(maximum, min(maximum, recommended)))
    assert sorted(each.name for each in limits) == sorted(
        set(LimitName) - {LimitName.BASELINE, LimitName.VERIFY, *OF_OTHER_QUESTIONS}
    )
    assert [each.holds for each in limits] == sorted(each.holds for each in limits)
    assert all(each.text for each in limits)


OF_OTHER_QUESTIONS = {LimitName.AT_LEAST, LimitName.BUCKETS, LimitName.MIN_SAMPLES_PER_SECOND}


def test_the_fastest_is_held_to_what_is_asked_for() -> None:
    """What was timed is compared with the least rate that passes, which is named beside it."""
    size = SizeThroughput(8, 4, 812.0, (800.0, 830.0), 40, 2**30)
    timed = replace(answer(12, 11), throughput=Throughput(8, None, (size,), 40, is_settled=True))
    for asked, holds in ((812, True), (812.5, False)):
        entry = Entry("pretrain", QUESTION, min_samples_per_second=asked)
        (limit,) = (each for each in judge(entry, timed) if each.name is LimitName.MIN_SAMPLES_PER_SECOND)
        assert (limit.asked, limit.found, limit.holds) == (asked, 812.0, holds)
        assert "4 steps: 812 samples/s" in limit.text
        assert f"at least {asked:g} samples/s are asked for" in limit.text


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "found", "holds", "text"),
    [
        (answer(12, 11, memory=recorded(8, 500)), 500, True, "PyTorch holds 500.00 MiB at micro-batch 8, and at most"),
        (answer(12, 11, memory=recorded(8, 501)), 501, False, "PyTorch holds 501.00 MiB at micro-batch 8, and at most"),
        (answer(12, 11, trial(8, 400), trial(8, 450)), 450, True, "PyTorch holds 450.00 MiB at micro-batch 8"),
        (answer(12, 11, trial(9, 400), memory=recorded(9, 400)), None, False, "fits, but its memory could not be"),
        (answer(7, 7, trial(8, 400, outcome=Outcome.OOM)), None, False, "micro-batch 8 does not fit, and at most 500"),
        (answer(7, 7, memory=recorded(8, 700)), 700, False, "PyTorch holds 700.00 MiB at micro-batch 8"),
    ],
)
def test_memory_is_that_at_the_size(result: ProbeResult, found: int | None, holds: bool, text: str) -> None:
    """Memory held at the size that was asked for counts, recorded or in a trial; what nobody saw does not hold."""
    judged = limit(result, LimitName.MAX_MEMORY, micro_batch=8, max_memory_bytes=500 * MIB)
    assert (judged.found, judged.holds) == (None if found is None else found * MIB, holds)
    assert text in judged.text


def test_memory_says_what_of_it_is_optional() -> None:
    """The limit holds the peak with workspaces, and its text has the least memory where that is known."""
    found = answer(12, 11, trial(8, 600, workspace_bytes=MIB))
    judged = limit(found, LimitName.MAX_MEMORY, micro_batch=8, max_memory_bytes=500 * MIB)
    assert not judged.holds
    assert "holds 600.00 MiB at micro-batch 8 with cuDNN's optional workspaces, and" in judged.text
    least = LeastMemory(8, 600 * MIB, 400 * MIB, None, 3)
    known = limit(replace(found, least_memory=least), LimitName.MAX_MEMORY, micro_batch=8, max_memory_bytes=500 * MIB)
    assert not known.holds
    assert "optional workspaces (400.00 MiB is enough to run), and" in known.text


def test_the_smallest_size_that_passes_is_where_memory_is_measured() -> None:
    """Without a size of its own, memory is limited at the micro-batch that is asked for."""
    judged = limit(answer(12, 11, trial(6, 300)), LimitName.MAX_MEMORY, min_micro_batch=6, max_memory_bytes=MIB)
    assert judged.text == "PyTorch holds 300.00 MiB at micro-batch 6, and at most 1.00 MiB may be held"


# --- headroom --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "holds", "found"),
    [
        (answer(12, 9, trial(9, 980), trial(9, 900, allowed_bytes=900 * MIB)), True, 0.1),
        (answer(12, 8, trial(8, 850)), True, 0.15),
        (answer(12, 7, trial(8, 950)), False, 0.05),
        (answer(12, 7), False, None),
        (answer(12, 7, trial(8, 850, alloc_retries=3)), False, None),
        (answer(0, 0), False, None),
    ],
)
def test_headroom_is_left_by_the_recommended_size(result: ProbeResult, holds: bool, found: float | None) -> None:
    """The size found with the headroom withheld has to reach what is asked for; the share is one that fits that."""
    judged = limit(result, LimitName.HEADROOM, headroom=0.1, min_micro_batch=8)
    assert (judged.holds, judged.asked) == (holds, 0.1)
    assert judged.found == (found if found is None else pytest.approx(found))
    size = result.micro_batch.recommended
    largest = f"micro-batch {size} is recommended" if size else "no micro-batch can be recommended"
    assert judged.text == f"with 10% of memory left free {largest}, and at least 8 is asked for"


def test_without_a_size_headroom_asks_for_one_sample() -> None:
    """Some micro-batch has to leave it."""
    assert limit(answer(2, 1), LimitName.HEADROOM, headroom=0.3).holds
    assert not limit(answer(2, 0), LimitName.HEADROOM, headroom=0.3).holds


# --- the baseline ----------------------------------------------------------------------------------------------------


def movement(*, is_beyond: bool) -> Movement:
    """A figure that moved."""
    return Movement(FigureKind.PEAK, "peak", 1, 2, is_beyond=is_beyond, text="peak +1 byte")


@pytest.mark.parametrize(
    ("movements", "holds", "text"),
    [
        ((), True, "no figure is worse than the baseline by more than 2.5%"),
        ([movement(is_beyond=False)], True, "no figure is worse than the baseline by more than 2.5%"),
        ([movement(is_beyond=True)], False, "1 figure is worse than the baseline by more than 2.5%"),
        ([movement(is_beyond=True)] * 2, False, "2 figures are worse than the baseline by more than 2.5%"),
        (None, False, "there is no baseline to compare with; `oomdoctor check --update` writes it"),
    ],
)
def test_the_baseline_holds_where_nothing_is_beyond(movements: list[Movement] | None, holds: bool, text: str) -> None:
    """What is worse than the tolerance breaks it, and so does a baseline that is not there."""
    judged = baseline_limit(movements, 0.025)
    assert (judged.name, judged.holds, judged.text) == (LimitName.BASELINE, holds, text)


def test_a_baseline_that_was_just_written_holds() -> None:
    """After an update there is nothing to be worse than."""
    assert baseline_limit([movement(is_beyond=True)], 0.02, updated=True).holds
    assert baseline_limit([], 0.02, updated=True, left_out="another size").holds


def test_memory_that_is_not_compared_fails() -> None:
    """A check that could not look at the memory that the baseline has does not pass, and says what to do."""
    judged = baseline_limit([], 0.02, left_out="the baseline has memory at micro-batch 8")
    assert not judged.holds
    assert judged.text == "the baseline has memory at micro-batch 8; `oomdoctor check --update` writes it anew"
