"""The OOM classifier on one error: every row by its example, and what must not be taken for an OOM."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.agent.oom_errors import table
from oomdoctor.oom.classifier import OUTCOMES, Evidence, classify, is_oom_wording
from oomdoctor.results import Outcome
from oomdoctor.units import GIB, MIB

if TYPE_CHECKING:
    from oomdoctor.agent.oom_errors import Row

AMPLE = Evidence(free_bytes=20 * GIB, capacity_bytes=24 * GIB)
FULL = Evidence(free_bytes=100 * MIB, capacity_bytes=24 * GIB)
SWALLOWED = Evidence(free_bytes=20 * GIB, capacity_bytes=24 * GIB, allocator_ooms=1)

ALLOCATOR_TEXT = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.64 GiB"
BUILTINS: dict[str, type[Exception]] = {
    error.__name__: error for error in (RuntimeError, MemoryError, OSError, ValueError, AssertionError, KeyError)
}
BASES = {"torch": RuntimeError, "cupy": MemoryError, "subprocess": Exception}


def make_error(type_name: str, text: str) -> BaseException:
    """An error whose type has the given qualified name, and the base that its library gives it."""
    module, _, name = type_name.rpartition(".")
    if not module:
        return BUILTINS[type_name](text)
    relays = type_name in table().carriers or type_name.endswith("ProcessExitedException")
    base = Exception if relays else BASES.get(module.split(".")[0], Exception)
    error_type: type[Exception] = type(name, (base,), {"__module__": module})
    return error_type(text)


def deciding_evidence(row: Row) -> Evidence:
    """Evidence under which the row, and nothing else, decides."""
    if row.needs_pressure:
        return FULL
    if row.not_when_ample:
        return Evidence()
    return SWALLOWED if OUTCOMES[row.means] is Outcome.FAILED else AMPLE


by_row = pytest.mark.parametrize("row", table().rows, ids=lambda row: row.id)


@by_row
def test_an_example_is_classified_as_its_row_says(row: Row) -> None:
    """Each row's own example, raised as its own type, is decided by that row."""
    verdict = classify(make_error(row.types[0], row.example), deciding_evidence(row))
    assert verdict.row is row
    assert verdict.outcome is OUTCOMES[row.means]
    assert verdict.reason.startswith(row.reason)


@by_row
def test_without_its_row_an_example_is_classified_otherwise(row: Row) -> None:
    """No row is idle: taking it out of the table changes the outcome of its example."""
    others = [other for other in table().rows if other is not row]
    verdict = classify(make_error(row.types[0], row.example), deciding_evidence(row), rows=others)
    assert verdict.outcome is not OUTCOMES[row.means]


@by_row
def test_a_pattern_that_is_not_there_keeps_a_row_from_matching(row: Row) -> None:
    """All patterns of a row must match, not some of them."""
    error = make_error(row.types[0], row.example)
    for index in range(len(row.patterns)):
        patterns = (*row.patterns[:index], r"(?!)", *row.patterns[index + 1 :])
        verdict = classify(error, deciding_evidence(row), rows=(row._replace(patterns=patterns),))
        assert verdict.row is None


@by_row
def test_a_row_needs_pressure_or_decides_alone(row: Row) -> None:
    """With ample memory free, only the rows that need no evidence can say out of memory."""
    verdict = classify(make_error(row.types[0], row.example), AMPLE)
    assert (verdict.outcome is Outcome.OOM) == (
        OUTCOMES[row.means] is Outcome.OOM and not row.needs_pressure and not row.not_when_ample
    )


@by_row
def test_a_row_does_not_apply_to_another_type(row: Row) -> None:
    """The same words in an error that no framework raises are somebody's own words."""
    verdict = classify(make_error("mypackage.ConfigError", row.example), FULL)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.row is None


def test_row_names_are_unique_and_texts_are_sentences_without_a_period() -> None:
    """A name stands for one row, and a reason can be put into a sentence."""
    assert len({row.id for row in table().rows}) == len(table().rows)
    assert [row.id for row in table().rows if row.reason.endswith(".") or "\n" in row.reason or not row.source] == []


@pytest.mark.parametrize(
    "text",
    [
        *("out of memory", "CUDA out of memory", "CUBLAS", "cudnn", "CUSOLVER_STATUS_ALLOC_FAILED", "CUFFT", "ALLOC"),
        *("nccl", "RESOURCE_EXHAUSTED", "Invalid buffer size", "not enough memory", "CUDA error", "HIP out of memory"),
    ],
)
def test_wordings_of_an_oom_are_known(text: str) -> None:
    """What programs look for in a message is recognised, be it a part of one."""
    assert is_oom_wording(text)


@pytest.mark.parametrize("text", ["", "CUDA", "error", "memory", "device-side assert", "shape", "NaN", "INT_MAX"])
def test_other_wordings_are_not(text: str) -> None:
    """Ordinary words, and the messages of other errors, say nothing of an OOM."""
    assert not is_oom_wording(text)


