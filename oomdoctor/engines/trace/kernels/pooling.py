"""Pooling and upsampling: contiguous copies of tensors whose layout the kernels cannot read or write.

Source: AdaptiveMaxPooling2d.cu, AdaptiveAveragePooling.cu, DilatedMaxPool2d.cu, AveragePool2d.cu, UpSampleNearest2d.cu,
UpSampleBilinear2d.cu, UpSampleBicubic2d.cu and UpSampleNearest3d.cu, torch 2.6 to 2.15.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.layouts import copied_bytes, suggested_layout
from oomdoctor.engines.trace.temporaries import Temporaries

if TYPE_CHECKING:
    from oomdoctor.engines.trace.temporaries import Call, TemporariesByName

_NEAREST: Final = ("upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
_OTHERS: Final = ("upsample_bilinear2d", "upsample_bicubic2d")


def _result_copies(call: Call) -> tuple[int, ...]:
    """Return the bytes of contiguous tensors that are written where the results are not contiguous."""
    return tuple(prod(result.size) * result.dtype.itemsize for result in call.results if not _is_contiguous(result))


def _is_contiguous(result: Any) -> bool:  # noqa: ANN401 - see `plans`
    return torch.empty_strided(result.size, result.stride, device="meta").is_contiguous()


def _adaptive_max(call: Call) -> Temporaries:
    return Temporaries(after=(*_result_copies(call), *copied_bytes(call.args[:1])))


def _adaptive_max_backward(call: Call) -> Temporaries:
    gradient, _, indices = call.args[:3]
    return Temporaries(after=(*copied_bytes((gradient, indices)), *_result_copies(call)))


def _adaptive_average(call: Call) -> Temporaries:
    return Temporaries(_copies_like(call.args[0], call.args[0]))


def _windowed(call: Call) -> Temporaries:
    return Temporaries(after=_copies_like(call.args[0], call.args[0]))


def _windowed_backward(call: Call) -> Temporaries:
    gradient, x = call.args[:2]
    return Temporaries(after=_copies_like(x, x, gradient))


def _copies_like(x: torch.Tensor, *tensors: torch.Tensor) -> tuple[int, ...]:
    """Return the bytes of copies of tensors that do not have the layout of `x`, channels last or contiguous."""
    return copied_bytes(tensors, suggested_layout(x))


TEMPORARIES: Final[TemporariesByName] = {
    "adaptive_max_pool2d": _adaptive_max,
    "adaptive_max_pool2d_backward": _adaptive_max_backward,
    "_adaptive_avg_pool2d": _adaptive_average,
    "max_pool2d_with_indices": _windowed,
    "max_pool2d_with_indices_backward": _windowed_backward,
    "avg_pool2d": _windowed,
    "avg_pool2d_backward": _windowed_backward,
    **dict.fromkeys(_NEAREST, _windowed),
    **dict.fromkeys((f"{name}_backward" for name in (*_NEAREST, *_OTHERS)), _windowed),
}
