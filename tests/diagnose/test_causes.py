"""Which causes the evidence fits, and in which order."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from situations import full, gib, situation, snapshot, trend, with_facts

from oomdoctor.agent.oom_errors import table
from oomdoctor.diagnose.diagnose import CAUSE_RULES, find_causes
from oomdoctor.diagnose.evidence import JudgedEvidence, Situation
from oomdoctor.diagnose.remedies import choose_remedies
from oomdoctor.results import (
    Category,
    CauseId,
    Confidence,
    GrowingLine,
    LiveAllocation,
    MemoryLine,
    MemoryTrend,
    SourceLine,
    TrainingPhase,
)
from oomdoctor.units import MIB, format_size


def first(one: Situation) -> CauseId:
    """The cause that comes first."""
    return find_causes(one)[0].id


def causes(one: Situation) -> dict[CauseId, Confidence]:
    """Every cause with its confidence."""
    return {cause.id: cause.confidence for cause in find_causes(one)}


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_request_beyond_the_card_is_one_huge_allocation() -> None:
    """What is larger than the whole card can fit nowhere, whatever else is on it."""
    one = situation(tried=127, total=15, free=12, allocated=1, unallocated=0.1)
    assert first(one) is CauseId.SINGLE_HUGE_ALLOCATION
    assert find_causes(one)[0].confidence is Confidence.CERTAIN
    assert "127.00 GiB" in find_causes(one)[0].evidence
    assert "15.00 GiB" in find_causes(one)[0].evidence


def test_absurd_request_needs_no_card_to_be_absurd() -> None:
    """A size that no device has is a size that was computed wrongly."""
    assert first(with_facts(situation(), tried_bytes=4 * 10**18)) is CauseId.SINGLE_HUGE_ALLOCATION


def test_large_request_is_only_possibly_the_cause() -> None:
    """A quarter of the card at once is worth a word, behind the batch; most of it comes before the batch."""
    one = situation(tried=26, total=79, free=23, allocated=49, unallocated=5.8, process=55.8)
    assert first(one) is CauseId.BATCH_TOO_LARGE
    assert causes(one)[CauseId.SINGLE_HUGE_ALLOCATION] is Confidence.POSSIBLE
    most = situation(tried=52, total=79, free=23, allocated=49, unallocated=5.8, process=55.8)
    assert first(most) is CauseId.SINGLE_HUGE_ALLOCATION
    assert causes(most)[CauseId.SINGLE_HUGE_ALLOCATION] is Confidence.LIKELY
    assert CauseId.BATCH_TOO_LARGE in causes(most)


def test_cap_binds_where_the_card_has_room() -> None:
    """A cap is the cause where it is reached and the card is not full."""
    one = situation(tried=5.6, total=11, free=10.9, allocated=0, unallocated=0, allowed=5.6)
    assert causes(one) == {CauseId.MEMORY_FRACTION_CAP: Confidence.CERTAIN}


def test_cap_that_is_not_reached_is_not_the_cause() -> None:
    """A cap may be printed although other processes fill the card."""
    one = situation(total=191, free=0, allocated=9.6, unallocated=0, allowed=50)
    assert first(one) is CauseId.OTHER_PROCESS
    assert CauseId.MEMORY_FRACTION_CAP not in causes(one)


def test_listed_process_is_certain() -> None:
    """A process that the message lists with much of the card is named with what it holds."""
    one = situation(
        tried=1, total=24, free=0.1, allocated=5, unallocated=0.1, process=5.5, others=((4242, 18.0), (77, 0.2))
    )
    assert find_causes(one)[0].confidence is Confidence.CERTAIN
    assert "process 4242 holds 18.00 GiB" in find_causes(one)[0].evidence.lower().replace("gib", "GiB")


def test_own_line_of_a_container_is_no_other_process() -> None:
    """Where the numbers say that the listed process is this one, nobody else holds the card."""
    one = situation(tried=12, total=47.5, free=11, allocated=23.5, unallocated=12.1, others=((445, 36.5),), own_pid=445)
    assert CauseId.OTHER_PROCESS not in causes(one)
    assert first(one) is CauseId.FRAGMENTATION


def test_unlisted_memory_is_likely_another_process() -> None:
    """What is neither free nor ours is somebody's, even where the driver lists nobody."""
    assert first(situation(tried=0.02, total=31.7, free=0.01, allocated=0.6, unallocated=0.01)) is CauseId.OTHER_PROCESS