ALWAYS = [
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 11.17 GiB total capacity; 10.90 GiB already allocated)",
    "CUDA out of memory. Tried to allocate more than 1EB memory.",
    "CUDA out of memory",
    "worker 3 stopped:\nCUDA out of memory on its device",
    "CUDA out of memory encountered on a different rank",
    "step 3 failed: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "Caught OutOfMemoryError in replica 0.\nOriginal Traceback:\ntorch.OutOfMemoryError: CUDA out of memory.",
    "RuntimeError: cuda runtime error (2) : out of memory",
    "CUDA driver error: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasSgemm(handle)`",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cuFFT error: CUFFT_ALLOC_FAILED",
    "cusparse error: CUSPARSE_STATUS_ALLOC_FAILED",
    "[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
    "Failed to CUDA calloc 6291456 bytes",
    "Triton Error [HIP]: out of memory",
    "XPU out of memory. Tried to allocate 1.71 GiB (GPU 0; 15.56 GiB total capacity)",
    "Allocation is out of device memory on current platform.",
    "level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",
    "Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)",
    "RESOURCE_EXHAUSTED: Failed to allocate request for 2.00GiB on device ordinal 0",
    "MPS backend out of memory (MPS allocated: 5.56 GB, max allowed: 6.80 GB). Tried to allocate 768.00 MB",
]
UNDER_PRESSURE = [
    "OOM: the pool is out of memory.",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
    "FIND was unable to find an engine to execute this computation",
    "Unable to find a valid cuDNN algorithm to run convolution",
    "CUDA error: device not ready",
    "ncclUnhandledCudaError: Call to CUDA function failed.",
    "UR error",
    "RESOURCE_EXHAUSTED:",
]
LIMITS = [
    "upsample_nearest_nhwc only supports grad_output tensors with less than INT_MAX elements, but got 4294967296",
    "The dimension being sorted can not have more than INT_MAX elements.",
    "src size > INT_MAX is not supported",
    "input tensor must fit into 32-bit index math",
    "Stride calculation overflowed",
    "HIP error: invalid configuration argument",
]
NEVER = [
    "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "CUDA error: device-side assert triggered",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: too many resources requested for launch",
    "CUDA error: no kernel image is available for execution on the device",
    "No valid triton configs. OutOfMemoryError: out of resource: triton_red_fused_0 Required: 264192 Hardware limit: 1",
    "No valid triton configs. OutOfResources: out of resource: shared memory, Required: 264192, Hardware limit: 101376",
    "DefaultCPUAllocator: not enough memory: you tried to allocate 26214400 bytes.",
    "unable to mmap 8589934592 bytes from file <model.bin>: Cannot allocate memory (12)",
    "std::bad_alloc",
    "DataLoader worker (pid 4242) is killed by signal: Killed. ",
    "UR_RESULT_ERROR_OUT_OF_HOST_MEMORY",
    "[enforce fail at inline_container.cc:603] . PytorchStreamWriter failed: No space left on device",
    "input must be 4-dimensional",
]


@pytest.mark.parametrize("text", ALWAYS)
def test_a_text_that_only_a_full_gpu_prints_is_an_oom(text: str) -> None:
    """No evidence is needed for what nothing else can print."""
    assert classify(RuntimeError(text), AMPLE).outcome is Outcome.OOM


@pytest.mark.parametrize("text", UNDER_PRESSURE)
def test_a_text_with_two_meanings_is_an_oom_only_where_memory_was_nearly_exhausted(text: str) -> None:
    """A full card, or an OOM that the allocator counted, decides what the text leaves open."""
    error = RuntimeError(text)
    assert [classify(error, evidence).outcome for evidence in (FULL, SWALLOWED, AMPLE, Evidence())] == [
        Outcome.OOM,
        Outcome.OOM,
        Outcome.FAILED,
        Outcome.FAILED,
    ]


@pytest.mark.parametrize("text", LIMITS)
@pytest.mark.parametrize("evidence", [AMPLE, FULL, SWALLOWED])
def test_a_size_limit_is_no_oom_however_full_the_card(text: str, evidence: Evidence) -> None:
    """More memory would not help, so memory is not named."""
    assert classify(RuntimeError(text), evidence).outcome is Outcome.LIMIT


@pytest.mark.parametrize("text", NEVER)
def test_a_text_that_is_no_oom_is_none_on_a_full_card(text: str) -> None:
    """A bug on a full card is still a bug, and host memory or a disk is not the GPU's."""
    assert classify(RuntimeError(text), FULL).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    "text",
    [
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "nvml.cpp":1',
        'x INTERNAL ASSERT FAILED at "/pytorch/c10/core/TensorImpl.cpp":430',
        "warnings of CUDACachingAllocator",
        "run_func_( ... ) API call failed",
        "model_container_runner could not be opened",
        "HBM failed to allocate",
    ],
)
def test_half_of_a_conjunction_is_not_enough(text: str) -> None:
    """Where a row wants two words, one of them alone decides nothing, even on a full card."""
    assert classify(RuntimeError(text), FULL).outcome is Outcome.FAILED


