"""The losses of classes, by row and by pixel, read only what is contiguous; the weight of all pixels comes first.

Source: NLLLoss.cu and NLLLoss2d.cu, torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.tracing.taking import Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from oomdoctor.tracing.taking import Call


def _rows(call: Call) -> Temporaries:
    return Temporaries(after=_copies(*call.args[:3]))


def _rows_backward(call: Call) -> Temporaries:
    return Temporaries(after=_copies(*call.args[1:4]))


def _pixels(call: Call) -> Temporaries:
    _, target, weight, reduction = call.args[:4]
    return Temporaries(after=_copies(weight, target) if reduction else (), order=[1, 0])


def _pixels_backward(call: Call) -> Temporaries:
    return Temporaries(after=_copies(*call.args[2:4]))


def _copies(*given: torch.Tensor | None) -> tuple[int, ...]:
    """Bytes of contiguous copies of those that are not."""
    return tuple(t.numel() * t.element_size() for t in given if t is not None and not t.is_contiguous())


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {
    "nll_loss_forward": _rows,
    "nll_loss_backward": _rows_backward,
    "nll_loss2d_forward": _pixels,
    "nll_loss2d_backward": _pixels_backward,
}
