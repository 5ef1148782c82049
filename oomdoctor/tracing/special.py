"""Kernels that are more than a plan: what makes tensors, copies them, and reads them back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from oomdoctor.tracing.convolutions import convolution_kernels
from oomdoctor.tracing.errors import cannot_trace

from oomdoctor.tracing.private import accumulates, view_on_host
from oomdoctor.tracing.recurrent import recurrent_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.device import EmulatedDevice

_aten = torch.ops.aten
_DATA_DEPENDENT = ("nonzero", "masked_select", "unique_dim", "_unique", "_unique2", "unique_consecutive")


_VIEWS = (
    _aten.as_strided.default,
    _aten.as_strided_.default,
    _aten.view.default,
    _aten._reshape_alias.default,
    _aten.unfold.default,
    _aten.view_as_real.default,
    _aten.view_as_complex.default,
    _aten._conj.default,
)


def special_kernels(device: EmulatedDevice) -> dict[object, Callable[..., Any]]:
    """Kernels by operator."""
    from oomdoctor.tracing.kernels import resize

    def empty(size, dtype=None, layout=None, device_=None, pin_memory=None, memory_format=None, **_):
        meta = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
        return device.tensor(meta.shape, meta.stride(), meta.dtype)

    def empty_strided(size, stride, dtype=None, layout=None, device_=None, pin_memory=None, **_):
        return device.tensor(size, stride, dtype or torch.get_default_dtype())

    def copy_from(source, target, non_blocking=False):  # noqa: FBT002
        if target.is_cpu:
            device.reads += 1
            target.zero_()
        elif source.is_cpu:
            _to_device(device, source, target)
        return target

    def item(tensor):
        device.reads += 1
        return torch.zeros((), dtype=tensor.dtype).item()

    def resize_(tensor, size, memory_format=None, **_):
        meta = torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format)
        resize(device, tensor, tuple(meta.shape), meta.stride())
        return tensor

    def add(first, second, alpha=1):
        if alpha == 1 and accumulates(first, second):
            return first
        return NotImplemented

    def weight_norm_backward(gradient, direction, length, norms, dim):
        return torch.empty_like(direction), torch.empty_like(length)

    def layer_norm(x, normalized_shape, weight, bias, eps):
        rank = len(normalized_shape)
        rows = (*x.shape[: x.dim() - rank], *(1,) * rank)
        x = x.contiguous()
        sums = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
        return torch.empty_like(x), *(torch.empty(rows, dtype=sums, device=x.device) for _ in range(2))

    kernels = {
        _aten.empty.memory_format: empty,
        _aten.empty_strided.default: empty_strided,
        _aten._copy_from.default: copy_from,
        _aten._local_scalar_dense.default: item,
        _aten.resize_.default: resize_,
        _aten.add.Tensor: add,
        _aten.native_layer_norm.default: layer_norm,
    }
    kernels[_aten._weight_norm_interface_backward.default] = weight_norm_backward
    kernels |= convolution_kernels(device) | recurrent_kernels()
    for operator in _VIEWS:
        kernels[operator] = partial(view_on_host, operator)
    for name in _DATA_DEPENDENT:
        operator = getattr(_aten, name).default
        kernels[operator] = _refuse(operator)
    return kernels


def _refuse(operator: Any) -> Callable[..., Any]:  # noqa: ANN401
    def kernel(*_: Any, **__: Any) -> Any:  # noqa: ANN401
        raise cannot_trace(operator, "its result's shape depends on data")

    return kernel


def _to_device(device: EmulatedDevice, source: torch.Tensor, target: torch.Tensor) -> None:
    """A copy from the host; where the layouts differ, it goes through a contiguous one on the device.

    Source: `copy_kernel_cuda` and `copy_requires_temporaries`, Copy.cu.
    """
    same = source.dtype == target.dtype and source.stride() == target.stride()
    if not same and not target.is_contiguous():
        device.block(target.numel() * target.element_size())
