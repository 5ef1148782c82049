"""Sorting along a dimension, and selecting what is largest.

Source: `sort_cuda_kernel`, Sort.cpp; `launch_stable_sort_kernel`, SortStable.cu; `topk_out_cuda`, TensorTopK.cpp;
torch 2.6 to 2.15.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.tracing.models.radix_sort import SORT_PAIRS, segmented_sort_bytes
from oomdoctor.tracing.models.selection import SELECT, is_by_blocks
from oomdoctor.tracing.pointwise import is_dense

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oomdoctor.tracing.device import EmulatedDevice

_SORTED_IN_PLACE: Final = 4096
_LONG: Final = 1_000_000
_MANY_SEGMENTS: Final = 128
_INDEX_BYTES: Final = 8
_LARGEST_INT: Final = 2**31 - 1


def kernels(device: EmulatedDevice) -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {"sort.stable": partial(_sort, device), "topk": partial(_topk, device)}


def _sort(
    device: EmulatedDevice,
    x: torch.Tensor,
    *,
    stable: bool | None = None,  # noqa: ARG001 - PyTorch's signature
    dim: int = -1,
    descending: bool = False,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.empty_like(x)
    indices = torch.empty_like(values, dtype=torch.int64)
    if not x.dim() or not x.numel():
        return values, indices
    dim %= x.dim()
    if x.shape[dim] <= _SORTED_IN_PLACE:
        torch.empty(x.shape[dim], dtype=torch.int64, device=x.device)  # places to begin with
    else:
        _sort_long(device, x, dim, values)
    return values, indices


def _sort_long(device: EmulatedDevice, x: torch.Tensor, dim: int, values: torch.Tensor) -> None:
    """By CUB, which wants what is sorted side by side."""
    held = []
    if not (is_dense(x) and x.stride(dim) == 1):
        stride = _stride_with_last(x, dim)
        held.append(torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device))
        if values.stride() != stride:
            held += [torch.empty_like(held[0]), torch.empty_like(held[0], dtype=torch.int64)]
    length = x.shape[dim]
    for count in _launches(x.numel(), length):
        _launch(device, count // length, length, x.element_size())
    del held


def _stride_with_last(x: torch.Tensor, dim: int) -> tuple[int, ...]:
    """Strides without gaps in which `dim` comes last, the others in the order that they have."""
    order = sorted((other for other in range(x.dim()) if other != dim), key=x.stride, reverse=True)
    strides, step = [0] * x.dim(), 1
    for other in (dim, *reversed(order)):
        strides[other] = step
        step *= x.shape[other]
    return tuple(strides)


def _launches(count: int, length: int) -> Iterator[int]:
    """Whole segments, as many at once as 32 bits can count."""
    most = min(count, _LARGEST_INT) // length * length
    while count > 0:
        yield min(count, most)
        count -= most


def _launch(device: EmulatedDevice, segments: int, length: int, key_bytes: int) -> None:
    count = segments * length
    if segments == 1 or length >= _LONG:
        places = device.block(length * _INDEX_BYTES)
        for _ in range(segments):
            device.call_library(SORT_PAIRS, length, key_bytes, _INDEX_BYTES, 8 * key_bytes)
    elif segments < _MANY_SEGMENTS:
        _sort_twice(device, segments, count, key_bytes)
    else:
        places = device.block(count * _INDEX_BYTES)
        device.block(segmented_sort_bytes(count, key_bytes, _INDEX_BYTES))
        del places


def _sort_twice(device: EmulatedDevice, segments: int, count: int, key_bytes: int) -> None:
    """All by value, and then by segment, keeping the order."""
    pairs = [device.block(count * _INDEX_BYTES) for _ in range(2)]
    keys = device.block(count * key_bytes)
    device.call_library(SORT_PAIRS, count, key_bytes, _INDEX_BYTES, 8 * key_bytes)
    del keys
    device.call_library(SORT_PAIRS, count, _INDEX_BYTES, 0, max(1, (segments - 1).bit_length()))
    del pairs


def _topk(  # noqa: PLR0913, PLR0917 - PyTorch's signature
    device: EmulatedDevice,
    x: torch.Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,  # noqa: ARG001, FBT001, FBT002
    is_sorted: bool = True,  # noqa: FBT001, FBT002
) -> Any:  # noqa: ANN401 - or NotImplemented
    if not x.dim() or not x.numel() or not k:
        return NotImplemented
    dim %= x.dim()
    values = torch.empty((*x.shape[:dim], k, *x.shape[dim + 1 :]), dtype=x.dtype, device=x.device)
    indices = torch.empty_like(values, dtype=torch.int64)
    select(device, x, values, indices, dim, is_sorted=is_sorted)
    return values, indices


def select(  # noqa: PLR0913 - what the operator is given
    device: EmulatedDevice, x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int, *, is_sorted: bool
) -> None:
    """Find the largest of `x` along a dimension, for results that are there."""
    length = x.shape[dim]
    contiguous = x.contiguous()
    if is_by_blocks(x.numel() // length, length):
        device.call_library(SELECT, x.numel() // length, length, x.element_size())
    del contiguous
    if is_sorted and values.shape[dim] > _SORTED_IN_PLACE:
        _sort_selected(device, values, indices, dim % x.dim())


def _sort_selected(device: EmulatedDevice, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
    places, others = torch.empty_like(indices), torch.empty_like(values)
    _sort_long(device, values, dim, others)
    indices.gather(dim, places)
