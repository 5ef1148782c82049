"""Layers: what modules are made of."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody has it

from operator_cases.making import HALF, Case, case, channels_last, given, leaf, ones, zeros

_LAYOUTS = (
    "whole",
    "sliced",
    "transposed gradient",
    "expanded gradient",
    "transposed, expanded gradient",
    "to fp32",
    "sliced bf16",
)


def _softmax(function: Callable[..., torch.Tensor], dim: int, layout: str) -> Case:
    of: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "whole": lambda x: function(x, dim),
        "sliced": lambda x: function(x[..., :40], dim),
        "transposed gradient": lambda x: function(x, dim).transpose(2, 3),
        "expanded gradient": lambda x: function(x, dim).sum(0),
        "transposed, expanded gradient": lambda x: function(x.transpose(1, 2), dim).sum(3),
        "to fp32": lambda x: function(x, dim, dtype=torch.float32),
        "sliced bf16": lambda x: function(x[..., :40], dim),
    }
    is_half = layout in ("to fp32", "sliced bf16")
    return case(of[layout], leaf(4, 6, 50, 70, dtype=HALF if is_half else torch.float32))


_NORMALIZED: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "swapped": ((9, 40, 32), lambda x: x.transpose(1, 2)),
    "transposed": ((9, 32, 14, 12), lambda x: x.transpose(2, 3)),
    "sliced": ((9, 64, 14, 12), lambda x: x[:, ::2]),
    "channels last": ((9, 32, 14, 12), channels_last),
    "channels last 3d": ((3, 32, 6, 7, 5), lambda x: x.contiguous(memory_format=torch.channels_last_3d)),
    "beyond 32 bits": ((700, 32, 320, 320), lambda x: x),
}


def _batch_norm(layout: str, dtype: torch.dtype, *, training: bool, is_affine: bool) -> Case:
    shape, lay = _NORMALIZED[layout]

    def normalize(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(lay(x), zeros(32), ones(32), *weights, training=training)

    return case(normalize, leaf(*shape, dtype=dtype), *([leaf(32), leaf(32)] if is_affine else []))


CASES = {
    "layer norm of data": case(lambda x, weight: F.layer_norm(x, (16,), weight), given(5, 16), leaf(16)),
    "group norm of data": case(lambda x, weight: F.group_norm(x, 2, weight), given(5, 16, 4), leaf(16)),
    "group norm of data of one pixel": case(lambda x, weight: F.group_norm(x, 2, weight), given(5, 16), leaf(16)),
    "batch norm of data": case(
        lambda x, weight: F.batch_norm(x, None, None, weight, training=True), given(5, 16, 4), leaf(16)
    ),
    "convolution of data": case(F.conv1d, given(5, 16, 9), leaf(8, 16, 3)),
    "rms norm of data": case(lambda x, weight: F.rms_norm(x, (16,), weight), given(5, 16), leaf(16)),
    "prelu of data": case(F.prelu, given(5, 16, 4), leaf(16)),
    "linear of data": case(F.linear, given(5, 16), leaf(8, 16), leaf(8)),
    "bilinear of data": case(F.bilinear, given(5, 16), given(5, 8), leaf(4, 16, 8)),
    "attention to data": case(
        lambda q, k: F.scaled_dot_product_attention(q, k, k), leaf(2, 4, 8, 16), given(2, 4, 8, 16)
    ),
    "instance norm of data": case(lambda x, weight: F.instance_norm(x, weight=weight), given(5, 16, 9), leaf(16)),
    "weight norm of data": case(lambda g, v: torch._weight_norm(v, g, 0), leaf(8, 1), given(8, 16)),
    "distances to data": case(torch.cdist, leaf(5, 16), given(7, 16)),
    "squared error of data": case(lambda x, y: F.mse_loss(y, x), given(5, 16), leaf(5, 16)),
    **{
        f"batch norm, {layout}, {dtype}, {training=}, {is_affine=}": _batch_norm(
            layout, dtype, training=training, is_affine=is_affine
        )
        for layout in _NORMALIZED
        for dtype in (torch.float32, HALF, torch.float16)
        for training in (True, False)
        for is_affine in (True, False)
    },
    "dropout": case(lambda x: F.dropout(x, 0.1), leaf(100, 1000)),
    "dropout noncontig": case(lambda x: F.dropout(x.t(), 0.1), leaf(100, 1000)),
    "flash dropout": case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
        *(leaf(2, 3, 128, 64, dtype=HALF) for _ in "qkv"),
    ),
    "eff dropout": case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1), *(leaf(2, 3, 128, 64) for _ in "qkv")
    ),
    "softmax last fp32 of bf16 sliced": case(
        lambda x: F.softmax(x[..., :40], -1, dtype=torch.float32), leaf(4, 6, 50, 70, dtype=HALF)
    ),
    "conv1d": case(lambda x, w, b: F.conv1d(x, w, b, padding=1), leaf(4, 32, 500), leaf(64, 32, 3), leaf(64)),
    "conv1d depthwise": case(
        lambda x, w, b: F.conv1d(x, w, b, padding=1, groups=32), leaf(4, 32, 500), leaf(32, 1, 3), leaf(32)
    ),
    "conv1d transposed in": case(
        lambda x, w, b: F.conv1d(x.transpose(1, 2), w, b, padding=1), leaf(4, 500, 32), leaf(64, 32, 3), leaf(64)
    ),
    "conv1d depthwise tr": case(
        lambda x, w, b: F.conv1d(x.transpose(1, 2), w, b, padding=1, groups=32),
        leaf(4, 500, 32),
        leaf(32, 1, 3),
        leaf(32),
    ),
    "conv1d depthwise tr bf16": case(
        lambda x, w, b: F.conv1d(x.transpose(1, 2), w, b, padding=1, groups=32),
        leaf(4, 500, 32, dtype=HALF),
        leaf(32, 1, 3, dtype=HALF),
        leaf(32, dtype=HALF),
    ),
    "conv2d depthwise": case(lambda x, w: F.conv2d(x, w, padding=1, groups=32), leaf(4, 32, 50, 50), leaf(32, 1, 3, 3)),
    "conv2d depthwise cl": case(
        lambda x, w: F.conv2d(x.contiguous(memory_format=torch.channels_last), w, padding=1, groups=32),
        leaf(4, 32, 50, 50),
        leaf(32, 1, 3, 3),
    ),
    "conv2d nograd in": case(
        lambda x, w, b: F.conv2d(x, w, b, padding=1), given(4, 32, 50, 50), leaf(64, 32, 3, 3), leaf(64)
    ),
    "conv2d grad nc": case(
        lambda x, w, b: F.conv2d(x, w, b, padding=1).transpose(2, 3), leaf(4, 32, 50, 50), leaf(64, 32, 3, 3), leaf(64)
    ),
    "conv transpose": case(
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2), leaf(4, 32, 50, 50), leaf(32, 16, 2, 2), leaf(16)
    ),
    "conv3d": case(lambda x, w, b: F.conv3d(x, w, b, padding=1), leaf(2, 8, 10, 20, 20), leaf(4, 8, 3, 3, 3), leaf(4)),
    "unfold": case(lambda x: F.unfold(x, (9, 1), padding=(4, 0)), leaf(2, 32, 512, 1)),
    "unfold tr": case(lambda x: F.unfold(x.transpose(1, 2)[..., None], (9, 1), padding=(4, 0)), leaf(2, 512, 32)),
    "unfold grad nc": case(lambda x: F.unfold(x, (9, 1), padding=(4, 0)).transpose(1, 2), leaf(2, 32, 512, 1)),
    "fold": case(lambda x: F.fold(x, (64, 64), (2, 2), stride=2), leaf(2, 32 * 4, 1024)),
    "layernorm": case(lambda x, w, b: F.layer_norm(x, (100,), w, b), leaf(1000, 100), leaf(100), leaf(100)),
    "layernorm tr": case(
        lambda x, w, b: F.layer_norm(x.transpose(0, 1), (100,), w, b), leaf(10, 1000, 100), leaf(100), leaf(100)
    ),
    "layernorm grad nc": case(
        lambda x, w, b: F.layer_norm(x, (100,), w, b).transpose(0, 1), leaf(10, 1000, 100), leaf(100), leaf(100)
    ),
    "rms_norm": case(lambda x, w: F.rms_norm(x, (100,), w), leaf(1000, 100), leaf(100)),
    "group_norm": case(lambda x, w, b: F.group_norm(x, 4, w, b), leaf(10, 16, 20, 20), leaf(16), leaf(16)),
    "group_norm cl": case(
        lambda x, w, b: F.group_norm(x.contiguous(memory_format=torch.channels_last), 4, w, b),
        leaf(10, 16, 20, 20),
        leaf(16),
        leaf(16),
    ),
    "instance_norm": case(F.instance_norm, leaf(10, 16, 20, 20)),
    "batch_norm": case(
        lambda x, w, b: F.batch_norm(x, zeros(16), ones(16), w, b, training=True),
        leaf(10, 16, 20, 20),
        leaf(16),
        leaf(16),
    ),
    "batch_norm eval": case(
        lambda x, w, b: F.batch_norm(x, zeros(16), ones(16), w, b, training=False),
        leaf(10, 16, 20, 20),
        leaf(16),
        leaf(16),
    ),
    "batch_norm 1d": case(
        lambda x, w, b: F.batch_norm(x, zeros(16), ones(16), w, b, training=True), leaf(1000, 16), leaf(16), leaf(16)
    ),
    "max_pool": case(lambda x: F.max_pool2d(x, 2), leaf(10, 16, 20, 20)),
    "avg_pool": case(lambda x: F.avg_pool2d(x, 2), leaf(10, 16, 20, 20)),
    "adaptive_avg": case(lambda x: F.adaptive_avg_pool2d(x, (3, 3)), leaf(10, 16, 20, 20)),
    "adaptive_max": case(lambda x: F.adaptive_max_pool2d(x, (3, 3)), leaf(10, 16, 20, 20)),
    "adaptive_avg1d": case(lambda x: F.adaptive_avg_pool1d(x, 3), leaf(10, 16, 20)),
    "interp nearest": case(lambda x: F.interpolate(x, scale_factor=2), leaf(10, 16, 20, 20)),
    "interp bilinear": case(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), leaf(10, 16, 20, 20)),
    "interp bicubic": case(lambda x: F.interpolate(x, size=(33, 33), mode="bicubic"), leaf(10, 16, 20, 20)),
    "grid_sample": case(F.grid_sample, leaf(10, 16, 20, 20), leaf(10, 20, 20, 2)),
    "pad reflect": case(lambda x: F.pad(x, (1, 2, 3, 4), mode="reflect"), leaf(10, 16, 20, 20)),
    "pad const": case(lambda x: F.pad(x, (1, 2, 3, 4)), leaf(10, 16, 20, 20)),
    "pad circular": case(lambda x: F.pad(x, (1, 2, 3, 4), mode="circular"), leaf(10, 16, 20, 20)),
    "bilinear": case(F.bilinear, leaf(40, 8), leaf(40, 9), leaf(5, 8, 9)),
    "gelu": case(F.gelu, leaf(1000, 100)),
    "glu": case(F.glu, leaf(1000, 100)),
    "prelu": case(F.prelu, leaf(10, 16, 100), leaf(16)),
    "rrelu": case(lambda x: F.rrelu(x, training=True), leaf(10, 16, 100)),
    "hardswish": case(F.hardswish, leaf(1000, 100)),
    "logsigmoid": case(F.logsigmoid, leaf(1000, 100)),
    "softplus": case(F.softplus, leaf(1000, 100)),
    "pixel_shuffle": case(lambda x: F.pixel_shuffle(x, 2), leaf(4, 16, 20, 20)),
    "linear 3d bias": case(F.linear, leaf(4, 100, 30), leaf(20, 30), leaf(20)),
    "linear tr bias": case(lambda x, w, b: F.linear(x.transpose(0, 1), w, b), leaf(4, 100, 30), leaf(20, 30), leaf(20)),
    "upsample3d": case(lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), leaf(2, 4, 6, 6, 6)),
    **{
        f"{function.__name__} over {dim}, {layout}": _softmax(function, dim, layout)
        for function in (F.softmax, F.log_softmax)
        for dim in (1, -1)
        for layout in _LAYOUTS
    },
}
