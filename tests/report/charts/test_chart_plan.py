"""The accumulation plan as a row of blocks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.report.charts.scales import SCALE
from oomdoctor.report.probe.html import micro_batch_bars


def test_a_block_a_micro_batch() -> None:
    """256 at 100 is three blocks, as wide as their samples, each with its size."""
    found = micro_batch_bars((86, 85, 85))
    assert [(block.micro_batch, block.steps, block.words.wide) for block in found] == [
        (86, 1, "86"),
        (85, 1, "85"),
        (85, 1, "85"),
    ]
    assert [block.width for block in found] == pytest.approx(
        [86 / 256 * SCALE, 85 / 256 * SCALE, 85 / 256 * SCALE], 0.01
    )


def test_many_steps_are_a_block_a_size() -> None:
    """A hundred steps of two sizes are two blocks that say how many they are."""
    found = micro_batch_bars((3,) * 56 + (2,) * 44)
    assert [(block.micro_batch, block.steps, block.words.wide) for block in found] == [
        (3, 56, "56 \u00d7 3"),
        (2, 44, "44 \u00d7 2"),
    ]


def test_many_sizes_end_in_one_block() -> None:
    """A plan of more sizes than have room, as only a document from elsewhere has it, ends in a block of the rest."""
    found = micro_batch_bars(tuple(range(40, 0, -1)))
    assert len(found) == 17
    assert (found[-1].micro_batch, found[-1].steps, found[-1].words.wide) == (None, 24, "24 more")
    assert found[-1].left + found[-1].width == pytest.approx(SCALE)


@given(st.lists(st.integers(0, 2**62), max_size=60))
def test_blocks_fill_the_row(micro_batches: list[int]) -> None:
    """Blocks follow each other from edge to edge, stand for every step, and are few."""
    found = micro_batch_bars(micro_batches)
    assert len(found) <= 17
    assert sum(block.steps for block in found) == len(micro_batches)
    assert all(block.width >= 0 for block in found)
    for block, following in pairwise(found):
        assert block.left + block.width == pytest.approx(following.left)
    if sum(micro_batches):
        assert found[0].left == 0
        assert found[-1].left + found[-1].width == pytest.approx(SCALE)