def test_display_of_a_small_card_is_normal() -> None:
    """A quarter of a 4 GiB card goes to the display and the CUDA context; no process is to blame."""
    one = situation(tried=0.05, total=3.95, free=0.04, allocated=2.65, unallocated=0.09)
    assert first(one) is CauseId.BATCH_TOO_LARGE


def test_holes_that_would_be_enough_are_fragmentation() -> None:
    """More is reserved in vain than was asked for."""
    one = situation(tried=0.15, total=31.7, free=0.01, allocated=24.9, unallocated=5.8)
    assert first(one) is CauseId.FRAGMENTATION
    assert "5.80 GiB" in find_causes(one)[0].evidence


@pytest.mark.parametrize("unallocated", [0.02, 0.2, 1.5])
def test_small_holes_are_not_fragmentation(unallocated: float) -> None:
    """On a full card a tiny request is smaller than the holes that every program has."""
    one = situation(tried=0.002, total=24, free=0.001, allocated=22, unallocated=unallocated)
    assert CauseId.FRAGMENTATION not in causes(one)


def test_holes_and_free_memory_together_are_a_possible_matter() -> None:
    """Holes that would be enough only with what is free come behind the batch."""
    one = situation(tried=4, total=10.7, free=1.75, allocated=4.4, unallocated=3.8)
    assert list(causes(one)) == [CauseId.BATCH_TOO_LARGE, CauseId.FRAGMENTATION, CauseId.SINGLE_HUGE_ALLOCATION]


def test_refusal_with_room_is_not_explained() -> None:
    """Where the card has much more free than was asked for, the answer is that nobody knows."""
    one = situation(tried=0.9, total=24, free=15.5, allocated=6.8, unallocated=0.07)
    assert causes(one) == {CauseId.UNKNOWN: Confidence.LIKELY}


def test_full_card_without_a_traceback_stays_open() -> None:
    """Numbers of a full card cannot tell the batch from the model, and do not pretend to."""
    assert set(causes(full()).values()) == {Confidence.POSSIBLE}
    assert first(full()) is CauseId.BATCH_TOO_LARGE
    tight = full(tried=0.25, allocated=23.1, unallocated=0.014, free=0.09)
    assert first(tight) is CauseId.MODEL_TOO_LARGE
    assert CauseId.BATCH_TOO_LARGE in causes(tight)
    trained = full(tried=0.25, allocated=23.1, unallocated=0.014, free=0.09, step=10)
    assert CauseId.MODEL_TOO_LARGE not in causes(trained)


# --- what the program was doing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (TrainingPhase.FORWARD, CauseId.BATCH_TOO_LARGE),
        (TrainingPhase.BACKWARD, CauseId.BATCH_TOO_LARGE),
        (TrainingPhase.BATCH_TO_DEVICE, CauseId.BATCH_TOO_LARGE),
        (TrainingPhase.OPTIMIZER_STEP, CauseId.OPTIMIZER_STATE),
        (TrainingPhase.MODEL_TO_DEVICE, CauseId.MODEL_TOO_LARGE),
        (TrainingPhase.CHECKPOINT_LOAD, CauseId.CHECKPOINT_LOAD),
        (TrainingPhase.EVALUATION, CauseId.MISSING_NO_GRAD),
    ],
)
def test_phase_tells(phase: TrainingPhase, expected: CauseId) -> None:
    """What the traceback shows being done decides on a full card, with numbers or without."""
    assert first(full(phase=phase)) is expected
    assert first(situation(phase=phase)) is expected


