"""What goes over pictures: convolutions, pools and upsampling, of tensors that lie in several ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody has it

from operator_cases.making import HALF, Case, case, channels_last, leaf

TYPES = (torch.float32, HALF, torch.float16)
_PICTURE = (4, 32, 20, 20)

_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda x: x,
    "channels last": channels_last,
    "transposed": lambda x: x.transpose(2, 3),
    "sliced": lambda x: x[:, ::2],
}
_RESULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x,
    "joined": lambda x: torch.cat([x, x], 1),
    "transposed": lambda x: x.transpose(2, 3),
    "summed": lambda x: x.sum(),
}
_POOLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "max": lambda x: F.max_pool2d(x, 2),
    "average": lambda x: F.avg_pool2d(x, 2),
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, 3),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, 3),
    "to one pixel": lambda x: F.adaptive_avg_pool2d(x, 1),
    **{
        f"upsampled {mode}": lambda x, mode=mode: F.interpolate(x, (33, 33), mode=mode)
        for mode in ("nearest", "bilinear")
    },
    **{
        f"padded, {mode}": lambda x, mode=mode: F.pad(x, (1, 2, 3, 1), mode=mode)
        for mode in ("constant", "circular", "reflect", "replicate")
    },
    "unfolded": lambda x: F.unfold(x, 3)[:, :, None],
}
_FILTERS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "all channels": ((16, 32, 3, 3), {"padding": 1}),
    "one pixel": ((16, 32, 1, 1), {}),
    "groups": ((32, 8, 3, 3), {"groups": 4}),
    "depthwise": ((32, 1, 3, 3), {"groups": 32}),
    "depthwise, strided": ((32, 1, 3, 3), {"groups": 32, "stride": 2}),
    "depthwise, wide": ((64, 1, 7, 7), {"groups": 32}),
}


def _pooled(name: str, layout: str, result: str) -> Case:
    pool, lay, end = _POOLS[name], _LAYOUTS[layout], _RESULTS[result]
    return case(lambda x: end(pool(lay(x))), leaf(*_PICTURE))


def _convolved(name: str, layout: str, result: str, dtype: torch.dtype) -> Case:
    (shape, settings), lay, end = _FILTERS[name], _LAYOUTS[layout], _RESULTS[result]
    return case(
        lambda x, weight, bias: end(F.conv2d(lay(x), weight, bias, **settings)),
        leaf(*_PICTURE, dtype=dtype), leaf(*shape, dtype=dtype), leaf(shape[0], dtype=dtype),
    )  # fmt: skip


def _signal_padded(mode: str, dimensions: int) -> Case:
    """Of a tensor with batch and channels swapped, and so that a gradient is read that is one number repeated."""
    shape, padding = (8, 4, 12, 10, 14)[: 2 + dimensions], (1, 2) * dimensions
    return case(lambda x: F.pad(x.transpose(0, 1), padding, mode=mode).sum(), leaf(*shape))


_VOLUME = (4, 16, 8, 8, 8)
_VOLUME_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last_3d),
    "transposed": lambda x: x.transpose(2, 3),
}
_VOLUME_POOLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "max": lambda x: F.max_pool3d(x, 2),
    "average": lambda x: F.avg_pool3d(x, 2),
    "adaptive average": lambda x: F.adaptive_avg_pool3d(x, 3),
    "adaptive max": lambda x: F.adaptive_max_pool3d(x, 3),
    "upsampled trilinear": lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
    "upsampled nearest": lambda x: F.interpolate(x, scale_factor=2),
    "rrelu": lambda x: F.rrelu(x, training=True),
}


def _volume(pool: str, layout: str, *, is_summed: bool) -> Case:
    lay, function = _VOLUME_LAYOUTS[layout], _VOLUME_POOLS[pool]
    return case(lambda x: function(lay(x)).sum() if is_summed else function(lay(x)), leaf(*_VOLUME))


def _of_one_channel(dimensions: int, channels: tuple[int, int], dtype: torch.dtype) -> Case:
    """The filters are channels last, and the input lies in both ways at once."""
    layout = (torch.channels_last, torch.channels_last_3d)[dimensions - 2]
    convolve = (F.conv2d, F.conv3d)[dimensions - 2]
    space, (inputs, outputs) = (8, 10, 12)[-dimensions:], channels
    return case(
        lambda x, weight: convolve(x, torch.empty_like(weight, memory_format=layout).copy_(weight), padding=1),
        leaf(4, inputs, *space, dtype=dtype), leaf(outputs, inputs, *(3,) * dimensions, dtype=dtype),
    )  # fmt: skip


def _transposed_volume(layout: str) -> Case:
    """The gradient is a slice of a tensor that is channels last."""
    lay = _VOLUME_LAYOUTS[layout]

    def up(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        filters = weight.contiguous(memory_format=torch.channels_last_3d)
        wide = F.conv_transpose3d(lay(x), filters, stride=2)
        return torch.cat([wide, wide], 1) * 2

    return case(up, leaf(*_VOLUME, dtype=torch.float16), leaf(16, 8, 2, 2, 2, dtype=torch.float16))


CASES = {
    **{
        f"volume, {pool}, {layout}, {is_summed=}": _volume(pool, layout, is_summed=is_summed)
        for pool in _VOLUME_POOLS
        for layout in _VOLUME_LAYOUTS
        for is_summed in (True, False)
    },
    **{
        f"channels last filters of {dimensions}d, {channels}, {dtype}": _of_one_channel(dimensions, channels, dtype)
        for dimensions in (2, 3)
        for channels in ((1, 32), (1, 1), (32, 1))
        for dtype in TYPES
    },
    **{f"transposed volume, {layout}": _transposed_volume(layout) for layout in _VOLUME_LAYOUTS},
    **{
        f"padded, {mode}, of {dimensions} dimensions": _signal_padded(mode, dimensions)
        for mode in ("circular", "reflect", "replicate")
        for dimensions in (1, 2, 3)
    },
    **{
        f"{name}, {layout}, {result}": _pooled(name, layout, result)
        for name in _POOLS
        for layout in _LAYOUTS
        for result in ("whole", "joined", "transposed")
    },
    **{
        f"convolution with {name}, {layout}, {result}, {dtype}": _convolved(name, layout, result, dtype)
        for name in _FILTERS
        for layout in ("as it is", "channels last", "transposed")
        for result in ("whole", "transposed", "summed")
        for dtype in TYPES
    },
}
