"""The model of the allocator's blocks against the allocator itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import SETTINGS

from oomdoctor.trial.profile.allocation_log import FreeBlocks, HistoryMismatchError
from oomdoctor.units import MIB

PYTHONS = [sys.executable, *filter(None, os.environ.get("OOMDOCTOR_TEST_PYTHONS", "").split(":"))]


@pytest.mark.null_gpu
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_every_block_has_the_size_that_the_allocator_counts(
    python: str, settings: str, random_blocks: Callable[[str, str], dict[str, Any]]
) -> None:
    """After each of 1,000 random allocations and frees the model comes to the allocator's own count, to the byte."""
    found = random_blocks(python, settings)

    assert found["error"] is None
    assert found["events"] > 1000
    assert (found["mapped"] > 0) == ("expandable" in settings)
    assert found["live"][0] == found["live"][1] > 0
    assert found["reserved"][0] == found["reserved"][1] > 0


def _segment(size: int, address: int = 0) -> dict[str, object]:
    block = {"size": size, "state": "inactive"}
    return {"address": address, "total_size": size, "is_expandable": False, "blocks": [block]}


def test_a_rest_of_one_mebibyte_stays_with_a_large_block() -> None:
    """A large block keeps a rest of up to 1 MiB, and not a byte more."""
    assert FreeBlocks([_segment(20 * MIB)], {}).allocate(0, 19 * MIB) == 20 * MIB
    assert FreeBlocks([_segment(20 * MIB)], {}).allocate(0, 19 * MIB - 512) == 19 * MIB - 512


def test_a_small_block_keeps_no_rest() -> None:
    """A request of up to 1 MiB is cut off to 512 bytes."""
    assert FreeBlocks([_segment(2 * MIB)], {}).allocate(0, MIB) == MIB
    assert FreeBlocks([_segment(2 * MIB)], {}).allocate(0, 1) == 512


def test_neighbours_in_two_segments_stay_two() -> None:
    """Blocks that touch across the border of two segments do not become one."""
    heap = FreeBlocks([_segment(2 * MIB), _segment(2 * MIB, 2 * MIB)], {})
    first, second = heap.allocate(0, MIB), heap.allocate(2 * MIB, MIB)
    heap.release(0, first)
    heap.release(2 * MIB, second)

    with pytest.raises(HistoryMismatchError):
        heap.allocate(0, 3 * MIB)


def test_an_allocation_where_nothing_is_free_is_not_explained() -> None:
    """A history that cannot be true is refused, not guessed at."""
    heap = FreeBlocks([_segment(2 * MIB)], {})
    heap.allocate(0, MIB)

    with pytest.raises(HistoryMismatchError, match="free ones"):
        heap.allocate(0, 512)


@given(st.lists(st.integers(1, MIB), min_size=1, max_size=30))
def test_what_was_taken_and_given_back_is_one_free_block_again(sizes: list[int]) -> None:
    """Whatever is cut off, giving all of it back leaves the segment whole."""
    heap = FreeBlocks([_segment(64 * MIB)], {})
    taken, at = [], 0
    for size in sizes:
        taken.append((at, heap.allocate(at, size)))
        at += taken[-1][1]
    for address, size in taken[::2] + taken[1::2]:
        heap.release(address, size)

    assert heap.allocate(0, 64 * MIB) == 64 * MIB