def test_other_process_outweighs_the_phase() -> None:
    """A card that others fill is no proof that the model is too large."""
    phase = TrainingPhase.MODEL_TO_DEVICE
    one = situation(tried=0.1, total=24, free=0.1, allocated=4, unallocated=0.1, others=((5, 19.0),), phase=phase)
    assert first(one) is CauseId.OTHER_PROCESS


def test_first_optimizer_step_is_certain() -> None:
    """Where no step was finished, the optimizer's state is what is new."""
    one = full(phase=TrainingPhase.OPTIMIZER_STEP, steps_done=0)
    assert causes(one)[CauseId.OPTIMIZER_STATE] is Confidence.CERTAIN
    assert causes(full(phase=TrainingPhase.OPTIMIZER_STEP, steps_done=9))[CauseId.OPTIMIZER_STATE] is Confidence.LIKELY


def test_evaluation_under_no_grad_is_its_batch() -> None:
    """A function that was decorated with `no_grad` lacks none."""
    frames = (
        SourceLine("/x/site-packages/torch/utils/_contextlib.py", 120, "decorate_context", "return func(*args)"),
        SourceLine("train.py", 3, "evaluate", "out = model(x)"),
    )
    one = full(phase=TrainingPhase.EVALUATION, frames=frames)
    assert CauseId.MISSING_NO_GRAD not in causes(one)
    assert first(one) is CauseId.BATCH_TOO_LARGE


def test_batch_size_in_the_code_counts() -> None:
    """A batch size that the failing line names makes the batch likely, and is quoted."""
    numbers = {"tried": 0.37, "total": 3.95, "free": 0.35, "allocated": 1.72, "unallocated": 0.74}
    assert first(situation(**numbers)) is CauseId.FRAGMENTATION
    one = situation(**numbers, code="run(data, batch_size=256)")
    assert find_causes(one)[0].id is CauseId.BATCH_TOO_LARGE
    assert find_causes(one)[0].confidence is Confidence.LIKELY
    assert "batch size 256" in find_causes(one)[0].evidence


def test_handle_of_cublas_fails_behind_a_full_model() -> None:
    """CuBLAS makes its handle in the first forward, so that what fills the card by then is the model."""
    one = situation(kind="cublas-allocation", text="CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                    phase=TrainingPhase.FORWARD)  # fmt: skip
    assert set(causes(one)) == {CauseId.MODEL_TOO_LARGE, CauseId.OTHER_PROCESS}


# --- snapshots and time ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "phase", "expected"),
    [
        ({"weights": 20.0, "activations": 2.0}, None, CauseId.MODEL_TOO_LARGE),
        ({"weights": 2.0, "activations": 20.0}, TrainingPhase.FORWARD, CauseId.BATCH_TOO_LARGE),
        ({"weights": 6, "gradients": 6, "optimizer_state": 7}, TrainingPhase.OPTIMIZER_STEP, CauseId.OPTIMIZER_STATE),
    ],
)
def test_snapshot_tells_what_fills_the_card(
    parts: dict[str, float], phase: TrainingPhase | None, expected: CauseId
) -> None:
    """The largest category says whether the model, the batch or the optimizer is too much."""
    assert first(full(phase=phase, snapshots=(snapshot(**parts),))) is expected


def test_growing_line_is_a_leak() -> None:
    """Memory of one line that rises step after step comes before the batch."""
    line = GrowingLine(SourceLine("train.py", 12, "main"), "activations", gib(1) or 0, gib(18) or 0, 10, 180)  # type: ignore[arg-type]
    one = full(phase=TrainingPhase.FORWARD, snapshots=(snapshot(activations=20.0, growing=(line,)),))
    assert first(one) is CauseId.LEAK_ACROSS_STEPS
    assert "`train.py:12`" in find_causes(one)[0].evidence


