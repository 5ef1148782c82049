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


def _copies(*tensors: object) -> tuple[int, ...]:
    """Bytes of contiguous copies of those that are not."""
    given = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return tuple(tensor.numel() * tensor.element_size() for tensor in given if not tensor.is_contiguous())


def _softmax(call: Call) -> Temporaries:
    """Contiguous copies of what is not. Source: `host_softmax`, SoftMax.cu."""
    return Temporaries(after=_copies(*call.args))


def _softmax_backward(call: Call) -> Temporaries:
    """The product of gradient and output, and copies. Source: `softmax_backward_cuda_out`, SoftMax.cu."""
    gradient, output = call.args[:2]
    product = gradient.numel() * max(gradient.element_size(), output.element_size())
    return Temporaries(after=(product, *_copies(gradient, output)))


def _mask_first(_: Call) -> Temporaries:
    """Source: `dropout_cuda`, Dropout.cu."""
    return Temporaries(order=[1, 0])


def _workspace_first(_: Call) -> Temporaries:
    return Temporaries(order=[2, 0, 1])


def _gru_workspace_first(_: Call) -> Temporaries:
    return Temporaries(order=[1, 0])


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {
    **dict.fromkeys(("_softmax", "_log_softmax", "_log_softmax_backward_data"), _softmax),
    "_softmax_backward_data": _softmax_backward,
    "native_dropout": _mask_first,
    "_thnn_fused_lstm_cell": _workspace_first,
    "_thnn_fused_gru_cell": _gru_workspace_first,
}
