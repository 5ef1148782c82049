"""Losses: the order of their results, and contiguous copies.

Source: NLLLoss2d.cu.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.tracing.taking import Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from oomdoctor.tracing.taking import Call


def _copies(*tensors: torch.Tensor | None) -> tuple[int, ...]:
    """Bytes of contiguous copies of those that are not."""
    given = [tensor for tensor in tensors if tensor is not None]
    return tuple(tensor.numel() * tensor.element_size() for tensor in given if not tensor.is_contiguous())


def _nll_2d(call: Call) -> Temporaries:
    """The weight of all comes first."""
    _, target, weight, reduction = call.args[:4]
    return Temporaries(after=_copies(weight, target) if reduction else (), order=[1, 0])


def _nll_2d_backward(call: Call) -> Temporaries:
    return Temporaries(after=_copies(*call.args[2:4]))


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {
    "nll_loss2d_forward": _nll_2d,
    "nll_loss2d_backward": _nll_2d_backward,
}