def test_growing_log_is_a_leak_and_a_flat_one_is_none() -> None:
    """The memory that a log prints rises or it does not."""
    rising = full(phase=TrainingPhase.FORWARD, trend=trend(first=4, last=22), step=100)
    assert first(rising) is CauseId.LEAK_ACROSS_STEPS
    assert "4.00 GiB at step 1" in find_causes(rising)[0].evidence
    assert CauseId.LEAK_ACROSS_STEPS not in causes(
        full(phase=TrainingPhase.FORWARD, trend=trend(first=20, last=20), step=100)
    )


def test_a_leak_comes_before_the_holes_that_it_leaves() -> None:
    """Where memory grows, fragmentation is only possible, however large the holes are."""
    holes = {"tried": 0.15, "total": 31.7, "free": 0.01, "allocated": 24.9, "unallocated": 5.8}
    one = situation(**holes, trend=trend(first=4, last=24))
    assert next(iter(causes(one))) is CauseId.LEAK_ACROSS_STEPS
    assert causes(one)[CauseId.FRAGMENTATION] is Confidence.POSSIBLE


def test_a_late_window_still_names_the_line_and_the_whole_leak() -> None:
    """Readings of the last steps alone tell how fast it leaks, and the snapshot where most of it lies."""
    place = SourceLine("train.py", 8, "main")
    held = snapshot(activations=20.0)
    end = replace(held.end, lines=(MemoryLine(place, Category.ACTIVATIONS, gib(19) or 0, 760),))
    late = MemoryTrend(32, 756, 787, gib(5.99) or 0, gib(6.23) or 0, growing=True, bytes_per_step=8 * MIB)
    one = full(phase=TrainingPhase.FORWARD, trend=late, snapshots=(replace(held, end=end),))
    assert "`train.py:8`" in find_causes(one)[0].evidence
    drop = next(remedy for remedy in choose_remedies(one, find_causes(one)) if remedy.id == "drop_graph")
    assert drop.frees_bytes == 8 * MIB * 787


def test_blocks_that_a_line_keeps_may_be_a_leak() -> None:
    """A line that took the same memory many times, all of it alive, may be a loop that keeps what it makes."""
    place = SourceLine("train.py", 6, "main")
    kept = LiveAllocation(gib(1) or 0, Category.ACTIVATIONS, place, "main (train.py:6)", blocks=18)
    layer = replace(kept, innermost="forward (torch/nn/modules/linear.py:134)")
    held = snapshot(activations=20.0)
    one = full(phase=TrainingPhase.FORWARD, snapshots=(replace(held, largest=(kept,)),))
    assert causes(one)[CauseId.LEAK_ACROSS_STEPS] is Confidence.POSSIBLE
    other = full(phase=TrainingPhase.FORWARD, snapshots=(replace(held, largest=(layer,)),))
    assert CauseId.LEAK_ACROSS_STEPS not in causes(other)


def test_late_death_may_be_a_leak() -> None:
    """After hundreds of steps that fitted, something grew or one batch was larger."""
    assert causes(full(phase=TrainingPhase.BACKWARD, step=500))[CauseId.LEAK_ACROSS_STEPS] is Confidence.POSSIBLE
    assert CauseId.LEAK_ACROSS_STEPS not in causes(full(phase=TrainingPhase.BACKWARD, step=3))


# --- elsewhere -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "confidence"),
    [
        ("host-allocator", "DefaultCPUAllocator: can't allocate memory", Confidence.CERTAIN),
        ("killed", "DataLoader worker (pid 5) is killed by signal: Killed.", Confidence.LIKELY),
    ],
)
def test_host_memory(kind: str, text: str, confidence: Confidence) -> None:
    """The host's memory is told from the device's, and a kill from a statement."""
    assert causes(situation(kind=kind, device="cpu", text=text)) == {CauseId.HOST_OOM: confidence}


def test_shared_memory() -> None:
    """A bus error of a worker is `/dev/shm`, not the host's memory."""
    one = situation(kind="host-shared-memory", device="cpu", text="killed by signal: Bus error")
    assert first(one) is CauseId.SHM


