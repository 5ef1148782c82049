"""Norms, and fused cells: rows of numbers that a kernel needs between its passes, and the order of its results.

Source: group_norm_kernel.cu and RNN.cu, torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from oomdoctor.tracing.taking import NOTHING, Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.taking import Call

_FLOAT: Final = 4


def _group_norm(call: Call) -> Temporaries:
    _, weight, bias, batch, channels, pixels = call.args[:6]
    if pixels == 1 or (weight is None and bias is None):
        return NOTHING
    return Temporaries(after=(batch * channels * _FLOAT,) * 2)


def _group_norm_backward(call: Call) -> Temporaries:
    weight, (batch, channels, pixels, groups) = call.args[4], call.args[5:9]
    if pixels == 1:
        return NOTHING
    each, grouped = batch * channels * _FLOAT, batch * groups * _FLOAT
    return Temporaries(after=(each, each, grouped, grouped, *(() if weight is None else (each,))))


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
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    **dict.fromkeys(("_softmax", "_log_softmax", "_log_softmax_backward_data"), _softmax),
    "_softmax_backward_data": _softmax_backward,
    "_thnn_fused_lstm_cell": _workspace_first,
    "_thnn_fused_gru_cell": _gru_workspace_first,
}
