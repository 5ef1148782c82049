"""Sums and their kin: where few results come of many values, blocks leave partial results in global memory.

Source: `setReduceConfig` and `ReduceConfig`, Reduce.cuh, torch 2.6 to 2.15. The buffer may be larger than what is
summed: every block of the grid writes one row of its partial results.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cmp_to_key
from typing import TYPE_CHECKING, Final

from oomdoctor.tracing.version import TORCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from oomdoctor.devices.card import Card

_WARP: Final = 32
_MOST_THREADS: Final = 512
_FEWEST_VALUES: Final = 16
_MOST_VALUES: Final = 256
_VECTOR: Final = 4
_LARGEST_32_BIT: Final = 2**31 - 1
_WORTH_A_VECTOR: Final = 128 if TORCH >= (2, 7) else 129
"""Fewest values that are read as vectors: in 2.15 and in 2.6; between them nothing is known."""


@dataclass(frozen=True, slots=True)
class _Loop:
    """What a reduction goes through: lengths, and strides in elements, the fastest reduced dimension first."""

    sizes: list[int]
    strides: list[int]
    reduced: int  # how many of them, from the first, are reduced

    @property
    def outputs(self) -> int:
        product = 1
        for size in self.sizes[self.reduced :]:
            product *= size
        return product

    @property
    def values(self) -> int:
        product = 1
        for size in self.sizes[: self.reduced]:
            product *= size
        return product


def partial_results(
    card: Card, tensor: torch.Tensor, dims: Sequence[int] | None, item_bytes: int, vector: int = _VECTOR
) -> tuple[int, ...]:
    """Bytes of the buffer and of its semaphores; nothing where one block does for each result.

    Args:
        card: On what it runs.
        tensor: What is reduced.
        dims: Over which dimensions; None or none for all.
        item_bytes: Size of one partial result.
        vector: How many values a thread reads at once, where they lie side by side.
    """
    if not 0 < tensor.numel() <= _LARGEST_32_BIT:
        return ()
    loop = _loop_over(tensor, dims)
    return _buffers(card, loop, item_bytes, vector)


def _loop_over(tensor: torch.Tensor, dims: Sequence[int] | None) -> _Loop:
    """Dimensions as TensorIterator orders and joins them: reduced ones first, each kind by stride."""
    rank = tensor.dim()
    chosen = {dim % rank for dim in dims} if dims else set(range(rank))
    axes = [
        (tensor.shape[dim], tensor.stride(dim), dim in chosen) for dim in reversed(range(rank))
    ]  # the last dimension first, which is where TensorIterator begins
    ordered = [axis for axis in sorted(axes, key=cmp_to_key(_slower)) if axis[0] != 1]
    joined: list[tuple[int, int, bool]] = []
    for size, stride, is_reduced in ordered:
        if joined and joined[-1][2] == is_reduced and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (joined[-1][0] * size, joined[-1][1], is_reduced)
        else:
            joined.append((size, stride, is_reduced))
    joined = joined or [(1, 1, True)]
    return _Loop([axis[0] for axis in joined], [axis[1] for axis in joined], sum(axis[2] for axis in joined))


def _slower(first: tuple[int, int, bool], second: tuple[int, int, bool]) -> int:
    if first[2] != second[2]:
        return -1 if first[2] else 1
    if 0 in (first[1], second[1]):
        return 0
    return first[1] - second[1] or first[0] - second[0]


def _buffers(card: Card, loop: _Loop, item_bytes: int, input_vector: int) -> tuple[int, ...]:
    outputs, values = loop.outputs, loop.values
    along_input = loop.reduced == len(loop.sizes) or (loop.reduced > 0 and loop.strides[0] < loop.strides[loop.reduced])
    width, height = (values, outputs) if along_input else (outputs, values)
    vector = 1
    if along_input and loop.strides[0] == 1 and width >= _WORTH_A_VECTOR and loop.reduced == 1:
        width //= input_vector
    elif not along_input and loop.strides[loop.reduced] == 1:
        vector = _output_vector(loop)
        width //= vector
    block_width, block_height = _block(width, height, _MOST_THREADS // vector)
    inputs_a_step, outputs_a_step = (block_width, 1) if along_input else (1, block_width)
    across_warps = -(-values // inputs_a_step) >= min(block_height * 16, _MOST_VALUES)
    if across_warps:
        inputs_a_step *= block_height
    else:
        outputs_a_step *= block_height
    a_thread = -(-values // inputs_a_step)
    grid = -(-(outputs // vector) // outputs_a_step)
    target = card.sm_count * (card.max_threads_per_sm // (block_width * block_height))
    if not across_warps or a_thread < _MOST_VALUES or grid > target:
        return ()
    blocks = max(min(-(-target // grid), -(-a_thread // _FEWEST_VALUES)), -(-a_thread // _MOST_VALUES))
    if blocks <= 1:
        return ()
    rows = 1 if along_input else block_width * vector
    return item_bytes * outputs * blocks * rows, 4 * grid


def _output_vector(loop: _Loop) -> int:
    vector = _VECTOR
    numbers = [loop.sizes[loop.reduced], *(s for i, s in enumerate(loop.strides) if i != loop.reduced)]
    for number in numbers:
        while number % vector:
            vector //= 2
    return vector


def _block(width: int, height: int, threads: int) -> tuple[int, int]:
    most_wide, most_high = (_power_of_two(min(length, threads)) for length in (width, height))
    block_width = min(most_wide, _WARP)
    block_height = min(most_high, threads // block_width)
    return min(most_wide, threads // block_height), block_height


def _power_of_two(number: int) -> int:
    """The largest power of two that is not above it."""
    return 1 << (max(number, 1).bit_length() - 1)