@pytest.mark.parametrize("type_name", ["ValueError", "AssertionError", "KeyError", "mypackage.ConfigError"])
def test_words_quoted_in_the_users_own_error_do_not_count(type_name: str) -> None:
    """Only an error that frameworks raise, or one that was raised from it, is evidence of an OOM."""
    error = make_error(type_name, f"bad flag, see the FAQ on '{ALLOCATOR_TEXT}'")
    assert classify(error, FULL).outcome is Outcome.FAILED


def test_words_quoted_in_a_runtime_error_need_pressure() -> None:
    """A sentence that mentions the words is not the allocator's message, unless the card was full."""
    error = RuntimeError("no GPU found; on one you may see 'CUDA out of memory' at this size")
    assert classify(error, AMPLE).outcome is Outcome.FAILED
    assert classify(error, FULL).outcome is Outcome.OOM


@pytest.mark.parametrize("type_name", table().allocator_types)
def test_the_type_alone_is_enough_in_old_and_new_versions(type_name: str) -> None:
    """Whatever it says, PyTorch's own type is an OOM, and so is a type derived from it."""
    error = make_error(type_name, "")
    derived = type("Mine", (type(error),), {})("again")
    assert classify(error).outcome is Outcome.OOM
    assert classify(derived).outcome is Outcome.OOM


def test_pressure_is_judged_by_the_size_of_the_card() -> None:
    """Less than 1 GiB or a twentieth is nearly nothing, but never more than a quarter of a small card."""
    assert Evidence(free_bytes=GIB).nearly_exhausted
    assert not Evidence(free_bytes=GIB + 1).nearly_exhausted
    assert Evidence(free_bytes=4 * GIB, capacity_bytes=80 * GIB).nearly_exhausted
    assert not Evidence(free_bytes=4 * GIB + 1, capacity_bytes=80 * GIB).nearly_exhausted
    assert Evidence(free_bytes=GIB // 4, capacity_bytes=GIB).nearly_exhausted
    assert not Evidence(free_bytes=GIB // 4 + 1, capacity_bytes=GIB).nearly_exhausted
    assert not Evidence(capacity_bytes=GIB).nearly_exhausted
    assert Evidence(allocator_ooms=1).nearly_exhausted


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "HIP error: out of memory", "hipErrorOutOfMemory"])
def test_a_runtime_error_on_an_empty_card_is_pinned_host_memory(text: str) -> None:
    """The runtime has one error for both memories; with half of the card free it was the host's."""
    error = RuntimeError(text)
    free = [Evidence(free_bytes=free, capacity_bytes=24 * GIB) for free in (12 * GIB, 12 * GIB - 1)]
    unknown = [Evidence(), Evidence(free_bytes=20 * GIB), SWALLOWED]
    assert [classify(error, evidence).outcome for evidence in (*free, *unknown)] == [Outcome.FAILED] + 4 * [Outcome.OOM]
    assert classify(error, AMPLE).reason.endswith("; 20.00 GiB of 24.00 GiB were free, so it is taken for the host's")


def test_a_reason_says_what_was_known_about_memory() -> None:
    """Where evidence decides, the reason holds it."""
    error = RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR")
    assert classify(error, FULL).reason.endswith("; 100.00 MiB of 24.00 GiB were free")
    assert classify(error, AMPLE).reason.endswith("; 20.00 GiB of 24.00 GiB were free, so it is not taken for an OOM")
    assert "is not known" in classify(error).reason
    assert "ran out of memory 2 times" in classify(error, Evidence(allocator_ooms=2)).reason


def test_an_oom_that_the_code_swallowed_makes_what_follows_an_oom() -> None:
    """A name that is not set because an OOM was caught before is the OOM's consequence."""
    error = UnboundLocalError("cannot access local variable 'loss'")
    assert classify(error, AMPLE).outcome is Outcome.FAILED
    verdict = classify(error, SWALLOWED)
    assert verdict.outcome is Outcome.OOM
    assert "once" in verdict.reason


def test_a_swallowed_oom_does_not_hide_a_bug() -> None:
    """What is certainly something else stays that, though the allocator had run out before."""
    assert classify(RuntimeError("CUDA error: device-side assert triggered"), SWALLOWED).outcome is Outcome.FAILED


def test_an_error_that_is_not_known_names_its_type() -> None:
    """The reason of a plain bug says what it was."""
    assert classify(TypeError("unsupported operand")).reason.startswith("`TypeError` is no error")


evidences = st.builds(
    Evidence,
    free_bytes=st.none() | st.integers(0, 200 * GIB),
    capacity_bytes=st.none() | st.integers(0, 200 * GIB),
    allocator_ooms=st.integers(0, 3),
)


@given(row=st.sampled_from(table().rows), evidence=evidences, more=st.integers(1, 3))
def test_more_pressure_never_turns_an_oom_into_something_else(row: Row, evidence: Evidence, more: int) -> None:
    """Evidence of a lack of memory only ever adds to an OOM."""
    error = make_error(row.types[0], row.example)
    if classify(error, evidence).outcome is Outcome.OOM:
        pressed = replace(evidence, allocator_ooms=evidence.allocator_ooms + more)
        assert classify(error, pressed).outcome is Outcome.OOM
