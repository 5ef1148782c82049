"""Losses and distances, whose elements are computed before they are reduced.

The losses of classes, by row and by pixel, read only contiguous tensors. Others compute every element before they are
reduced, and some keep that storage for their one number. Gradients of distances are one for each pair, summed.

Source: NLLLoss.cu and NLLLoss2d.cu; `mse_loss_out` and `smooth_l1_loss_out`, BinaryOps.cpp and Loss.cpp; `huber_loss`,
Loss.cpp; `binary_cross_entropy_out_cuda`, Loss.cu; `log_sigmoid_forward_cuda`, Activation.cpp; `ctc_loss_gpu_template`
and `ctc_loss_backward_gpu_template`, LossCTC.cu; `pdist_backward_kernel_impl` and `cdist_backward_kernel_impl`,
DistanceKernel.cu; `_cdist_backward`, Distance.cpp; torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.layouts import copied_bytes
from oomdoctor.engines.trace.op_trace import Temporaries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.engines.trace.op_trace import KernelsByName, OperatorCall, TemporariesByName

_NONE: Final = 0
_MEAN: Final = 1
_LARGE_CTC: Final = 450
"""Size from which the probabilities of all blanks are summed in one operator."""


def _pixels(call: OperatorCall) -> Temporaries:
    _, target, weight, reduction = call.args[:4]
    return Temporaries(after=copied_bytes((weight, target)) if reduction else (), order=[1, 0])


TEMPORARIES: Final[TemporariesByName] = {
    "nll_loss_forward": lambda call: Temporaries(after=copied_bytes(call.args[:3])),
    "nll_loss_backward": lambda call: Temporaries(after=copied_bytes(call.args[1:4])),
    "nll_loss2d_forward": _pixels,
    "nll_loss2d_backward": lambda call: Temporaries(after=copied_bytes(call.args[2:4])),
}


def kernels() -> KernelsByName:
    """Return the kernels of this family."""
    return {
        "mse_loss": _reduced_into_whole,
        "smooth_l1_loss": _reduced_into_whole,
        "smooth_l1_loss_backward.grad_input": _grad_input,
        "huber_loss": _reduced,
        "huber_loss_backward.out": _grad_input,
        "binary_cross_entropy": _bce,
        "log_sigmoid_forward": _log_sigmoid,
        "_ctc_loss": _ctc_loss,
        "_ctc_loss_backward": _ctc_backward,
        "_pdist_backward": _pdist_backward,
        "_cdist_backward": _cdist_backward,
    }


def _reduced_into_whole(x: torch.Tensor, target: torch.Tensor, reduction: int = _MEAN, *_: float) -> torch.Tensor:
    """Allocate the result as large as the losses, and reduce into it."""
    result = x - target
    if reduction != _NONE:
        losses = torch.empty_like(result)
        (torch.mean if reduction == _MEAN else torch.sum)(losses, (), out=result.resize_(()))
    return result


def _reduced(x: torch.Tensor, target: torch.Tensor, reduction: int = _MEAN, *_: float) -> torch.Tensor:
    return _reduce(x - target, reduction)


def _grad_input(*_: object, grad_input: torch.Tensor) -> torch.Tensor:
    """Return the output tensor; PyTorch's kernel for `meta` would make a new one for the half types."""
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
    if reduction == _NONE:
        return losses
    number = _reduce(losses, reduction)
    return losses.resize_(()).copy_(number)


def _reduce(losses: torch.Tensor, reduction: int) -> torch.Tensor:
    if reduction == _NONE:
        return losses
    return losses.mean() if reduction == _MEAN else losses.sum()


def _log_sigmoid(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keep no buffer for the backward: CUDA computes it again."""
    return torch.empty_like(x), x.new_empty(0)


def _ctc_loss(
    log_probs: torch.Tensor,
    _: torch.Tensor,
    input_lengths: Sequence[int],  # noqa: ARG001 - PyTorch's signature
    target_lengths: Sequence[int],
    *__: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate the probabilities of all alignments, for the backward, and then the losses."""
    steps, batch = log_probs.shape[:2]
    lengths = _lengths(batch, log_probs)
    longest = max(target_lengths, default=0)
    alignments = log_probs.new_empty((batch, steps, 2 * longest + 1))
    losses = log_probs.new_empty(batch)
    del lengths
    return losses, alignments


def _ctc_backward(_: torch.Tensor, log_probs: torch.Tensor, *rest: Any) -> torch.Tensor:  # noqa: ANN401 - PyTorch's
    (steps, batch, labels), alignments = log_probs.shape, rest[4]
    held = _lengths(batch, log_probs)
    held.append(torch.empty_like(alignments))
    result = torch.empty_like(log_probs)
    if 2 * steps + 24 * batch // 10 + 2 * labels // 10 > _LARGE_CTC:
        blanks = log_probs.new_empty((batch, steps, alignments.shape[2] // 2 + 1))
        torch.logsumexp(blanks, 2, keepdim=True)
    return result


def _lengths(batch: int, like: torch.Tensor) -> list[torch.Tensor]:
    """Allocate the lengths of inputs and targets and the offsets of the targets, on the device."""
    return [like.new_empty(batch, dtype=torch.int64) for _ in range(3)]


def _pdist_backward(_: torch.Tensor, x: torch.Tensor, *__: object) -> Any:  # noqa: ANN401 - or NotImplemented
    if not x.numel() or len(x) <= 1:
        return NotImplemented
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    pairs = x.new_empty((len(x) - 1, *x.shape))
    return torch.sum(pairs, 0, out=result)


def _cdist_backward(_: torch.Tensor, x: torch.Tensor, other: torch.Tensor, *__: object) -> Any:  # noqa: ANN401
    if not x.numel() or not other.numel():
        return NotImplemented
    batch = torch.broadcast_shapes(x.shape[:-2], other.shape[:-2])  # type: ignore[no-untyped-call]
    result = x.new_empty((*batch, *x.shape[-2:]))
    pairs = x.new_empty((*batch, other.shape[-2], *x.shape[-2:]))
    return torch.sum(pairs, -3, out=result)
