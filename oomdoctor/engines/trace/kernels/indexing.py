"""Indexing, searching and copying: index tensors as kernels want them, `index_put`, `searchsorted`, `roll`.

Source: `expandTensors`, IndexingUtils.h; `make_info` and `AdvancedIndex`, TensorAdvancedIndexing.cpp; torch 2.6 to
2.15.

Source: `index_put_with_sort_kernel` and `makeLinearIndex`, Indexing.cu; `_index_put_impl_`,
TensorAdvancedIndexing.cpp; torch 2.6 to 2.15.

Source: `searchsorted_maybe_trim_input_tensors`, BucketizationUtils.h; torch 2.6 to 2.15.

Source: `isin_default_kernel_gpu`, TensorCompare.cu, and `isin_Tensor_Tensor_out`, TensorCompare.cpp; `_histc_cuda`,
SummaryOps.cu; torch 2.6 to 2.15.

Source: `roll_cuda`, TensorTransformations.cu, and `roll_common`, TensorTransformations.h; `repeat_interleave_cuda`,
Repeat.cu; torch 2.6 to 2.15.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.kernels.sorting import SORT_PAIRS
from oomdoctor.engines.trace.temporaries import Temporaries
from oomdoctor.engines.trace.torch_internals import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.engines.trace.temporaries import Call


_INDEX_BYTES: Final = 8


def _copied_indices(call: Call) -> Temporaries:
    given = [index for index in call.args[1] if index is not None]
    widened = tuple(index.numel() * _INDEX_BYTES for index in given if index.dtype is torch.int32)
    metas = [torch.empty_strided(index.shape, index.stride(), device="meta") for index in given]
    placed = torch.broadcast_tensors(*metas)  # type: ignore[no-untyped-call]
    is_alike = len({index.stride() for index in placed}) <= 1
    copied = tuple(i.numel() * _INDEX_BYTES for i in placed if not (is_alike or i.is_contiguous()))
    return Temporaries(before=(*widened, *copied))


INDEX_TEMPORARIES: Final[dict[str, Callable[[Call], Temporaries]]] = dict.fromkeys(
    ("index", "_index_put_impl_"), _copied_indices
)


_BOTH_ENDS_AT_ONCE: Final = (2, 7)
"""The least and the largest index are found by one kernel in 2.15 and by two in 2.6; between them nothing is known."""


def index_kernels(device: EmulatedDevice) -> dict[str, Callable[..., Any]]:
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
        _sort_indices(device, linear, max(1, ((whole.numel() - 1) // width).bit_length()))
        del permuted
    del expanded
    return target


def _sort_indices(device: EmulatedDevice, linear: torch.Tensor, bits: int) -> None:
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
        _check_bounds(index)
    return index.remainder(target.shape[dim]) * target.stride(dim)


def _check_bounds(index: torch.Tensor) -> None:
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


def _searched(call: Call) -> Temporaries:
    given = [value for value in call.args[:2] if isinstance(value, torch.Tensor) and value.dim()]
    copied = tuple(t.numel() * t.element_size() for t in given if not t.is_contiguous())
    if len({t.dtype for t in given}) > 1:
        dtype = torch.promote_types(given[0].dtype, given[1].dtype)
        copied += tuple(t.numel() * dtype.itemsize for t in given if t.dtype is not dtype)
    return Temporaries(after=copied)


SEARCH_TEMPORARIES: Final[dict[str, Callable[[Call], Temporaries]]] = dict.fromkeys(
    ("searchsorted", "bucketize"), _searched
)


"""The least and the largest are found by one kernel in 2.15 and by two in 2.6; between them nothing is known."""


def search_kernels() -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {"isin.Tensor_Tensor": _isin, "histc": _histc}


def _isin(elements: torch.Tensor, tested: torch.Tensor, **_: object) -> Any:  # noqa: ANN401 - or NotImplemented
    """Each compared with each where there are few; else they are sorted, which is the plan's."""
    if tested.numel() >= 10 * elements.numel() ** 0.145:
        return NotImplemented
    result = torch.empty(elements.shape, dtype=torch.bool, device=elements.device)
    return result.copy_((elements.unsqueeze(-1) == tested.view(-1)).any(-1))


def _histc(x: torch.Tensor, bins: int = 100, least: float = 0, largest: float = 0) -> torch.Tensor:
    """Between the least and the largest there are, where it is not said."""
    result = torch.empty(bins, dtype=x.dtype, device=x.device)
    if least == largest and x.numel():
        _min_and_max(x)
    return result


def _min_and_max(x: torch.Tensor) -> None:
    if _BOTH_ENDS_AT_ONCE <= TORCH:
        x.aminmax()
        return
    for find in (torch.min, torch.max):
        find(x).item()


def copy_kernels() -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {"roll": _roll, "repeat_interleave.Tensor": _repeat_interleave}


def _roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """One dimension after the other; laid flat where none is named."""
    if not dims:
        return _rolled(x.contiguous().view(-1)).view(x.shape)
    first = _rolled(x)
    return _roll(first, shifts[1:], dims[1:]) if len(dims) > 1 else first


def _rolled(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    return torch.empty_like(x)


def _repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> Any:  # noqa: ANN401 - or NotImplemented
    if output_size is None:
        return NotImplemented
    ends = repeats.cumsum(0)
    result = torch.empty(output_size, dtype=repeats.dtype, device=repeats.device)
    del ends
    return result
