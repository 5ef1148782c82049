"""Kernels that are more than a plan: what makes tensors, copies them, reads them back, or is made up of others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.tracing.accumulation import accumulates
from oomdoctor.tracing.compositions.table import composed_kernels
from oomdoctor.tracing.convolutions import convolution_kernels
from oomdoctor.tracing.errors import cannot_trace
from oomdoctor.tracing.private import HOST_VIEWS, operator_named, view_on_host
from oomdoctor.tracing.recurrent import recurrent_kernels
from oomdoctor.tracing.storage import resize
from oomdoctor.tracing.windows import window_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.tracing.device import EmulatedDevice

_DATA_DEPENDENT: Final = (
    "nonzero", "masked_select", "unique_dim", "_unique", "_unique2", "unique_consecutive",
)  # fmt: skip
_HALVES: Final = (torch.float16, torch.bfloat16)


def special_kernels(device: EmulatedDevice) -> dict[object, Callable[..., Any]]:
    """Kernels by operator. One that returns NotImplemented leaves the call to a plan."""
    named: dict[str, Callable[..., Any]] = {
        "empty.memory_format": partial(_empty, device),
        "empty_strided": partial(_empty_strided, device),
        "resize_": partial(_resize, device),
        "_copy_from": partial(_copy, device),
        "_to_copy": partial(_convert, device),
        "_local_scalar_dense": partial(_read, device),
        "add.Tensor": _add,
        "native_layer_norm": _layer_norm,
        "_weight_norm_interface_backward": _weight_norm_backward,
    }
    found: dict[object, Callable[..., Any]] = {operator_named(name): kernel for name, kernel in named.items()}
    found |= composed_kernels(device)
    found |= convolution_kernels() | recurrent_kernels() | window_kernels(device)
    found |= {operator: partial(view_on_host, operator) for operator in map(operator_named, HOST_VIEWS)}
    return found | {operator: partial(_refuse, operator) for operator in map(operator_named, _DATA_DEPENDENT)}


def _empty(
    device: EmulatedDevice,
    /,
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    *_: object,
    memory_format: torch.memory_format | None = None,
    **__: object,
) -> torch.Tensor:
    meta = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
    return device.tensor(meta.shape, meta.stride(), meta.dtype)


def _empty_strided(
    device: EmulatedDevice,
    /,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None = None,
    *_: object,
    **__: object,
) -> torch.Tensor:
    return device.tensor(size, stride, dtype or torch.get_default_dtype())


def _resize(
    device: EmulatedDevice, tensor: torch.Tensor, size: Sequence[int], memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    meta = torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format)
    resize(device, tensor, tuple(meta.shape), meta.stride())
    return tensor


def _copy(device: EmulatedDevice, source: torch.Tensor, target: torch.Tensor, *_: object) -> torch.Tensor:
    """A copy to the host reads zeros; one from it goes through a contiguous one where the layouts differ.

    Source: `copy_kernel_cuda` and `copy_requires_temporaries`, Copy.cu.
    """
    if target.is_cpu:
        device.reads += 1
        target.zero_()
    elif source.is_cpu:
        is_alike = source.dtype == target.dtype and source.stride() == target.stride()
        if not is_alike and not target.is_contiguous():
            device.block(target.numel() * target.element_size())
    return target


def _convert(
    ours: EmulatedDevice,
    /,
    source: torch.Tensor,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
    **_: object,
) -> Any:  # noqa: ANN401 - or NotImplemented
    """A copy keeps its strides, which C++ thinks XLA has none of. On the device it is a plan's."""
    if not source.is_cpu and (device is None or device.type != "cpu"):
        return NotImplemented
    like = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
    meta = torch.ops.aten._to_copy(like, dtype=dtype, memory_format=memory_format)  # noqa: SLF001 - the operator itself
    if source.is_cpu:
        return ours.tensor(meta.shape, meta.stride(), meta.dtype)
    return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype).copy_(source)


def _read(device: EmulatedDevice, tensor: torch.Tensor) -> float | bool:
    """What `item()`, `float()` and `bool()` get: zero, as from a null GPU."""
    device.reads += 1
    return torch.zeros((), dtype=tensor.dtype).item()


def _add(first: torch.Tensor, second: torch.Tensor, alpha: float = 1) -> Any:  # noqa: ANN401 - or NotImplemented
    """Autograd's engine adds a gradient to what it has; all else is a plan's."""
    return first if alpha == 1 and accumulates(first, second) else NotImplemented


def _layer_norm(x: torch.Tensor, normalized_shape: Sequence[int], *_: object) -> tuple[torch.Tensor, ...]:
    """Output, mean and standard deviation of each row. Source: `layer_norm_cuda`, layer_norm_kernel.cu."""
    rank = len(normalized_shape)
    rows = (*x.shape[: x.dim() - rank], *(1,) * rank)
    x = x.contiguous()
    sums = torch.float32 if x.dtype in _HALVES else x.dtype
    return torch.empty_like(x), *(torch.empty(rows, dtype=sums, device=x.device) for _ in range(2))


def _weight_norm_backward(
    _: torch.Tensor, direction: torch.Tensor, length: torch.Tensor, *__: object
) -> tuple[torch.Tensor, ...]:
    """PyTorch has no shapes of this for tensors without data."""
    return torch.empty_like(direction), torch.empty_like(length)


def _refuse(operator: object, *_: object, **__: object) -> None:
    raise cannot_trace(operator, "the shape of its result depends on data")
