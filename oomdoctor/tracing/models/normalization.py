"""Softmax: copies that a kernel reads, and its product; fused cells: the order of their results.

Source: SoftMax.cu and RNN.cu, torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from oomdoctor.tracing.taking import Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.taking import Call

def _softmax(call: Call) -> Temporaries:
    """Contiguous copies of what is not. Source: `host_softmax`, SoftMax.cu."""
    given = [argument for argument in call.args if isinstance(argument, torch.Tensor)]
    return Temporaries(tuple(t.numel() * t.element_size() for t in given if not t.is_contiguous()))


def _softmax_backward(call: Call) -> Temporaries:
    """The product of gradient and output, too. Source: `softmax_backward_cuda_out`, SoftMax.cu."""
    copies = _softmax(call).before
    gradient, output = call.args[:2]
    return Temporaries(copies, (gradient.numel() * max(gradient.element_size(), output.element_size()),))


def _workspace_first(_: Call) -> Temporaries:
    return Temporaries(order=[2, 0, 1])


def _gru_workspace_first(_: Call) -> Temporaries:
    return Temporaries(order=[1, 0])


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {
    **dict.fromkeys(("_softmax", "_log_softmax", "_log_softmax_backward_data"), _softmax),
    "_softmax_backward_data": _softmax_backward,
    "_thnn_fused_lstm_cell": _workspace_first,
    "_thnn_fused_gru_cell": _gru_workspace_first,
}
