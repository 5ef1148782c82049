"""Writing to indexed places where several may be the same: the indices are sorted, so that each is added to once.

Source: `index_put_with_sort_kernel` and `makeLinearIndex`, Indexing.cu; `_index_put_impl_`,
TensorAdvancedIndexing.cpp; torch 2.6 to 2.15.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.tracing.models.radix_sort import SORT_PAIRS
from oomdoctor.tracing.version import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.tracing.device import EmulatedDevice

_INDEX_BYTES: Final = 8
_BOTH_ENDS_AT_ONCE: Final = (2, 7)
"""The least and the largest index are found by one kernel in 2.15 and by two in 2.6; between them nothing is known."""


def kernels(device: EmulatedDevice) -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {"_index_put_impl_": partial(_index_put, device)}


def _index_put(  # noqa: PLR0913, PLR0917 - PyTorch's signature
    device: EmulatedDevice,
    target: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    value: torch.Tensor,
    accumulate: bool = False,  # noqa: FBT001, FBT002
    unsafe: bool = False,  # noqa: FBT001, FBT002
) -> Any:  # noqa: ANN401 - or NotImplemented
    is_sorted = accumulate or torch.are_deterministic_algorithms_enabled()
    if not is_sorted or _are_masks(indices) or any(index is not None and index.is_cpu for index in indices):
        return NotImplemented
    value = value.to(target.device)
    whole = target if target.is_contiguous() else target.contiguous()
    linear, is_permuted, places, width = _linear_index(whole, indices, is_checked=not unsafe)
    expanded = value.expand(places).contiguous() if value.numel() < prod(places) else value.contiguous()
    if linear.numel() and width:
        permuted = torch.empty_like(whole, memory_format=torch.contiguous_format) if is_permuted else None
        _sort(device, linear, max(1, ((whole.numel() - 1) // width).bit_length()))
        del permuted
    del expanded
    return target


def _sort(device: EmulatedDevice, linear: torch.Tensor, bits: int) -> None:
    """Sorted indices, and with them the places where they were."""
    taken = [torch.empty_like(linear, memory_format=torch.contiguous_format) for _ in range(3)]
    device.call_library(SORT_PAIRS, len(linear), _INDEX_BYTES, _INDEX_BYTES, bits)
    del taken


def _are_masks(indices: Sequence[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _linear_index(
    target: torch.Tensor, indices: Sequence[torch.Tensor | None], *, is_checked: bool
) -> tuple[torch.Tensor, bool, list[int], int]:
    """One index for each place, whether dimensions were reordered for it, the values' shape, and a row's width."""
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    wide = [index.long() if index.dtype is torch.int32 else index for _, index in given]
    tensors = torch.broadcast_tensors(*wide)  # type: ignore[no-untyped-call]
    dims = [dim for dim, _ in given]
    is_permuted = dims != list(range(dims[0], dims[0] + len(dims)))
    linear = _summed(target, dims, tensors, is_checked=is_checked)
    before = [] if is_permuted else list(target.shape[: dims[0]])
    rest = [length for dim, length in enumerate(target.shape) if dim not in dims]
    after = rest[len(before) :]
    width = prod(after)
    return linear.reshape(-1), is_permuted, [*before, *linear.shape, *after], width


def _summed(
    target: torch.Tensor, dims: Sequence[int], tensors: Sequence[torch.Tensor], *, is_checked: bool
) -> torch.Tensor:
    """Each index wrapped and times its stride, and all of them added up."""
    linear = _scaled(target, dims[0], tensors[0], is_checked=is_checked)
    for dim, index in zip(dims[1:], tensors[1:], strict=True):
        linear.add_(_scaled(target, dim, index, is_checked=is_checked))
    return linear


def _scaled(target: torch.Tensor, dim: int, index: torch.Tensor, *, is_checked: bool) -> torch.Tensor:
    if is_checked and index.numel():
        _check(index)
    return index.remainder(target.shape[dim]) * target.stride(dim)


def _check(index: torch.Tensor) -> None:
    """That no index is outside, which the card finds out by itself."""
    if _BOTH_ENDS_AT_ONCE <= TORCH:
        least, largest = index.aminmax()
        _ = largest < 1
        del _
        _ = least >= 0
        return
    for end in (torch.max, torch.min):
        found = end(index)
        _ = found < 1
        del found, _
