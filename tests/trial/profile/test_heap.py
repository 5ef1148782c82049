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

from oomdoctor.agent.allocator_blocks import AllocatorBlocks, HistoryMismatchError
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


def _blocks(*segments: dict[str, object]) -> AllocatorBlocks:
    return AllocatorBlocks({}, segments)


def _segment(size: int, address: int = 0) -> dict[str, object]:
    block = {"size": size, "state": "inactive"}
    return {"address": address, "total_size": size, "is_expandable": False, "blocks": [block]}


def _give_back(blocks: AllocatorBlocks, address: int) -> None:
    blocks.apply("free_requested", address, 0)
    blocks.apply("free_completed", address, 0)


def test_a_rest_of_one_mebibyte_stays_with_a_large_block() -> None:
    """A large block keeps a rest of up to 1 MiB, and not a byte more."""
    assert _blocks(_segment(20 * MIB)).apply("alloc", 0, 19 * MIB) == 20 * MIB
    assert _blocks(_segment(20 * MIB)).apply("alloc", 0, 19 * MIB - 512) == 19 * MIB - 512


def test_a_small_block_keeps_no_rest() -> None:
    """A request of up to 1 MiB is cut off to 512 bytes."""
    assert _blocks(_segment(2 * MIB)).apply("alloc", 0, MIB) == MIB
    assert _blocks(_segment(2 * MIB)).apply("alloc", 0, 1) == 512


def test_neighbours_in_two_segments_stay_two() -> None:
    """Blocks that touch across the border of two segments do not become one."""
    blocks = _blocks(_segment(2 * MIB), _segment(2 * MIB, 2 * MIB))
    for address in (0, 2 * MIB):
        blocks.apply("alloc", address, MIB)
    for address in (0, 2 * MIB):
        _give_back(blocks, address)

    with pytest.raises(HistoryMismatchError):
        blocks.apply("alloc", 0, 3 * MIB)


def test_an_allocation_where_nothing_is_free_is_not_explained() -> None:
    """A history that cannot be true is refused, not guessed at."""
    blocks = _blocks(_segment(2 * MIB))
    blocks.apply("alloc", 0, MIB)

    with pytest.raises(HistoryMismatchError, match="does not fit"):
        blocks.apply("alloc", 0, 512)


def test_a_segment_that_is_in_use_is_not_given_back() -> None:
    """Nor one that was given back before; a larger one may then begin at the same address."""
    blocks = _blocks(_segment(2 * MIB), _segment(2 * MIB, 2 * MIB))
    blocks.apply("alloc", 0, MIB)
    with pytest.raises(HistoryMismatchError):
        blocks.apply("segment_free", 0, 2 * MIB)
    _give_back(blocks, 0)
    for address in (0, 2 * MIB):
        blocks.apply("segment_free", address, 2 * MIB)
    with pytest.raises(HistoryMismatchError):
        blocks.apply("segment_free", 0, 2 * MIB)

    blocks.apply("segment_alloc", 0, 20 * MIB)
    assert blocks.apply("alloc", 0, 20 * MIB) == 20 * MIB


@given(st.lists(st.integers(1, MIB), min_size=1, max_size=30))
def test_what_was_taken_and_given_back_is_one_free_block_again(sizes: list[int]) -> None:
    """Whatever is cut off, giving all of it back leaves the segment whole."""
    blocks = _blocks(_segment(64 * MIB))
    taken, at = [], 0
    for size in sizes:
        taken.append(at)
        at += blocks.apply("alloc", at, size)
    for address in taken[::2] + taken[1::2]:
        _give_back(blocks, address)

    assert blocks.apply("alloc", 0, 64 * MIB) == 64 * MIB
