"""Connectionist temporal classification: the probabilities of all alignments, and the lengths on the device.

Source: `ctc_loss_gpu_template` and `ctc_loss_backward_gpu_template`, LossCTC.cu; torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LARGE: Final = 450
"""From here on all blanks' probabilities are summed in one operator."""


def kernels() -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {"_ctc_loss": _loss, "_ctc_loss_backward": _backward}


def _loss(
    log_probs: torch.Tensor,
    _: torch.Tensor,
    input_lengths: Sequence[int],  # noqa: ARG001 - PyTorch's signature
    target_lengths: Sequence[int],
    *__: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses, and what the backward needs, which is there first."""
    steps, batch = log_probs.shape[:2]
    lengths = _lengths(batch, log_probs)
    longest = max(target_lengths, default=0)
    alignments = log_probs.new_empty((batch, steps, 2 * longest + 1))
    losses = log_probs.new_empty(batch)
    del lengths
    return losses, alignments


def _backward(_: torch.Tensor, log_probs: torch.Tensor, *rest: Any) -> torch.Tensor:  # noqa: ANN401 - PyTorch's
    (steps, batch, labels), alignments = log_probs.shape, rest[4]
    held = _lengths(batch, log_probs)
    held.append(torch.empty_like(alignments))
    result = torch.empty_like(log_probs)
    if 2 * steps + 24 * batch // 10 + 2 * labels // 10 > _LARGE:
        blanks = log_probs.new_empty((batch, steps, alignments.shape[2] // 2 + 1))
        torch.logsumexp(blanks, 2, keepdim=True)
    return result


def _lengths(batch: int, like: torch.Tensor) -> list[torch.Tensor]:
    """Of inputs, of targets, and where each target begins."""
    return [like.new_empty(batch, dtype=torch.int64) for _ in range(3)]
