"""Messages that a terminal wrapped, that were cut off, or that somebody told in other words keep their numbers."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from oomdoctor.diagnose.diagnose import diagnose
from oomdoctor.diagnose.sources import Source
from oomdoctor.results import Facts
from oomdoctor.units import GIB, MIB

MESSAGES = {
    "new": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of 23.64 "
        "GiB of which 1.25 GiB is free. Process 4242 has 3.12 GiB memory in use. Including non-PyTorch memory, this "
        "process has 19.38 GiB memory in use. 20.00 GiB allowed; Of the allocated memory 15.25 GiB is allocated by "
        "PyTorch, with 512.00 MiB allocated in private pools (e.g., CUDA Graphs), and 3.62 GiB is reserved by PyTorch "
        "but unallocated. If reserved but unallocated memory is large try setting another value."
    ),
    "old": (
        "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 15.90 GiB total capacity; 13.13 GiB "
        "already allocated; 415.88 MiB free; 14.80 GiB reserved in total by PyTorch) If reserved memory is large"
    ),
    "mps": (
        "RuntimeError: MPS backend out of memory (MPS allocated: 9.57 GiB, other allocations: 7.35 GiB, max allowed: "
        "18.13 GiB). Tried to allocate 292.50 MiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0"
    ),
    "numpy": (
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 58.0 GiB for an array with shape (176351, "
        "176460) and data type uint16"
    ),
    "host": (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 132426121216 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "jax": (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 "
        "bytes."
    ),
    "tensorflow": (
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with "
        "shape[64,2016,9,9] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
    ),
}
FRAMES = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    loss.backward()\n'
DECORATIONS = {
    "hard": str,
    "blanks lost": str.strip,
    "indented": "    {}".format,
    "quoted": "> {}".format,
    "boxed": "│ {} │".format,
}


def facts(text: str) -> tuple[str, Facts]:
    """The device and the numbers of a text; its phase and its line count for nothing here."""
    result = diagnose([Source("train.log", None, io.BytesIO(text.encode()))])
    return result.device, replace(result.facts, phase=None, user_line=None)


@pytest.mark.parametrize("decoration", DECORATIONS)
@pytest.mark.parametrize("width", [30, 40, 47, 60, 72, 80, 100])
@pytest.mark.parametrize("name", MESSAGES)
def test_hard_wrapped_message_keeps_every_number(name: str, width: int, decoration: str) -> None:
    """Where a terminal breaks a message, in the middle of a word or of a number, nothing of it is lost."""
    whole = MESSAGES[name]
    parts = [whole[at : at + width] for at in range(0, len(whole), width)]
    wrapped = "\n".join(DECORATIONS[decoration](part) for part in parts)
    assert facts(f"{wrapped}\n") == facts(whole)
    assert facts(f"step 4\n{FRAMES}{wrapped}\nbye\n")[1].tried_bytes == facts(whole)[1].tried_bytes


PHRASES = {
    "tried_bytes": r"Tried to allocate [\d.]+ [GM]iB",
    "total_bytes": r"capacity of [\d.]+ GiB|[\d.]+ GiB total capacity",
    "free_bytes": r"of which [\d.]+ GiB|[\d.]+ MiB(?= free)",
    "allowed_bytes": r"[\d.]+ GiB allowed",
    "process_bytes": r"this process has [\d.]+ GiB",
    "allocated_bytes": r"allocated memory [\d.]+ GiB|[\d.]+ GiB(?= already)",
}


@pytest.mark.parametrize("ending", ["", "…", "..."])
@pytest.mark.parametrize("name", ["new", "old"])
def test_message_that_was_cut_keeps_what_it_shows(name: str, ending: str) -> None:
    """Wherever a message ends, each number in it is known if the words before it tell what it is, and none is wrong."""
    whole = MESSAGES[name]
    expected = facts(whole)[1]
    for end in range(45, len(whole)):
        found = facts(whole[:end] + ending)[1]
        for field, phrase in PHRASES.items():
            match = re.search(phrase, whole)
            value = getattr(found, field)
            assert value in (None, getattr(expected, field)), (end, field)
            assert value is not None or match is None or match.end() > end, (end, field)


@pytest.mark.parametrize(
    ("text", "tried", "total", "free", "allocated"),
    [
        ("tried to allocate 2.5 GB, 1.2 GB free, 24 GB total", 2.5, 24, 1.2, None),
        ("- needs 2.5 GiB but only 1.2 GiB free of 24 GiB", 2.5, 24, 1.2, None),
        ("Requested 2.5 GiB, 22.1 GiB allocated, 1.2 GiB available on a 24 GiB card", 2.5, 24, 1.2, 22.1),
        ("(tried to allocate 2.50GiB; total 24GiB, allocated 22.1GiB, free 1.2GiB)", 2.5, 24, 1.2, 22.1),
        ("while allocating 2.5 GiB: 22.1 GiB already in use, 1.2 GiB left, total capacity 24 GiB", 2.5, 24, 1.2, 22.1),
        ("Could not allocate 512 MiB; free memory: 128 MiB, total memory: 8 GiB", 0.5, 8, 0.125, None),
    ],
)
def test_message_in_other_words_keeps_its_numbers(
    text: str, tried: float, total: float, free: float, allocated: float | None
) -> None:
    """What a library or an issue retells is read by the words around each number."""
    device, found = facts(f"RuntimeError: CUDA out of memory: {text}\n")
    assert device == "cuda"
    numbers = (found.tried_bytes, found.total_bytes, found.free_bytes, found.allocated_bytes)
    expected = [None if size is None else round(size * GIB) for size in (tried, total, free, allocated)]
    for number, want in zip(numbers, expected, strict=True):
        assert number == want if None in (number, want) else abs(number - want) <= 1


def test_lines_below_a_message_are_not_its_numbers() -> None:
    """Figures of a log that goes on below a short message belong to the log."""
    text = "RuntimeError: CUDA out of memory. Tried to allocate 64.00 MiB\nbatch 3 done\nmemory total 24 GiB\n"
    found = facts(text)[1]
    assert (found.tried_bytes, found.total_bytes) == (64 * MIB, None)
