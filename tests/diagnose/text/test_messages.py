"""PyTorch's out-of-memory messages: every template, every number, however they are wrapped or cut."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quoting import GIB, MIB, as_printed, read, read_all, torch_prints, window

from oomdoctor.diagnose.text.errors import read_message
from oomdoctor.results import Facts, ProcessMemory

HINT = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html)"
)
NEWEST = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. GPU 3 has a total capacity of "
    "47.50 GiB of "
    "which 768.00 MiB is free. Process 4711 has 2.50 GiB memory in use. Including non-PyTorch memory, this process has "
    "44.25 GiB memory in use. 45.00 GiB allowed; Of the allocated memory 40.00 GiB is allocated by PyTorch, "
    "with 512.00 "
    "MiB allocated in private pools (e.g., CUDA Graphs), and 3.75 GiB is reserved by PyTorch but unallocated." + HINT
)
NEWEST_FACTS = Facts(
    gpu_index=3,
    tried_bytes=GIB * 5 // 4,
    total_bytes=GIB * 95 // 2,
    free_bytes=768 * MIB,
    allocated_bytes=40 * GIB,
    reserved_bytes=GIB * 175 // 4,
    reserved_unallocated_bytes=GIB * 15 // 4,
    process_bytes=GIB * 177 // 4,
    non_pytorch_bytes=512 * MIB,
    allowed_bytes=45 * GIB,
    private_pool_bytes=512 * MIB,
    other_processes=(ProcessMemory(4711, GIB * 5 // 2),),
)
sizes = st.integers(0, 1 << 38)


def test_the_newest_message_is_read_in_full() -> None:
    """Every number of the newest message is found, and what follows from them."""
    message = read(NEWEST)
    assert message.facts == NEWEST_FACTS
    assert (message.kind, message.is_oom, message.device) == ("cuda-allocator", True, "cuda")
    assert message.text.startswith("torch.OutOfMemoryError: CUDA out of memory. Tried")


@given(sizes=st.lists(sizes, min_size=5, max_size=5), index=st.integers(0, 15))
def test_the_first_versions_print_what_is_cached_beside_the_tensors(sizes: list[int], index: int) -> None:
    """In torch 1.0 to 1.3, `cached` is what is reserved and not allocated."""
    tried, total, allocated, free, cached = (torch_prints(size) for size in sizes)
    facts = read(
        f"RuntimeError: CUDA out of memory. Tried to allocate {tried} (GPU {index}; {total} total capacity; "
        f"{allocated} "
        f"already allocated; {free} free; {cached} cached)"
    ).facts
    assert facts == Facts(
        gpu_index=index,
        tried_bytes=as_printed(sizes[0]),
        total_bytes=as_printed(sizes[1]),
        allocated_bytes=as_printed(sizes[2]),
        free_bytes=as_printed(sizes[3]),
        reserved_bytes=as_printed(sizes[2]) + as_printed(sizes[4]),
        reserved_unallocated_bytes=as_printed(sizes[4]),
    )


@given(sizes=st.lists(sizes, min_size=6, max_size=6), capped=st.booleans(), hinted=st.booleans())
def test_later_versions_print_all_that_is_reserved(sizes: list[int], capped: bool, hinted: bool) -> None:
    """In torch 1.4 to 2.0, `reserved in total` holds the tensors too, and a cap may stand before it."""
    tried, total, allocated, free, reserved, allowed = (torch_prints(size) for size in sizes)
    facts = read(
        f"CUDA out of memory. Tried to allocate {tried} (GPU 0; {total} total capacity; {allocated} already allocated; "
        f"{free} free; {f'{allowed} allowed; ' if capped else ''}{reserved} reserved in total by PyTorch)"
        f"{' If reserved memory is >> allocated memory try setting max_split_size_mb' if hinted else ''}"
    ).facts
    assert facts.reserved_bytes == as_printed(sizes[4])
    assert facts.reserved_unallocated_bytes == max(0, as_printed(sizes[4]) - as_printed(sizes[2]))
    assert facts.allowed_bytes == (as_printed(sizes[5]) if capped else None)
    assert facts.free_bytes == as_printed(sizes[3])


@given(sizes=st.lists(sizes, min_size=6, max_size=6), word=st.sampled_from(["capacty", "capacity"]))
def test_new_versions_print_processes(sizes: list[int], word: str) -> None:
    """From torch 2.1 on, whose misspelling is read as well, the reserved bytes are the sum of two numbers."""
    tried, total, free, process, allocated, rest = (torch_prints(size) for size in sizes)
    facts = read(
        f"CUDA out of memory. Tried to allocate {tried}. GPU 7 has a total {word} of {total} of which {free} is free. "
        f"Including non-PyTorch memory, this process has {process} memory in use. Of the allocated memory "
        f"{allocated} is "
        f"allocated by PyTorch, and {rest} is reserved by PyTorch but unallocated."
    ).facts
    reserved = as_printed(sizes[4]) + as_printed(sizes[5])
    assert facts == Facts(
        gpu_index=7,
        tried_bytes=as_printed(sizes[0]),
        total_bytes=as_printed(sizes[1]),
        free_bytes=as_printed(sizes[2]),
        process_bytes=as_printed(sizes[3]),
        allocated_bytes=as_printed(sizes[4]),
        reserved_unallocated_bytes=as_printed(sizes[5]),
        reserved_bytes=reserved,
        non_pytorch_bytes=max(0, as_printed(sizes[3]) - reserved),
    )


@given(
    breaks=st.lists(st.integers(1, len(NEWEST) - 1), max_size=12), prefix=st.sampled_from(["", "# ", "    // ", "> "])
)
def test_it_does_not_matter_where_lines_were_broken(breaks: list[int], prefix: str) -> None:
    """Broken anywhere, within words and numbers too, and put into a comment, the message says the same."""
    text = NEWEST
    for place in sorted(set(breaks), reverse=True):
        text = f"{text[:place]}\n{prefix}{text[place:]}"
    head = next((at for at, line in enumerate(text.splitlines()) if "out of memory" in line), None)
    if head is not None:
        message = read(prefix + text, head)
        assert message.facts == NEWEST_FACTS
        assert message.last >= head


@given(end=st.integers(60, len(NEWEST)))
def test_what_was_cut_away_is_absent(end: int) -> None:
    """A number is right or it is not there; the beginning of one is never taken for it."""
    facts = read(NEWEST[:end]).facts
    for name in (field.name for field in fields(Facts)):
        assert getattr(facts, name) in {getattr(NEWEST_FACTS, name), None, ()}


def test_every_line_of_a_wrapped_message_leads_to_all_of_it() -> None:
    """Whichever line drew the attention, the message is the whole one, with its own first and last line."""
    lines = [
        "import torch",
        "# CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0",
        "# has a total capacity of 15.50 GiB of which 1.25 GiB",
        "# is free. Of the allocated memory 13.00 GiB is allo",
        "# cated by PyTorch, and 256.00 MiB is reserved by PyTorch but unallocated.",
        "x = 1",
    ]
    messages = [read("\n".join(lines), at) for at in range(1, 5)]
    assert len({message.facts for message in messages}) == 1
    assert {(message.first, message.last) for message in messages} == {(1, 4)}
    assert messages[0].facts.reserved_bytes == 13 * GIB + 256 * MIB
    assert read_message(window("\n".join(lines), 5)) is None


def test_each_of_two_messages_keeps_its_own_numbers() -> None:
    """Two ranks' messages below each other are not mixed, though the first is the shorter."""
    text = (
        "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 15.50 GiB of which 1.25 GiB is "
        "free.\nCUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of 31.50 GiB of which 1.75 "
        "GiB is free. Of the allocated memory 20.00 GiB is allocated by PyTorch"
    )
    first, second = read_all(text)
    assert (first.facts.gpu_index, first.facts.tried_bytes, first.facts.allocated_bytes) == (0, GIB * 3 // 2, None)
    assert (second.facts.gpu_index, second.facts.tried_bytes, second.facts.allocated_bytes) == (
        1,
        GIB * 5 // 2,
        20 * GIB,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            (
                "GPU 2 has a total capacity of 15.50 GiB of which 1.25 GiB is free. 9.00 GiB allowed; Of the "
                "allocated memory"
            ),
            Facts(gpu_index=2, total_bytes=GIB * 31 // 2, free_bytes=GIB * 5 // 4, allowed_bytes=9 * GIB),
        ),
        (
            "GPU has a total capacity of 15.50 GiB of which 0 bytes is free.",
            Facts(total_bytes=GIB * 31 // 2, free_bytes=0),
        ),
        (
            (
                "… of which 1.00 GiB is free. Of the allocated memory 3.00 GiB is allocated by PyTorch, and 0 bytes is "
                "reserved by PyTorch but unallocated."
            ),
            Facts(free_bytes=GIB, allocated_bytes=3 * GIB, reserved_bytes=3 * GIB, reserved_unallocated_bytes=0),
        ),
        (
            "(GPU 5; 8.00 GiB total capacity; 6.00 GiB already allocated; 0 bytes free; 5.00 GiB reserved in total)",
            Facts(
                gpu_index=5,
                total_bytes=8 * GIB,
                allocated_bytes=6 * GIB,
                free_bytes=0,
                reserved_bytes=5 * GIB,
                reserved_unallocated_bytes=0,
            ),
        ),
    ],
)
def test_a_quotation_without_its_beginning_is_read(text: str, expected: Facts) -> None:
    """A message whose head was not copied is one all the same."""
    message = read(text)
    assert message.facts == expected
    assert message.is_oom


@pytest.mark.parametrize(
    "text",
    ["step 3: 10.00 GiB is allocated by PyTorch", "2.00 GiB free", "Process 12 has 1.00 GiB memory in use."],
)
def test_a_sentence_with_one_number_is_no_message(text: str) -> None:
    """Programs print the like in good times too."""
    assert read_all(text) == []


@pytest.mark.parametrize(
    ("text", "kind", "device", "expected"),
    [
        (
            (
                "HIP out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 16.00 GiB of which "
                "1.00 GiB is "
                "free. Of the allocated memory 8.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by "
                "PyTorch but "
                "unallocated. If reserved but unallocated memory is large try setting PYTORCH_HIP_ALLOC_CONF="
            ),
            "hip-allocator",
            "hip",
            {"gpu_index": 1, "reserved_bytes": 9 * GIB},
        ),
        (
            (
                "RuntimeError: XPU out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.00 GiB total capacity; "
                "1.00 GiB "
                "already allocated; 1.50 GiB reserved in total by PyTorch)"
            ),
            "xpu-allocator",
            "xpu",
            {"gpu_index": 0, "free_bytes": None, "reserved_unallocated_bytes": GIB // 2},
        ),
        (
            (
                "XPU out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.00 GiB. Of "
                "the allocated "
                "memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. "
                "Please use "
                "`empty_cache` to release all unoccupied cached memory."
            ),
            "xpu-allocator",
            "xpu",
            {"total_bytes": 15 * GIB, "free_bytes": None, "allocated_bytes": 0, "reserved_bytes": 0},
        ),
        (
            (
                "Current platform can NOT allocate memory block with size larger than 4GB! Tried to allocate 7.50 "
                "GiB (GPU  0;"
                " 15.00 GiB total capacity; 334.50 MiB already allocated; 474.00 MiB reserved in total by PyTorch)"
            ),
            "xpu-block-limit",
            "xpu",
            {"tried_bytes": GIB * 15 // 2, "gpu_index": 0, "reserved_bytes": 474 * MIB},
        ),
        (
            (
                "NPU out of memory. Tried to allocate 2.00 GiB (NPU 6; 60.00 GiB total capacity; 50.00 GiB already "
                "allocated; "
                "51.00 GiB current active; 1.50 GiB free; 58.00 GiB reserved in total by PyTorch) If reserved "
                "memory is >>"
            ),
            "npu-allocator",
            "npu",
            {"gpu_index": 6, "free_bytes": GIB * 3 // 2, "allocated_bytes": 50 * GIB, "reserved_bytes": 58 * GIB},
        ),
        (
            (
                "MPS backend out of memory (MPS allocated: 5.50 GB, other allocations: 512.00 MB, max allowed: "
                "6.75 GB). "
                "Tried to allocate 1.50 GB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0"
            ),
            "mps-allocator",
            "mps",
            {
                "allocated_bytes": GIB * 11 // 2,
                "mps_other_bytes": 512 * MIB,
                "mps_max_bytes": GIB * 27 // 4,
                "tried_bytes": GIB * 3 // 2,
                "allowed_bytes": None,
                "reserved_bytes": None,
            },
        ),
        (
            (
                "MPS backend out of memory (MPS allocated: 5.50 GiB, max allowed: 6.75 GiB). Tried to allocate 256 "
                "bytes on "
                "shared pool."
            ),
            "mps-allocator",
            "mps",
            {"mps_other_bytes": None, "mps_max_bytes": GIB * 27 // 4, "tried_bytes": 256},
        ),
        (
            (
                "torch.OutOfMemoryError: Allocation on device 1 would exceed allowed memory. (out of memory)\n"
                "Currently allocated     : 20.00 GiB\nRequested               : 2.00 GiB\nDevice limit            "
                ": 23.50 GiB\n"
                "Free (according to CUDA): 1.25 MiB\nPyTorch limit (set by user-supplied memory fraction)\n"
                "                        : 21.50 GiB"
            ),
            "cuda-async-allocator",
            "cuda",
            {
                "gpu_index": 1,
                "allocated_bytes": 20 * GIB,
                "tried_bytes": 2 * GIB,
                "total_bytes": GIB * 47 // 2,
                "free_bytes": MIB * 5 // 4,
                "allowed_bytes": GIB * 43 // 2,
            },
        ),
        (
            (
                "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
                "per_process_memory_fraction limit. Requested size: 2.50 GiB"
            ),
            "cuda-allocator-rejected",
            "cuda",
            {"tried_bytes": GIB * 5 // 2},
        ),
        (
            "CUDA out of memory. Tried to allocate more than 1EB memory.",
            "cuda-allocator",
            "cuda",
            {"tried_bytes": None},
        ),
    ],
)
def test_other_devices_and_allocators_are_read(text: str, kind: str, device: str, expected: dict[str, object]) -> None:
    """Each device's own template yields its numbers, and no number that it does not print."""
    message = read(text)
    assert (message.kind, message.device, message.is_oom) == (kind, device, True)
    assert {name: getattr(message.facts, name) for name in expected} == expected


@pytest.mark.parametrize("change", [str.upper, str.lower, lambda text: text.replace(" ", "\u00a0")])
def test_spelling_is_not_looked_at_closely(change: object) -> None:
    """Case and the kind of spaces do not matter, nor do Markdown's signs around it."""
    assert callable(change)
    assert read(f"> `{change(NEWEST)}`").facts == NEWEST_FACTS


UNKNOWN = "17179869184.00 GiB"


def test_a_number_that_stands_for_unknown_is_absent() -> None:
    """Where the driver knows nothing, PyTorch prints 2**64 bytes; the process is still listed."""
    facts = read(
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 0 "
        "bytes is free. "
        f"Process 31 has {UNKNOWN} memory in use. Including non-PyTorch memory, this process has {UNKNOWN} "
        f"memory in use. "
        "Of the allocated memory 7.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
    ).facts
    assert facts.process_bytes is None
    assert facts.non_pytorch_bytes is None
    assert facts.other_processes == (ProcessMemory(31, None),)
    assert facts.own_pid is None


def with_processes(*processes: str) -> Facts:
    """Facts of a message with these sentences, by a process that holds 10 GiB."""
    return read(
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 40.00 GiB of which 1.00 "
        "GiB is free. "
        f"{' '.join(processes)} Of the allocated memory 9.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by "
        "PyTorch but unallocated."
    ).facts


def test_the_own_process_is_told_where_only_one_can_be_it() -> None:
    """In a container the own process is among the numbered ones: the only one that holds as much as was allocated."""
    small, large, other = (
        f"Process {pid} has {size}.00 GiB memory in use." for pid, size in ((1, 9), (2, 10), (3, 12))
    )
    own = "Including non-PyTorch memory, this process has 11.00 GiB memory in use."
    assert with_processes(small, large).own_pid == 2
    assert with_processes(large, other).own_pid is None
    assert with_processes(small).own_pid is None
    assert with_processes(own, large).own_pid is None
    assert with_processes(own, large).non_pytorch_bytes == GIB


WARNING = (
    "[W101 00:00:00.1 CUDACachingAllocator.cpp:3934] Warning: memory allocation failed with OOM on device 0 "
    "while trying "
    "to allocate {} bytes (free: 805306869, total: 16642998272)."
)
AFTER_WARNING = (
    'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    '
    "step()\ntorch.OutOfMemoryError: CUDA "
    "out of memory. Tried to allocate 1.26 GiB. GPU 0 has a total capacity of 15.50 GiB of which 768.00 MiB is free."
)


def test_a_warning_gives_the_exact_bytes_of_the_error_that_follows() -> None:
    """The warning alone is none of a reader's business; before an error it has what the error rounds away."""
    assert read_all(WARNING.format(1350565888)) == []
    facts = read(f"{WARNING.format(1350565888)}\n{AFTER_WARNING}", 4).facts
    assert (facts.tried_bytes, facts.free_bytes, facts.total_bytes) == (1350565888, 805306869, 16642998272)


def test_a_warning_about_another_allocation_changes_nothing() -> None:
    """What was retried with success has nothing to do with the error."""
    facts = read(f"{WARNING.format(2097152)}\n{AFTER_WARNING}", 4).facts
    assert (facts.tried_bytes, facts.free_bytes) == (round(GIB * 126 / 100), 768 * MIB)


def test_a_quotation_that_leaves_words_out_is_read() -> None:
    """An ellipsis does not end a message, while numbers far behind it are another text's."""
    text = "CUDA out of memory. Tried to allocate 1.50 GiB [… and so on …] 13.00 GiB already allocated; 0 bytes free;"
    facts = read(text).facts
    assert (facts.allocated_bytes, facts.free_bytes) == (13 * GIB, 0)
    far = f"CUDA out of memory. Tried to allocate 1.50 GiB.\n{'Later we measured again. ' * 20}\n0 bytes free;"
    assert read(far).facts == Facts(tried_bytes=GIB * 3 // 2)


def test_a_number_that_was_printed_already_begins_another_message() -> None:
    """The same part again, without a head of its own, does not mend what is missing in the first message."""
    facts = read(
        "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 15.50 GiB\n"
        "GPU 1 has a total capacity of 31.50 GiB of which 1.75 GiB is free."
    ).facts
    assert (facts.gpu_index, facts.total_bytes, facts.free_bytes) == (0, GIB * 31 // 2, None)


def test_the_end_of_a_number_is_not_taken_for_the_number() -> None:
    """A number of more digits than any memory has is not read from its middle."""
    assert read(
        f"CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; {'9' * 9 + '0' * 40}7 bytes free;"
    ).facts == Facts(tried_bytes=2 * GIB, gpu_index=0)