@pytest.mark.parametrize("row", [row for row in table().rows if row.means == "limit"], ids=lambda row: row.id)
def test_size_limits(row: object) -> None:
    """Every limit of the table that is not memory is called one."""
    one = situation(kind=row.id, is_oom=False, device="none", text=row.example)  # type: ignore[attr-defined]
    assert causes(one) == {CauseId.SIZE_LIMIT: Confidence.CERTAIN}


def test_other_errors_are_not_out_of_memory() -> None:
    """An error that is none of memory is quoted, with the reason."""
    one = situation(kind="device-assert", is_oom=False, device="none", text="CUDA error: device-side assert triggered")
    assert causes(one) == {CauseId.NOT_OOM: Confidence.CERTAIN}
    assert "index" in find_causes(one)[0].evidence


def test_status_that_may_be_either_stays_open() -> None:
    """A status that libraries give for a lack of memory and for other faults is not called certain."""
    text = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    one = situation(kind="cublas-not-initialized", is_oom=False, device="none", text=text)
    assert causes(one) == {CauseId.NOT_OOM: Confidence.POSSIBLE}


def test_cache_of_a_server() -> None:
    """No room for the cache's blocks is a budget, not a failed allocation."""
    assert first(situation(kind="kv-cache")) is CauseId.KV_CACHE_NO_ROOM


def test_message_without_numbers_is_unknown() -> None:
    """Without numbers and traceback there is no cause, and it says so."""
    assert causes(situation(kind="cuda-allocator-short")) == {CauseId.UNKNOWN: Confidence.CERTAIN}


def test_pinned_memory_reads_like_the_device() -> None:
    """The CUDA runtime's bare error may be the host's pinned memory, and is that where pinned memory is about."""
    bare = situation(kind="cuda-runtime", text="CUDA error: out of memory")
    assert list(causes(bare)) == [CauseId.UNKNOWN, CauseId.HOST_OOM]
    pinned = situation(kind="cuda-runtime", text="CUDA error: out of memory", code="data = data.pin_memory()")
    assert causes(pinned)[CauseId.HOST_OOM] is Confidence.LIKELY
    loading = situation(kind="cuda-runtime", text="CUDA error: out of memory", phase=TrainingPhase.CHECKPOINT_LOAD)
    assert CauseId.HOST_OOM not in causes(loading)


def test_more_than_an_exbibyte_is_a_wrong_size() -> None:
    """PyTorch's own refusal of absurd sizes is one huge allocation."""
    one = situation(text="CUDA out of memory. Tried to allocate more than 1EB memory.")
    assert causes(one)[CauseId.SINGLE_HUGE_ALLOCATION] is Confidence.CERTAIN


def test_nothing_allocated_is_no_batch() -> None:
    """Where the process holds nothing, what it asked for is too large by itself."""
    one = situation(device="xpu", kind="xpu-allocator", tried=16, total=16.1, free=16.0, allocated=0, unallocated=0)
    assert list(causes(one)) == [CauseId.SINGLE_HUGE_ALLOCATION]


def test_unknown_tells_what_it_has() -> None:
    """A message with one number is not said to have none."""
    one = situation(kind="xla-allocator", tried=2.17)
    assert "2.17 GiB" in find_causes(one)[0].evidence


# --- every situation -------------------------------------------------------------------------------------------------

sizes = st.none() | st.floats(0, 200)
any_situation = st.builds(
    situation,
    kind=st.sampled_from(
        ["cuda-allocator", "cuda-runtime", "cublas-allocation", "mps-allocator", "other-error", "killed"]
    ),
    device=st.sampled_from(["cuda", "hip", "mps", "cpu", "none"]),
    is_oom=st.booleans(),
    tried=sizes,
    total=sizes,
    free=sizes,
    allocated=sizes,
    unallocated=sizes,
    allowed=sizes,
    process=sizes,
    others=st.lists(st.tuples(st.integers(1, 9), st.floats(0, 100)), max_size=3).map(tuple),
    own_pid=st.none() | st.integers(1, 9),
    phase=st.none() | st.sampled_from(list(TrainingPhase)),
    step=st.none() | st.integers(0, 10**6),
    code=st.none() | st.sampled_from(["batch_size=1", "batch_size=64", "cross_entropy(x, y)"]),
    trend=st.none() | st.just(trend(first=1, last=9)),
)


