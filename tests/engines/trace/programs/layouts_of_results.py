"""Print the shapes and the strides of the results of operators on tensors that lie in many ways, as JSON.

Usage: layouts_of_results.py null|CARD
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody has it

_aten = torch.ops.aten
SHAPES = {"pictures": (9, 32, 7, 5), "one pixel": (9, 32, 1, 1), "one channel": (9, 1, 7, 5), "one": (1, 32, 7, 5)}


def suggested(x: torch.Tensor) -> torch.memory_format:
    """The layout of pictures that a tensor has."""
    is_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if is_last else torch.contiguous_format


def gate_gradient(x: torch.Tensor) -> torch.Tensor:
    """The gradient of a gated linear unit."""
    return _aten.glu_backward(x[:, :4], x, 1)


TWO: dict[str, Callable[[Any, Any], Any]] = {
    **{
        name: getattr(_aten, f"{name}_backward")
        for name in ("hardsigmoid", "hardswish", "silu", "gelu", "mish", "sigmoid", "tanh")
    },
    "elu": lambda x, y: _aten.elu_backward(x, 1, 1, 1, is_result=False, self_or_result=y),
    "leaky relu": lambda x, y: _aten.leaky_relu_backward(x, y, 0.1, self_is_result=False),
    "hardtanh": lambda x, y: _aten.hardtanh_backward(x, y, 0, 6),
    "threshold": lambda x, y: _aten.threshold_backward(x, y, 0),
    "softplus": lambda x, y: _aten.softplus_backward(x, y, 1, 20),
    "log sigmoid": lambda x, y: _aten.log_sigmoid_backward(x, y, x),
    "softshrink": lambda x, y: _aten.softshrink_backward(x, y, 0.5),
    "prelu": lambda x, y: _aten._prelu_kernel_backward(x, y, y)[0],
    "dropout": lambda x, y: _aten.native_dropout_backward(x, y > 0, 1.5),
    "squared error": lambda x, y: _aten.mse_loss_backward(x, x, y, 0),
    "smooth error": lambda x, y: _aten.smooth_l1_loss_backward(x, x, y, 0, 1.0),
    "product": torch.mul,
    "choice": lambda x, y: torch.where(x > 0, x, y),
    "product added": lambda x, y: torch.addcmul(x, y, y),
    "mean of two": lambda x, y: torch.lerp(x, y, 0.5),
    "greater": torch.gt,
    "filled": lambda x, y: x.masked_fill(y > 0, 1),
    "joined": lambda x, y: torch.cat([x, y], 1),
}
ONE: dict[str, Callable[[Any], Any]] = {
    **{
        name: getattr(F, name)
        for name in (
            "hardsigmoid", "hardswish", "gelu", "mish", "elu", "softplus", "logsigmoid", "relu6", "silu", "leaky_relu",
            "celu", "hardtanh", "tanhshrink", "softshrink", "dropout", "rrelu",
        )
    },
    "scaled": lambda x: x * 2,
    "exponential": torch.exp,
    "limited": lambda x: x.clamp(0, 1),
    "above": lambda x: x > 0,
    "remaining": lambda x: x % 2,
    "subtracted": lambda x: 1 - x,
    "squared": lambda x: x**2,
    "rounded down": lambda x: x // 2,
    "halved": lambda x: x.half(),
    "softmax": lambda x: x.softmax(1),
    "group norm": lambda x: F.group_norm(x, 1),
    "upsampled": lambda x: F.interpolate(x, scale_factor=2),
    "without channels": lambda x: F.dropout2d(x, 0.1),
    "pixels as channels": lambda x: F.pixel_unshuffle(x.new_zeros(2, 8, 6, 4).to(memory_format=suggested(x)), 2),
    "channels as pixels": lambda x: F.pixel_shuffle(x.new_zeros(2, 8, 6, 4).to(memory_format=suggested(x)), 2),
    "gradient of gates": lambda x: gate_gradient(x.new_zeros(2, 8, 6, 4).to(memory_format=suggested(x))),
    "pooled": lambda x: F.max_pool2d(x, 1),
    "rows": lambda x: x[torch.zeros(2, dtype=torch.int64, device=x.device)],
}  # fmt: skip
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "repeated": lambda x: x[..., :1, :1].expand(x.shape),
    "one number": lambda x: x[:1, :1, :1, :1].expand(x.shape),
}


def strides() -> dict[str, list[int]]:
    """The strides of each operator's result, by operator, shape and layouts."""
    found = {}
    for shape, (one, lay), (other, lay_other) in product(SHAPES, LAYOUTS.items(), LAYOUTS.items()):
        x, y = (each(torch.zeros(SHAPES[shape], device="cuda")) for each in (lay, lay_other))
        for name, function in TWO.items():
            found[f"{name}, {shape}, {one} and {other}"] = [*function(x, y).stride()]
        if lay is lay_other:
            for name, alone in ONE.items():
                found[f"{name}, {shape}, {one}"] = [*_first(alone, x).stride()]
    return found


def _first(function: Callable[[Any], Any], x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = function(x, training=True) if function is F.rrelu else function(x)
    return result


if __name__ == "__main__":
    _, engine = sys.argv
    if engine == "null":
        json.dump(strides(), sys.stdout)
    else:
        from oomdoctor.engines.catalogue import find_card
        from oomdoctor.engines.trace.emulation import emulated_cuda

        with emulated_cuda(find_card(engine)):
            json.dump(strides(), sys.stdout)
