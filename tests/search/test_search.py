"""The search for the largest micro-batch: exact, bounded, and quick on real memory."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import CAPACITY, GIB, MIB, Oracle, assert_proven

from oomdoctor.errors import UsageError
from oomdoctor.results import Outcome, Trial
from oomdoctor.search.bracket import find_maximum, find_plain, trial_limit
from oomdoctor.search.recommended import find_recommended, revised

# Together 10,000 cases.
_CASES = settings(max_examples=2000, deadline=None)


_LARGEST = st.one_of(st.integers(1, 300), st.integers(1, 5000), st.sampled_from([64, 256, 512, 4096, 8192]))
_FIXED = st.integers(0, CAPACITY + GIB)
_SLOPE = st.integers(1, 6 * GIB)


@given(largest=_LARGEST, fixed=_FIXED, slope=_SLOPE)
@_CASES
def test_affine_memory(largest: int, fixed: int, slope: int) -> None:
    """Memory that grows by the same amount with each sample: the exact maximum, in time."""
    oracle = Oracle(lambda size: fixed + slope * size, fixed=fixed)
    result = oracle.find(largest)
    assert_proven(result, oracle, largest)
    assert result.maximum == min(largest, max(0, (CAPACITY - fixed) // slope))


@given(
    largest=_LARGEST, fixed=_FIXED, slope=_SLOPE, step=st.sampled_from([2 * MIB, 20 * MIB]), bend=st.integers(0, MIB)
)
@_CASES
def test_stepped_and_quadratic_memory(largest: int, fixed: int, slope: int, step: int, bend: int) -> None:
    """Memory in segments of 2 or 20 MiB, with a quadratic part: the exact maximum, in time."""
    oracle = Oracle(lambda size: -(-(fixed + slope * size + bend * size * size) // step) * step, fixed=fixed)
    result = oracle.find(largest)
    assert_proven(result, oracle, largest)
    assert result.maximum == oracle.maximum(largest)


@given(largest=_LARGEST, share=st.floats(0, 1), seed=st.integers())
@_CASES
def test_threshold_with_useless_peaks(largest: int, share: float, seed: int) -> None:
    """Peaks that mean nothing cost trials, but neither the exact maximum nor the bound."""
    threshold = round(largest * share)
    oracle = Oracle(lambda size: 0 if size <= threshold else CAPACITY + 1, peaks_from=seed)
    result = oracle.find(largest)
    assert_proven(result, oracle, largest)
    assert result.maximum == threshold


@given(largest=_LARGEST, fixed=_FIXED, slope=_SLOPE, seed=st.integers(), edge=st.integers(0, 20))
@_CASES
def test_threshold_that_peaks_lie_about(largest: int, fixed: int, slope: int, seed: int, edge: int) -> None:
    """Peaks that look like memory but lead away from the threshold leave the bound and the maximum alone."""
    threshold = random.Random(seed).randrange(largest + 1) if edge > 1 else edge * largest
    truth = Oracle(lambda size: fixed + slope * size, capacity=1 << 80, fixed=fixed)

    def lying(size: int) -> Trial:
        fits = size <= threshold
        told = truth(size)
        return replace(
            told,
            outcome=Outcome.FITS if fits else Outcome.OOM,
            allowed_bytes=CAPACITY,
            phases=told.phases if fits else told.phases[:1],
        )

    result = find_maximum(lying, largest=largest, capacity_bytes=CAPACITY)
    assert_proven(result, truth, largest)
    assert result.maximum == threshold


@given(
    edge=st.integers(2, 4000),
    beyond=st.integers(3, 4000),
    fixed=st.integers(0, CAPACITY - GIB),
    kind=st.sampled_from(["hole", "island"]),
)
@_CASES
def test_memory_that_is_not_monotone_by_one(edge: int, beyond: int, fixed: int, kind: str) -> None:
    """With a size that fails below the edge or fits above it, the answer was run, fits, and its successor does not."""
    slope = (CAPACITY - fixed) // edge
    edge = (CAPACITY - fixed) // slope
    odd, instead = (edge - 1, edge + 1) if kind == "hole" else (edge + 2, edge)
    oracle = Oracle(lambda size: fixed + slope * (instead if size == odd else size), fixed=fixed)
    result = oracle.find(edge + beyond)
    assert_proven(result, oracle, edge + beyond)
    assert result.maximum in {edge, odd - 1, odd}


@pytest.mark.parametrize("largest", [1, 2, 3, 4, 5, 7, 8, 9, 16, 33])
def test_every_threshold_of_a_small_range(largest: int) -> None:
    """Every threshold of every small range is found, within the bound."""
    for threshold in range(largest + 1):
        oracle = Oracle(lambda size, threshold=threshold: 0 if size <= threshold else CAPACITY + 1)
        result = oracle.find(largest)
        assert_proven(result, oracle, largest)
        assert result.maximum == threshold


@given(sizes=st.integers(1, 1 << 62))
def test_trial_limit_is_two_more_than_halvings(sizes: int) -> None:
    """The bound is two more than the times that the range can be halved, for any range."""
    halvings = trial_limit(sizes) - 2
    assert 2**halvings >= sizes
    assert halvings == 0 or 2 ** (halvings - 1) < sizes


def test_largest_that_fits_needs_few_trials() -> None:
    """A target that fits is tried at once when it is small, and second when it is not."""
    small = Oracle(lambda size: GIB + size * MIB, fixed=GIB)
    assert small.find(32).maximum == 32
    assert small.asked == [32]
    large = Oracle(lambda size: GIB + size * MIB, fixed=GIB)
    assert large.find(4096).maximum == 4096
    assert len(large.asked) == 2


def test_nothing_fits() -> None:
    """Where not even the smallest size fits, the maximum is 0 and the smallest size is the proof."""
    result = Oracle(lambda _: CAPACITY + 1).find(256)
    assert result.maximum == 0
    assert result.successor is not None
    assert result.successor.micro_batch == 1


def test_limit_that_is_not_memory() -> None:
    """A size limit ends the search like memory does, and is named."""
    oracle = Oracle(lambda size: GIB + size * MIB)

    def limited(size: int) -> Trial:
        trial = oracle(size)
        return trial if size <= 700 else replace(trial, outcome=Outcome.LIMIT, error="32-bit indexing")

    result = find_maximum(limited, largest=4096, capacity_bytes=CAPACITY)
    assert (result.maximum, result.limited_by) == (700, "limit")


def refusing_one(oracle: Oracle, *, also: int = 1) -> Any:
    """Make an oracle refuse its smallest sizes as a batch norm does."""

    def refuse(size: int) -> Trial:
        trial = oracle(size)
        text = "Expected more than 1 value per channel when training"
        return replace(trial, outcome=Outcome.FAILED, error=text) if size <= also else trial

    return refuse


@pytest.mark.parametrize("maximum", [2, 3])
def test_refused_size_one(maximum: int) -> None:
    """A model that refuses one sample is searched from 2, and the search says why."""
    oracle = Oracle(lambda size: size * CAPACITY // maximum)
    result = find_maximum(refusing_one(oracle), largest=3, capacity_bytes=CAPACITY, known=[oracle(3)][maximum - 2 :])
    assert (result.maximum, result.failed) == (maximum, None)
    result = find_maximum(refusing_one(oracle), largest=4096, capacity_bytes=CAPACITY)
    assert (result.maximum, result.failed) == (maximum, None)
    if 1 in [trial.micro_batch for trial in result.trials]:
        assert result.smallest == 2
        assert "refuses a micro-batch of 1" in result.notes[0]
        assert "Expected more than 1 value" in result.notes[0]


def test_refused_size_one_and_nothing_else_fits() -> None:
    """Where 1 is refused and 2 runs out, nothing fits, and both are said."""
    result = find_maximum(refusing_one(Oracle(lambda size: size * CAPACITY)), largest=64, capacity_bytes=CAPACITY)
    assert (result.maximum, result.smallest, result.failed) == (0, 2, None)
    assert result.successor is not None
    assert (result.successor.micro_batch, len(result.notes)) == (2, 1)


def test_size_that_fails_for_another_reason_ends_the_search() -> None:
    """An error of the user's code is no answer: the search stops there and hands the trial over."""
    oracle = Oracle(lambda size: size * CAPACITY // 2)
    result = find_maximum(refusing_one(oracle, also=2), largest=64, capacity_bytes=CAPACITY)
    assert result.failed is not None
    assert result.failed.outcome is Outcome.FAILED
    first = find_maximum(refusing_one(oracle, also=64), largest=64, capacity_bytes=CAPACITY)
    assert len(first.trials) == 1
    assert first.failed is first.trials[0]
    assert first.maximum == 0


def test_refusal_of_the_only_size_is_a_failure() -> None:
    """With a target of one sample there is no second size to try."""
    oracle = Oracle(lambda size: size * MIB)
    result = find_maximum(refusing_one(oracle), largest=1, capacity_bytes=CAPACITY)
    assert result.failed is not None


def test_known_trials_are_used_where_they_prove_something() -> None:
    """Known trials narrow the bracket, unless they ran with another allowance that proves nothing here."""
    oracle = Oracle(lambda size: 2 * GIB + size * GIB)
    proof = [oracle(22), oracle(23)]
    oracle.asked.clear()
    assert oracle.find(4096, known=proof).maximum == 22
    assert oracle.asked == []
    useless = [replace(proof[0], allowed_bytes=CAPACITY + 1), replace(proof[1], allowed_bytes=CAPACITY - 1)]
    assert oracle.find(4096, known=useless).maximum == 22
    assert {22, 23} <= set(oracle.asked)


def test_known_trials_that_contradict_each_other_are_noted() -> None:
    """A size that fits above one that did not is an answer, with a note."""
    oracle = Oracle(lambda size: 2 * GIB + size * GIB)
    known = [replace(oracle(10), outcome=Outcome.OOM)]
    result = oracle.find(64, known=[*known, oracle(12)])
    assert result.maximum == 22
    assert "22 fits although 10, which is smaller, did not" in result.notes


def test_memory_that_shrinks_with_size_is_noted() -> None:
    """A larger size that takes less memory than a smaller one is worth a note."""
    oracle = Oracle(lambda size: (8 if size < 20 else 2) * GIB + size * GIB // 2)
    result = oracle.find(64, known=[oracle(19), oracle(20)])
    assert result.maximum == 44
    assert any("memory does not grow with size" in note for note in result.notes)


def test_empty_range_is_refused() -> None:
    """A smallest size above the largest, or below 1, is a usage error."""
    for smallest, largest in ((5, 4), (0, 4), (1, 0)):
        with pytest.raises(UsageError):
            Oracle(lambda _: 0).find(largest, smallest=smallest)


@given(slope=st.integers(10 * MIB, 3 * GIB), fixed=st.integers(0, 4 * GIB))
def test_foresight_ends_the_search_at_once(slope: int, fixed: int) -> None:
    """Where the largest size can be predicted from one that fits, nothing is left but to run it and its successor."""
    oracle = Oracle(lambda size: fixed + slope * size, fixed=fixed)
    maximum = (CAPACITY - fixed) // slope
    result = oracle.find(4096, predict_max=lambda low, high: min(max(maximum, low), high - 1))
    assert_proven(result, oracle, 4096, foresight=6)
    assert result.maximum == maximum
    first_fit = next(i for i, trial in enumerate(result.trials) if trial.outcome is Outcome.FITS)
    assert len(result.trials) <= first_fit + 3


@given(threshold=st.integers(0, 4096), seed=st.integers())
def test_wrong_foresight_costs_nothing_but_trials(threshold: int, seed: int) -> None:
    """Whatever is predicted, the maximum is exact; the bound is wider only by the sizes that prediction rests on."""
    chance = random.Random(seed)
    oracle = Oracle(lambda size: 0 if size <= threshold else CAPACITY + 1)
    result = oracle.find(
        4096, predict_max=lambda low, high: chance.choice([None, low, high - 1, chance.randint(low, high)])
    )
    assert_proven(result, oracle, 4096, foresight=6)
    assert result.maximum == threshold


# Recommended sizes.


def reserving(size: int, allowed: int) -> Trial:
    """A size that needs 1 GiB a sample and reserves a tenth more where it is allowed to; else the cache is flushed."""
    need = 2 * GIB + size * GIB
    reserved = need * 11 // 10
    return Trial(
        micro_batch=size,
        outcome=Outcome.FITS if need <= allowed else Outcome.OOM,
        allowed_bytes=allowed,
        peak_allocated_bytes=min(need, allowed),
        peak_reserved_bytes=min(reserved, allowed),
        fixed_bytes=2 * GIB if need <= allowed else None,
        alloc_retries=int(reserved > allowed),
    )


@given(capacity=st.integers(2 * GIB, 300 * GIB), headroom=st.floats(0, 0.5))
def test_recommended_size_is_tested_and_comfortable(capacity: int, headroom: float) -> None:
    """The recommended size was run, fits into what is allowed, and made the allocator give nothing back."""
    search = find_maximum(lambda size: reserving(size, capacity), largest=4096, capacity_bytes=capacity)
    allowed, ran = int(capacity * (1 - headroom)), []

    def run(size: int) -> Trial:
        ran.append(reserving(size, allowed))
        return ran[-1]

    recommended = find_recommended(run, search=search, allowed_bytes=allowed)
    best = max((size for size in range(search.maximum + 1) if not reserving(size, allowed).alloc_retries), default=0)
    assert recommended <= best
    assert recommended >= best * 0.85 - 1
    proofs = [trial for trial in (*search.trials, *ran) if trial.micro_batch == recommended]
    assert not recommended or any(
        trial.outcome is Outcome.FITS and not trial.alloc_retries and (trial.peak_reserved_bytes or 0) <= allowed
        for trial in proofs
    )


def test_known_proof_is_recommended_without_a_trial() -> None:
    """A size that ran with room to spare already is not run again."""
    search = find_maximum(lambda size: reserving(size, 24 * GIB), largest=4, capacity_bytes=24 * GIB)

    def never(size: int) -> Trial:
        raise AssertionError(size)

    assert find_recommended(never, search=search, allowed_bytes=23 * GIB) == 4


@pytest.mark.parametrize("flaw", [{"alloc_retries": 1}, {"swallowed_ooms": 1}])
def test_size_at_the_edge_is_never_recommended(flaw: dict[str, int]) -> None:
    """A size that made the allocator give back its cache, or whose code caught an OOM, is not recommended."""
    plain = Oracle(lambda size: GIB + size * GIB, fixed=GIB)

    def run(size: int) -> Trial:
        return replace(plain(size), **flaw) if size > 3 else plain(size)

    search = find_maximum(run, largest=4096, capacity_bytes=CAPACITY)
    assert search.maximum == 23
    assert 1 <= find_recommended(run, search=search, allowed_bytes=CAPACITY) <= 3


@pytest.mark.parametrize("edge", range(9, 23))
def test_recommended_size_is_raised_towards_the_edge(edge: int) -> None:
    """Where predicted sizes prove uncomfortable, two further trials bring the recommended size near to the edge."""
    plain = Oracle(lambda size: GIB + size * GIB, fixed=GIB)
    ran = []

    def run(size: int) -> Trial:
        ran.append(size)
        return replace(plain(size), alloc_retries=int(size > edge))

    search = find_maximum(run, largest=4096, capacity_bytes=CAPACITY)
    tried = len(ran)
    recommended = find_recommended(run, search=search, allowed_bytes=CAPACITY)
    assert edge / 1.2 - 1 < recommended <= edge
    assert len(ran) - tried <= 6


def test_nothing_is_recommended_where_nothing_fits() -> None:
    """Without a maximum there is nothing to recommend, and nothing to try."""
    oracle = Oracle(lambda _: CAPACITY + 1)
    search = oracle.find(8)
    oracle.asked.clear()
    assert find_recommended(oracle, search=search, allowed_bytes=CAPACITY) == 0
    assert oracle.asked == []


@given(fixed=st.integers(0, CAPACITY // 2), slope=st.integers(20 * MIB, GIB), gradients=st.integers(0, 4 * GIB))
@settings(max_examples=300, deadline=None)
def test_a_plain_step_is_answered_exactly(fixed: int, slope: int, gradients: int) -> None:
    """Without the gradients that accumulation keeps alive the largest size is found, in few trials beyond the first."""
    target = 1 << 16
    accumulating = Oracle(lambda size: fixed + gradients + slope * size, fixed=fixed + gradients)
    search = accumulating.find(target)
    if not 0 < search.maximum < target:
        return
    plain = Oracle(lambda size: fixed + slope * size, fixed=fixed)

    found = find_plain(
        plain, search.trials, maximum=search.maximum, largest=target, capacity_bytes=CAPACITY,
        gradient_bytes=gradients, predict_max=lambda *_: None,
    )  # fmt: skip

    assert found == max(search.maximum, (CAPACITY - fixed) // slope)


def test_a_recommended_size_follows_later_trials() -> None:
    """A trial of the plan that leaves the headroom free raises the recommended size; one beyond a failure does not."""
    spare = replace(Oracle(lambda _: CAPACITY // 2)(100), micro_batch=104)
    tight = replace(spare, micro_batch=106, peak_reserved_bytes=CAPACITY)
    lucky = replace(spare, micro_batch=110)
    failed = replace(spare, micro_batch=108, outcome=Outcome.OOM)

    def follows(*trials: Trial) -> int:
        return revised(100, trials, maximum=120, allowed_bytes=CAPACITY * 95 // 100)

    assert follows() == follows(tight) == 100
    assert follows(spare, tight) == 104
    assert follows(spare, failed, lucky) == 104
    assert follows(spare, lucky) == 110