@given(any_situation)
def test_every_situation_has_a_cause_whose_numbers_are_its_own(one: Situation) -> None:
    """There is always an answer, most certain first, and no evidence prints a size that was not read."""
    found = find_causes(one)
    assert found
    assert [cause.confidence for cause in found] == sorted(
        (cause.confidence for cause in found), key=list(Confidence).index
    )
    assert len({cause.id for cause in found}) == len(found)
    for cause in found:
        printed = set(re.findall(r"[\d.]+ (?:[KMG]iB|bytes?)\b", cause.evidence))
        assert printed <= known_sizes(one), cause


def known_sizes(one: Situation) -> set[str]:
    """Every size that was read or follows, as it is printed."""
    facts = one.facts
    values = [
        value for name in facts.__slots__ if name.endswith("_bytes") and (value := getattr(facts, name)) is not None
    ]
    values += [process.used_bytes or 0 for process in facts.other_processes]
    values += [size for size in (one.outside_bytes, one.held_bytes, one.own_bytes) if size is not None]
    if one.trend is not None:
        values += [one.trend.first_bytes, one.trend.last_bytes, one.trend.bytes_per_step]
    return {format_size(value) for value in values}


def test_rules_are_listed_once() -> None:
    """No rule is in the list twice, and none that is written is forgotten."""
    assert len(set(CAUSE_RULES)) == len(CAUSE_RULES)
    from oomdoctor.diagnose import device_causes, training_causes

    ids = {cause.value for cause in CauseId} | {"unexplained_refusal", "large_allocation", "batch_named_in_code"}
    ids |= {"fragmentation_beside_free", "unseen_process", "most_of_the_device", "address_space"}
    ids |= {"quantized_offload", "compiled_program"}
    written = {
        function
        for module in (training_causes, device_causes)
        for name, function in vars(module).items()
        if name in ids and callable(function)
    }
    assert written == set(CAUSE_RULES)


def test_empty_case() -> None:
    """Without any error and snapshot there is nothing to judge by."""
    assert find_causes(Situation(JudgedEvidence(()), None)) == ()


def test_a_snapshot_of_a_program_that_went_on_is_no_failure() -> None:
    """Where nothing ran out, what fills the memory is shown and not blamed; only growth is a cause."""
    assert find_causes(Situation(JudgedEvidence((), snapshots=(snapshot(weights=20.0),)), None)) == ()
    line = GrowingLine(SourceLine("train.py", 12, "main"), Category.ACTIVATIONS, 1, 9, 1, 9)
    grown = Situation(JudgedEvidence((), snapshots=(snapshot(activations=9.0, growing=(line,)),)), None)
    assert [cause.id for cause in find_causes(grown)] == [CauseId.LEAK_ACROSS_STEPS]


def test_what_leaks_is_not_counted_as_the_batch() -> None:
    """Where memory grows from step to step, the batch is no more than possible, and claims no share."""
    one = full(phase=TrainingPhase.FORWARD, trend=trend(first=4, last=22), snapshots=(snapshot(activations=20.0),))
    assert causes(one)[CauseId.BATCH_TOO_LARGE] is Confidence.POSSIBLE


def test_a_checkpoint_that_stayed_is_named() -> None:
    """Blocks that came out of a file and are still alive are the checkpoint, not the model."""
    place = SourceLine("train.py", 11, "main")
    loaded = LiveAllocation(gib(5) or 0, Category.WEIGHTS, place, "_cuda_deserialize (torch/serialization.py:300)")
    held = replace(snapshot(weights=10.0, activations=4.0), largest=(loaded,))
    one = full(phase=TrainingPhase.BACKWARD, snapshots=(held,))
    assert first(one) is CauseId.CHECKPOINT_LOAD
    assert "`train.py:11`" in find_causes(one)[0].evidence
