"""Forward-mode differentiation, in which what has no derivative counts as zeros that take no memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody has it

from operator_cases.making import Case, case, given, leaf, ones, zeros

_Layers = Callable[..., torch.Tensor]


def _directional(layers: _Layers) -> _Layers:
    def run(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        value, derivative = torch.func.jvp(lambda at: layers(at, *weights), (x,), (torch.ones_like(x),))
        return (value - derivative.detach()).square().mean()

    return run


def _perceptron(x: torch.Tensor, first: torch.Tensor, bias: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return F.linear(F.gelu(F.linear(x, first, bias)), second)


def _normed(x: torch.Tensor, scale: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return F.linear(F.silu(F.linear(F.layer_norm(x, scale.shape, scale), first)), second)


def _convolved(x: torch.Tensor, first: torch.Tensor, scale: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return F.conv2d(F.silu(F.group_norm(F.conv2d(x, first, padding=1), 4, scale)), second, padding=1)


def _residual(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x + shift + scale * torch.tanh(F.linear(x, weight))


def _attention(x: torch.Tensor, queries: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    query, key, value = F.linear(x, queries).view(4, 64, 3, 4, 16).permute(2, 0, 3, 1, 4)
    mixed = (query @ key.transpose(-1, -2) / 4).softmax(-1) @ value
    return F.linear(mixed.transpose(1, 2).reshape(4, 64, 64), output)


def _gradients(layers: _Layers) -> _Layers:
    def run(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda at: layers(x, at, *weights[1:]).square().mean())(weights[0])

    return run


def _of_each(layers: _Layers) -> _Layers:
    def run(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(lambda at: layers(at, *weights))(x.unsqueeze(0)).mean()

    return run


def _autocast(function: _Layers) -> _Layers:
    def run(*tensors: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return function(*tensors)

    return run


def _of_zeros(function: _Layers) -> _Layers:
    return lambda x: function(torch._efficientzerotensor((64, 64), device="cuda"), x)


CASES: dict[str, Case] = {
    **{
        f"{name} in autocast": case(
            _autocast(transform(_perceptron)), given(256, 64), leaf(256, 64), leaf(256), leaf(64, 256)
        )
        for name, transform in {
            "derivative": _directional,
            "gradient": _gradients,
            "mapped": _of_each,
        }.items()
    },
    "cross entropy on the host in autocast": case(
        _autocast(lambda x: x + F.binary_cross_entropy(torch.full((4,), 0.5), torch.ones(4)).cuda()), given(4)
    ),
    "derivative of a perceptron": case(
        _directional(_perceptron), given(256, 64), leaf(256, 64), leaf(256), leaf(64, 256)
    ),
    "derivative behind layer norm": case(_directional(_normed), given(256, 64), leaf(64), leaf(256, 64), leaf(64, 256)),
    "derivative of convolutions": case(
        _directional(_convolved), given(4, 3, 32, 32), leaf(16, 3, 3, 3), leaf(16), leaf(3, 16, 3, 3)
    ),
    "derivative of a residual": case(_directional(_residual), given(256, 64), leaf(1, 64), leaf(64), leaf(64, 64)),
    "derivative of attention": case(_directional(_attention), given(4, 64, 64), leaf(192, 64), leaf(64, 64)),
    "derivative of an activation": case(_directional(torch.sin), given(256, 64)),
    "jacobian": case(lambda w: torch.func.jacfwd(lambda at: torch.tanh(at @ w))(zeros(16)), given(16, 8)),
    "hessian": case(lambda w: torch.func.hessian(lambda at: torch.tanh(at @ w).sum())(zeros(16)), given(16, 8)),
    **{
        f"zeros {name}": case(_of_zeros(function), given(64, 64))
        for name, function in {
            "added": lambda nothing, x: nothing + x,
            "multiplied": lambda nothing, x: nothing * x,
            "divided": lambda nothing, x: nothing / x,
            "in a product": lambda nothing, x: nothing @ x,
            "through an activation": lambda nothing, _: torch.relu(nothing),
            "joined": lambda nothing, x: torch.cat([nothing, x]),
            "flat": lambda nothing, _: nothing.view(-1).clone(),
            "copied": lambda nothing, x: torch.empty_like(x).copy_(nothing),
            "as half": lambda nothing, _: nothing.to(torch.bfloat16),
            "summed": lambda nothing, _: nothing.sum(),
            "expanded": lambda nothing, x: nothing.expand(4, 64, 64) * x,
            "in place": lambda nothing, _: ones(64, 64).add_(nothing),
            "transposed": lambda nothing, x: nothing.t() + x,
            "alike": lambda nothing, _: torch.zeros_like(nothing),
        }.items()
    },
}
