"""What the simulator promises its callers, whatever PyTorch does: addresses, peaks, errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.engines.allocator.caching import CachingAllocator
from oomdoctor.engines.allocator.device_memory import FIRST_ADDRESS, AllocationError, DeviceMemory, pytorch_size
from oomdoctor.engines.allocator.settings import NEWEST, OLDEST, parse_settings, rules_of, settings_from_environment
from oomdoctor.errors import NoAnswerError, UsageError
from oomdoctor.units import GIB, KIB, MIB

SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:20", "roundup_power2_divisions:4")
steps = st.lists(st.integers(1, 64 * MIB) | st.integers(-9, -1), max_size=60)


def _drive(allocator: CachingAllocator, orders: list[int]) -> dict[int, int]:
    """Allocate the positive numbers, and at each negative one free the oldest block but some; what is left."""
    held: dict[int, int] = {}
    for order in orders:
        if order > 0:
            held[allocator.malloc(order, stream=order % 3)] = order
        elif len(held) >= -order:
            address = list(held)[-order - 1]
            del held[address]
            allocator.free(address)
    return held


@given(steps, st.sampled_from(SETTINGS))
def test_segments_and_counts_agree(orders: list[int], text: str) -> None:
    """The blocks that are in use are those that were handed out, apart from each other, and all sums come out."""
    allocator = CachingAllocator(DeviceMemory(64 * GIB), parse_settings(text))
    held = _drive(allocator, orders)
    used, total = {}, 0
    for segment in allocator.segments():
        at = segment.address
        for block in segment.blocks:
            if block.state == "active_allocated":
                used[at] = block.requested
                total += block.size
            at += block.size
        assert at == segment.address + segment.size
    assert used == held
    assert allocator.allocated_bytes == total
    assert allocator.reserved_bytes == sum(segment.size for segment in allocator.segments())
    assert allocator.memory.used_bytes == allocator.reserved_bytes


@given(steps, st.sampled_from(SETTINGS))
def test_nothing_is_left_of_what_was_freed(orders: list[int], text: str) -> None:
    """When all is freed and the cache is empty, the driver has everything back."""
    allocator = CachingAllocator(DeviceMemory(64 * GIB), parse_settings(text))
    for address in _drive(allocator, orders):
        allocator.free(address)
    allocator.empty_cache()
    assert allocator.segments() == []
    assert allocator.memory.used_bytes == 0
    assert allocator.malloc(MIB) == FIRST_ADDRESS


@given(st.lists(st.integers(1, 40 * MIB) | st.just(0), max_size=40))
def test_peaks_are_the_most_that_ever_was(sizes: list[int]) -> None:
    """Peaks are taken lazily and come out as if every step had been looked at; a reset begins at what is in use."""
    allocator = CachingAllocator(DeviceMemory(64 * GIB))
    held: list[int] = []
    most = [0, 0, 0]
    for size in sizes:
        if size:
            held.append(allocator.malloc(size))
        elif held:
            allocator.free(held.pop(0))
        now = allocator.heap.statistics
        counts = (now.current(0), now.current(2), now.current(4))
        most = [max(pair) for pair in zip(most, counts, strict=True)]
    stats = allocator.memory_stats()
    found = [stats[name]["all"]["peak"] for name in ("allocation", "allocated_bytes", "requested_bytes")]
    assert found == most
    allocator.reset_peak_stats()
    assert allocator.peak_allocated_bytes == allocator.allocated_bytes


def test_no_bytes_are_no_allocation() -> None:
    """An empty tensor has no address, and freeing it does nothing."""
    allocator = CachingAllocator(DeviceMemory(GIB))
    assert allocator.malloc(0) == 0
    allocator.free(0)
    assert allocator.memory_stats()["allocation"]["all"]["allocated"] == 0


def test_what_is_freed_twice_is_no_pointer() -> None:
    """A second free is refused, also while another stream still uses the block."""
    allocator = CachingAllocator(DeviceMemory(GIB))
    plain, shared = allocator.malloc(MIB), allocator.malloc(MIB)
    allocator.record_stream(shared, 7)
    for address in (plain, shared):
        allocator.free(address)
        with pytest.raises(ValueError, match="invalid device pointer"):
            allocator.free(address)


def test_memory_runs_out_at_the_byte() -> None:
    """What fits fits, a page more does not, and the error says what PyTorch says, whatever the context takes."""
    memory = DeviceMemory(130 * MIB, context_bytes=20 * MIB, others_bytes=30 * MIB)
    allocator = CachingAllocator(memory)
    allocator.free(allocator.malloc(80 * MIB))
    with pytest.raises(AllocationError) as error:
        allocator.malloc(80 * MIB + 1)
    assert str(error.value).startswith(
        "CUDA out of memory. Tried to allocate 82.00 MiB. GPU 0 has a total capacity of 130.00 MiB of which 80.00 MiB "
        "is free. Including non-PyTorch memory, this process has 20.00 MiB memory in use. Of the allocated memory "
        "0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If reserved"
    )
    assert (allocator.retries, allocator.reserved_bytes) == (1, 0)


def test_sizes_as_pytorch_prints_them() -> None:
    """The unit changes above a power of 1024, not at it."""
    sizes = (0, KIB, KIB + 1, MIB, GIB, GIB + 1, 3 * GIB // 2)
    assert [pytorch_size(size) for size in sizes] == [
        "0 bytes",
        "1024 bytes",
        "1.00 KiB",
        "1024.00 KiB",
        "1024.00 MiB",
        "1.00 GiB",
        "1.50 GiB",
    ]


def test_other_memory_counts() -> None:
    """What somebody else takes from the driver is not there for the allocator, and comes back."""
    memory = DeviceMemory(100 * MIB)
    allocator = CachingAllocator(memory)
    taken = memory.allocate(60 * MIB)
    assert taken is not None
    with pytest.raises(AllocationError):
        allocator.malloc(50 * MIB)
    memory.release(taken)
    assert allocator.malloc(50 * MIB)


def test_which_variable_holds() -> None:
    """Newer versions read the variable of all accelerators where CUDA's is not set; older ones never do."""
    both = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}
    one = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert not settings_from_environment(both, NEWEST).expandable
    assert settings_from_environment(one, NEWEST).expandable
    assert not settings_from_environment(one, OLDEST).expandable


def test_settings_that_cannot_be() -> None:
    """What PyTorch refuses is named with its variable; the allocator of CUDA itself is not simulated."""
    with pytest.raises(UsageError, match="PyTorch refuses `PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:5`"):
        parse_settings("max_split_size_mb:5")
    with pytest.raises(NoAnswerError, match="cudaMallocAsync"):
        parse_settings("backend:cudaMallocAsync")


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.6.0+cu124", OLDEST), ("2.8.1", OLDEST), ("2.15.0+cu132", NEWEST), ("2.14.0", NEWEST), ("unknown", NEWEST)],
)
def test_rules_by_version(version: str, expected: object) -> None:
    """The tested versions, and those beside them, have the rules that were tested."""
    assert rules_of(version) is expected


def test_rules_between() -> None:
    """What changed between the tested versions changes where the sources and the messages say."""
    assert rules_of("2.10.0").variable == "PYTORCH_ALLOC_CONF"
    assert rules_of("2.12.1").variable == "PYTORCH_CUDA_ALLOC_CONF"
    assert not rules_of("2.12.1").prefers_older_segments
    assert rules_of("2.13.0+cpu").prefers_older_segments
    assert not rules_of("2.13.0").knows_address_space
