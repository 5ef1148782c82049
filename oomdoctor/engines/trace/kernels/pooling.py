"""Pooling and upsampling: contiguous copies of tensors whose layout the kernels cannot read or write.

Source: AdaptiveMaxPooling2d.cu, DilatedMaxPool2d.cu and AveragePool2d.cu, torch 2.6 to 2.15.

Source: UpSampleNearest2d.cu, UpSampleBilinear2d.cu, UpSampleBicubic2d.cu and UpSampleNearest3d.cu, torch 2.6 to 2.15.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.layouts import suggested_layout
from oomdoctor.engines.trace.temporaries import Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.engines.trace.temporaries import Call


_PICTURE: Final = 4


def _copies(*tensors: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.numel() * tensor.element_size() for tensor in tensors if not tensor.is_contiguous())


def _result_copies(call: Call) -> tuple[int, ...]:
    """Bytes of contiguous tensors to write to, where the results are not."""
    return tuple(prod(result.size) * result.dtype.itemsize for result in call.results if not _is_contiguous(result))


def _is_contiguous(result: Any) -> bool:  # noqa: ANN401 - see `planning`
    return torch.empty_strided(result.size, result.stride, device="meta").is_contiguous()


def _adaptive(call: Call) -> Temporaries:
    return Temporaries(after=(*_result_copies(call), *_copies(call.args[0])))


def _adaptive_backward(call: Call) -> Temporaries:
    gradient, _, indices = call.args[:3]
    return Temporaries(after=(*_copies(gradient, indices), *_result_copies(call)))


def _adaptive_average(call: Call) -> Temporaries:
    """Source: AdaptiveAveragePooling.cu."""
    return Temporaries(_copies_like(call.args[0], call.args[0]))


def _windowed(call: Call) -> Temporaries:
    return Temporaries(after=_copies_like(call.args[0], call.args[0]))


def _windowed_backward(call: Call) -> Temporaries:
    gradient, x = call.args[:2]
    return Temporaries(after=_copies_like(x, x, gradient))


def _copies_like(x: torch.Tensor, *tensors: torch.Tensor) -> tuple[int, ...]:
    """Copies of those that do not lie as kernels for `x` read them: channels last, if it does, or contiguous."""
    is_last = x.dim() == _PICTURE and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    layout = torch.channels_last if is_last else torch.contiguous_format
    return tuple(t.numel() * t.element_size() for t in tensors if not t.is_contiguous(memory_format=layout))


POOLING_TEMPORARIES: Final[dict[str, Callable[[Call], Temporaries]]] = {
    "adaptive_max_pool2d": _adaptive,
    "adaptive_max_pool2d_backward": _adaptive_backward,
    "_adaptive_avg_pool2d": _adaptive_average,
    "max_pool2d_with_indices": _windowed,
    "max_pool2d_with_indices_backward": _windowed_backward,
    "avg_pool2d": _windowed,
    "avg_pool2d_backward": _windowed_backward,
}


_NEAREST: Final = ("upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
_OTHERS: Final = ("upsample_bilinear2d", "upsample_bicubic2d")


def _contiguous_copy(call: Call) -> Temporaries:
    """The first argument's, unless it lies in order or channels last."""
    tensor = call.args[0]
    if tensor.is_contiguous(memory_format=suggested_layout(tensor)):
        return Temporaries()
    return Temporaries(after=(tensor.numel() * tensor.element_size(),))


UPSAMPLING_TEMPORARIES: Final[dict[str, Callable[[Call], Temporaries]]] = {
    **dict.fromkeys(_NEAREST, _contiguous_copy),
    **dict.fromkeys((f"{name}_backward" for name in (*_NEAREST, *_OTHERS)), _contiguous_copy),
}
