"""Losses: each is computed for every element before it is reduced, and some keep that room for their one number.

Source: `mse_loss_out` and `smooth_l1_loss_out`, BinaryOps.cpp and Loss.cpp; `huber_loss`,
Loss.cpp; `binary_cross_entropy_out_cuda`, Loss.cu; `log_sigmoid_forward_cuda`, Activation.cpp; torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_NONE: Final = 0
_MEAN: Final = 1


def kernels() -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {
        "mse_loss": _reduced_into_whole,
        "smooth_l1_loss": _reduced_into_whole,
        "smooth_l1_loss_backward.grad_input": _written,
        "huber_loss": _reduced,
        "huber_loss_backward.out": _written,
        "binary_cross_entropy": _bce,
        "log_sigmoid_forward": _log_sigmoid,
    }


def _reduced_into_whole(x: torch.Tensor, target: torch.Tensor, reduction: int = _MEAN, *_: float) -> torch.Tensor:
    """The result is made as if it were not to be reduced."""
    result = x - target
    if reduction != _NONE:
        losses = torch.empty_like(result)
        (torch.mean if reduction == _MEAN else torch.sum)(losses, (), out=result.resize_(()))
    return result


def _reduced(x: torch.Tensor, target: torch.Tensor, reduction: int = _MEAN, *_: float) -> torch.Tensor:
    return _reduce(x - target, reduction)


def _written(*_: object, grad_input: torch.Tensor) -> torch.Tensor:
    """What PyTorch tells of it for tensors without data makes a new one of halves."""
    return grad_input


def _bce(
    x: torch.Tensor,
    target: torch.Tensor,  # noqa: ARG001 - PyTorch's signature
    weight: torch.Tensor | None = None,
    reduction: int = _MEAN,
) -> torch.Tensor:
    losses = torch.empty_like(x)
    if weight is not None:
        losses.mul_(weight)
    return _reduced_in_place(losses, reduction)


def _reduced_in_place(losses: torch.Tensor, reduction: int) -> torch.Tensor:
    if reduction == _NONE:
        return losses
    number = _reduce(losses, reduction)
    return losses.resize_(()).copy_(number)


def _reduce(losses: torch.Tensor, reduction: int) -> torch.Tensor:
    if reduction == _NONE:
        return losses
    return losses.mean() if reduction == _MEAN else losses.sum()


def _log_sigmoid(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """CUDA computes again what the host keeps for the backward."""
    return torch.empty_like(x), x.new_empty(0)
