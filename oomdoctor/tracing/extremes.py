"""The largest and the least of all, whose gradient goes to every place that has it.

Source: `evenly_distribute_backward`, FunctionsManual.cpp, which asks of a tensor whether it is on CUDA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.tracing.private import below_autograd

if TYPE_CHECKING:
    from collections.abc import Callable

_aten: Final[Any] = torch.ops.aten


def extreme_roads() -> dict[str, Callable[..., Any]]:
    """Functions above autograd, by the operator's name."""
    return {"max": _largest, "min": _least}


def _largest(x: torch.Tensor) -> Any:  # noqa: ANN401 - a tensor
    return _Extreme.apply(x, _aten.max.default)


def _least(x: torch.Tensor) -> Any:  # noqa: ANN401
    return _Extreme.apply(x, _aten.min.default)


class _Extreme(torch.autograd.Function):
    """One of them, below autograd, with CUDA's gradient."""

    @staticmethod
    def forward(x: torch.Tensor, operator: Any) -> Any:  # noqa: ANN401 - an operator
        """The number."""
        with below_autograd():
            return operator(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:  # noqa: ANN401 - PyTorch's signature
        """Keep what the gradient needs."""
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        """Shared among the places that are equal to it, or that are no numbers if it is none."""
        x, number = ctx.saved_tensors
        are_none, is_none = x.isnan(), number.isnan()
        mask = (x == number).logical_or_(are_none.logical_and_(is_none))
        places = mask.sum()
        return mask * (gradient / places), None
