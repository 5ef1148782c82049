"""The loss of classes by row reads only what is contiguous.

Source: `nll_loss_forward_out_cuda_template` and `nll_loss_backward_out_cuda_template`, NLLLoss.cu; torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.tracing.taking import Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from oomdoctor.tracing.taking import Call


def _forward(call: Call) -> Temporaries:
    return _copies(*call.args[:3])


def _backward(call: Call) -> Temporaries:
    return _copies(*call.args[1:4])


def _copies(*given: torch.Tensor | None) -> Temporaries:
    return Temporaries(
        after=tuple(t.numel() * t.element_size() for t in given if t is not None and not t.is_contiguous())
    )


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {
    "nll_loss_forward": _forward,
    "nll_loss_backward": _backward,
}
