"""CUDA's road for recurrent networks: cuDNN's for layers, fused kernels for cells.

Source: `_cudnn_impl`, `LSTMCell` and `GRUCell`, RNN.cpp; AutocastRNN.cpp, torch 2.6 to 2.15.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from oomdoctor.tracing.recurrent import parts, whole_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.tracing.device import EmulatedDevice

_aten: Any = torch.ops.aten
_MODES: Final = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_LSTM: Final = 2


class _Settings(NamedTuple):
    """Arguments of a network's operator after its tensors."""

    has_biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool = False


class _Inputs(NamedTuple):
    """A network's tensors, as cuDNN takes them."""

    x: torch.Tensor
    state: torch.Tensor
    cell: torch.Tensor | None
    params: list[torch.Tensor]
    weights: torch.Tensor | None


def recurrent_roads(device: EmulatedDevice) -> dict[str, Callable[..., Any]]:
    """Functions by the operator's name."""
    found: dict[str, Callable[..., Any]] = {"lstm_cell": _lstm_cell, "gru_cell": _gru_cell}
    for name, mode in _MODES.items():
        found[f"{name}.input"] = partial(_padded, device, mode)
        found[f"{name}.data"] = partial(_packed, device, mode)
    return found


def _padded(device: EmulatedDevice, mode: int, x: torch.Tensor, *rest: Any) -> Any:  # noqa: ANN401 - as the operator
    return _run(device, mode, x, [], *rest)


def _packed(device: EmulatedDevice, mode: int, x: torch.Tensor, sizes: torch.Tensor, *rest: Any) -> Any:  # noqa: ANN401
    return _run(device, mode, x, sizes.tolist(), *rest)


def _run(device: EmulatedDevice, mode: int, x: torch.Tensor, batch_sizes: list[int], *rest: Any) -> Any:  # noqa: ANN401
    hidden, params, settings = rest[0], list(rest[1]), _Settings(*rest[2:])
    state, cell = hidden if mode == _LSTM else (hidden, None)
    units = state.shape[2] if cell is None else cell.shape[2]
    projection = state.shape[2] if state.shape[2] != units else 0
    if settings.train and settings.dropout > 0:
        device.keep_dropout_state()
    given = _cast(_Inputs(x, state, cell, params, _buffer_of(params)))
    with torch.autocast("cuda", enabled=False):
        results = _aten._cudnn_rnn(  # noqa: SLF001 - as C++ does
            given.x, given.params, (4 if settings.has_biases else 2) + bool(projection), given.weights, given.state,
            given.cell, mode, units, projection, settings.layers, settings.batch_first, settings.dropout,
            settings.train, settings.bidirectional, batch_sizes, None,
        )  # fmt: skip
    return results[: 3 if mode == _LSTM else 2]


def _cast(given: _Inputs) -> _Inputs:
    """Under autocast, all in fp16, whatever its type, and the weights in a new buffer at every call; the last first."""
    if not torch.is_autocast_enabled("cuda") or given.x.dtype is torch.float64:
        return given
    weights, params = _flattened(given.params, torch.float16)
    cell = None if given.cell is None else given.cell.to(weights.dtype)
    state = given.state.to(weights.dtype)
    return _Inputs(given.x.to(weights.dtype), state, cell, params, weights)


def _buffer_of(params: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The buffer that all weights lie in, where they do."""
    if len({param.untyped_storage()._cdata for param in params}) != 1:  # noqa: SLF001 - the identity of a storage
        return None
    return params[0].detach().as_strided((sum(param.numel() for param in params),), (1,), 0)


def _flattened(weights: Sequence[torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Weights cast into one new buffer, as `_cudnn_rnn_cast_reflatten` does: the buffer, and they in it."""
    whole = whole_of(weights, dtype)
    return whole, [_Cast.apply(*pair) for pair in zip(weights, parts(whole, weights), strict=True)]


class _Cast(torch.autograd.Function):
    """A weight's copy in the buffer; each gradient is cast back by itself."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        ctx.dtype = weight.dtype
        return copy

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        return gradient.to(ctx.dtype), None


def _lstm_cell(x: torch.Tensor, hx: Sequence[torch.Tensor], *rest: Any) -> Any:  # noqa: ANN401 - as the operator
    inputs, hidden = _aten.linear(x, rest[0]), _aten.linear(hx[0], rest[1])
    return _aten._thnn_fused_lstm_cell(inputs, hidden, hx[1], *rest[2:])[:2]  # noqa: SLF001


def _gru_cell(x: torch.Tensor, hx: torch.Tensor, *rest: Any) -> Any:  # noqa: ANN401
    inputs, hidden = _aten.linear(x, rest[0]), _aten.linear(hx, rest[1])
    return _aten._thnn_fused_gru_cell(inputs, hidden, hx, *rest[2:])[0]  # noqa: SLF001
