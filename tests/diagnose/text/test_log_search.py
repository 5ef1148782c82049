"""Which words about errors are about memory or the GPU."""

from __future__ import annotations

import pytest

from oomdoctor.diagnose.text.search import find, lines_that_may_hold, may_hold


def strengths(text: str) -> list[bool]:
    """Whether what is found is about memory or the GPU, for each hit."""
    patterns = may_hold(text.encode())[1]
    return [hit.strong for hit in find(text.encode(), patterns, at_an_end=False, most_hits={True: None, False: None})]


@pytest.mark.parametrize(
    "error",
    [
        *("CUDA error", "HIP error", "NCCL error", "driver error", "runtime error", "Bus error", "cuDNN error"),
        *("Triton Error", "RuntimeError", "MemoryError", "DistBackendError", "QuotaExhaustedError"),
        *("AcceleratorError", "InductorFailedError", "CUDNN_RESULT_ERROR", "PI_ERROR", "CUDA_ERROR", "STATUS_ERROR"),
        *("INTERNAL_ERROR", "ValueError", " OSError", "CudaAPIError", "cudaError", "CudaDriverError", "hipError"),
    ],
)
def test_errors_of_memory_and_of_the_gpu_are_told_from_others(error: str) -> None:
    """What stands before the word makes the difference."""
    assert True in strengths(f"so: {error}: it failed")
    assert strengths(f"so: {error[:-5].rstrip()}. Error: it failed") == [False]


@pytest.mark.parametrize(
    "words",
    [
        *("cannot allocate", "Unable to allocate 3", "couldn't allocate", "std::bad_alloc", "CPUAllocator"),
        *("calloc 12", "allocation failed", "allocate: failed alloc fail", "allocation of 3 bytes", "alloc_failed"),
        *("allocating tensor", "allocating 3", "of the allocated memory", "already allocated", "memory allocation"),
        *("cudaErrorMemoryAllocation", "allocate on device", "allocation was"),
    ],
)
def test_failed_allocations_are_found(words: str) -> None:
    """An allocation that failed is told in many ways."""
    assert True in strengths(f"so {words} it says")


@pytest.mark.parametrize(
    "words", ["allocated: 3", "max_memory_allocated 3", "allocator", "allocating", "locally callable"]
)
def test_other_allocations_are_not(words: str) -> None:
    """That memory is allocated is no error."""
    assert strengths(f"memory {words} GiB") == []


def test_lines_are_told_as_blocks_are() -> None:
    """A line is suspicious where a block of it would be."""
    lines = [
        b"all is well",
        b"MemoryError",
        b"a mirror or two",
        b"",
        b"out of memory",
        b"exit 3",
        b"Killed",
        b"Seg\nfault",
    ]
    expected = {line for line in lines if may_hold(line)[1]}
    assert lines_that_may_hold(lines[:-1]) == expected
    assert len(expected) == 5
