"""Recurrent networks as cuDNN's are done: one buffer for all weights, a reserve space between forward and backward.

Source: RNN.cpp of cuDNN (`_cudnn_rnn`, `_cudnn_rnn_backward`, `_cudnn_rnn_flatten_weight`) and AutocastRNN.cpp, torch
2.6 to 2.15. cuDNN publishes no sizes: reserve space and workspace are those of the null GPU (`cudnn_rnn.c`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.tracing.device import EmulatedDevice

_aten: Any = torch.ops.aten
_MODES: Final = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_LSTM, _GRU = 2, 3
_GATES: Final = {0: 1, 1: 1, 2: 4, 3: 3}
_KEPT_A_LAYER: Final = {0: 1, 1: 1, 2: 5, 3: 6}


@dataclass(frozen=True, slots=True)
class _Net:
    """The shape of a network.

    Attributes:
        mode: The cell, as cuDNN numbers it.
        hidden: Units.
        projection: Units after the projection; 0 without.
        layers: Layers.
        directions: 1 or 2.
    """

    mode: int
    hidden: int
    projection: int
    layers: int
    directions: int

    def reserve_elements(self, steps: int) -> int:
        """What forward leaves for backward of so many steps."""
        kept = self.layers * _KEPT_A_LAYER[self.mode] * self.hidden
        return steps * self.directions * (kept + (self.layers - 1) * (self.projection or self.hidden))

    def workspace_elements(self, inputs: int, batch: int) -> int:
        """What a call takes: a copy of the matrices, and a few states of one step."""
        gates, state, layers = _GATES[self.mode], self.projection or self.hidden, self.layers * self.directions
        matrices = 0
        for layer in range(layers):
            columns = inputs if layer < self.directions else self.directions * state
            matrices += gates * self.hidden * (columns + state) + self.hidden * self.projection
        return matrices + (3 * gates - 1) * layers * batch * self.hidden


def recurrent_composites(device: EmulatedDevice) -> dict[str, Callable[..., Any]]:
    """Functions by the operator's name."""
    found: dict[str, Callable[..., Any]] = {"lstm_cell": _lstm_cell, "gru_cell": _gru_cell}
    for name, mode in _MODES.items():
        found[f"{name}.input"] = _padded(device, mode)
        found[f"{name}.data"] = _packed(device, mode)
    return found


def _padded(device: EmulatedDevice, mode: int) -> Callable[..., Any]:
    def run(x, hidden, params, has_biases, layers, dropout, train, bidirectional, batch_first):  # noqa: ANN001, ANN202, PLR0913
        batch_sizes: list[int] = []
        return _run(device, mode, x, hidden, params, has_biases, layers, dropout, train, bidirectional, batch_first, batch_sizes)

    return run


def _packed(device: EmulatedDevice, mode: int) -> Callable[..., Any]:
    def run(data, batch_sizes, hidden, params, has_biases, layers, dropout, train, bidirectional):  # noqa: ANN001, ANN202, PLR0913
        sizes = batch_sizes.tolist()
        return _run(device, mode, data, hidden, params, has_biases, layers, dropout, train, bidirectional, False, sizes)  # noqa: FBT003

    return run


def _run(device, mode, x, hidden, params, has_biases, layers, dropout, train, bidirectional, batch_first, sizes):  # noqa: ANN001, ANN202, PLR0913
    """`_cudnn_impl`."""
    state, cell = hidden if mode == _LSTM else (hidden, None)
    projected = mode == _LSTM and state.shape[2] != cell.shape[2]
    units = cell.shape[2] if projected else state.shape[2]
    per_layer = (4 if has_biases else 2) + projected
    if train and dropout > 0:
        device.keep_dropout_state()
    params, weights = list(params), _buffer_of(list(params))
    if torch.is_autocast_enabled("cuda") and x.dtype is not torch.float64:
        weights, *params = _Flattened.apply(torch.get_autocast_dtype("cuda"), *params)
        state, cell, x = (None if t is None else t.to(weights.dtype) for t in (state, cell, x))
    with torch.autocast("cuda", enabled=False):
        results = _aten._cudnn_rnn(  # noqa: SLF001
            x, params, per_layer, weights, state, cell, mode, units, state.shape[2] if projected else 0, layers,
            batch_first, dropout, train, bidirectional, sizes, None,
        )  # fmt: skip
    return results[:3] if mode == _LSTM else results[:2]


def _buffer_of(params: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The buffer that all weights lie in, where they do."""
    storages = {param.untyped_storage()._cdata for param in params}  # noqa: SLF001
    if len(storages) != 1:
        return None
    first = params[0].detach()
    return first.as_strided((sum(param.numel() for param in params),), (1,), 0)


class _Flattened(torch.autograd.Function):
    """Weights cast into one new buffer, as `_cudnn_rnn_cast_reflatten` does at every call under autocast."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: ANN401
        ctx.dtype = weights[0].dtype
        whole = torch.zeros(sum(weight.numel() for weight in weights), dtype=dtype, device=weights[0].device)
        ctx.mark_non_differentiable(whole)
        ctx.set_materialize_grads(False)
        return (whole, *_parts(whole, weights))

    @staticmethod
    def backward(ctx: Any, _: None, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        return (None, *(None if gradient is None else gradient.to(ctx.dtype) for gradient in gradients))


def recurrent_kernels() -> dict[object, Callable[..., Any]]:
    """Kernels by operator."""

    def forward(x, weight, stride0, buffer, hx, cx, mode, hidden, projection, layers, batch_first, dropout, train,
                bidirectional, batch_sizes, dropout_state):  # fmt: skip  # noqa: ANN001, ANN202, PLR0913, ARG001
        net = _Net(mode, hidden, projection, layers, 1 + bidirectional)
        if buffer is None:
            buffer = torch.zeros(sum(w.numel() for w in weight), dtype=weight[0].dtype, device=x.device)
        x_by_time = (x.transpose(0, 1) if batch_first and not batch_sizes else x).contiguous()
        hx, cx = hx.contiguous(), None if cx is None else cx.contiguous()
        steps, batch = _steps(x_by_time, batch_sizes)
        output = x_by_time.new_empty(*x_by_time.shape[:-1], (projection or hidden) * net.directions)
        hy = torch.empty_like(hx)
        cy = x.new_empty(0) if cx is None else torch.empty_like(cx)
        workspace = _bytes(x, net.workspace_elements(x.shape[-1], batch))
        reserve = _bytes(x, net.reserve_elements(steps) if train else 0)
        del workspace
        by_batch = output.transpose(0, 1) if batch_first and not batch_sizes else output
        return by_batch, hy, cy, reserve, buffer

    def backward(x, weight, stride0, buffer, hx, cx, output, grad_output, grad_hy, grad_cy, mode, hidden, projection,
                 layers, batch_first, dropout, train, bidirectional, batch_sizes, state, reserve, mask):  # fmt: skip  # noqa: ANN001, ANN202, PLR0913, ARG001
        if grad_output is None:
            grad_output = torch.zeros_like(output)
        grad_hy = torch.zeros_like(hx) if grad_hy is None else grad_hy
        if cx is not None:
            grad_cy = torch.zeros_like(cx) if grad_cy is None else grad_cy
        net = _Net(mode, hidden, projection, layers, 1 + bidirectional)
        turn = batch_first and not batch_sizes
        copies = [(t.transpose(0, 1) if turn else t).contiguous() for t in (x, grad_output, output)]
        _, batch = _steps(copies[0], batch_sizes)
        dx, dhx = torch.empty_like(copies[0]), torch.empty_like(hx)
        dcx = None if cx is None else torch.empty_like(cx)
        elements = net.workspace_elements(x.shape[-1], batch)
        _bytes(x, elements)
        del copies
        weights = _weight_gradients(x, weight, buffer, turn, elements) if mask[3] else []
        return dx.transpose(0, 1) if turn else dx, dhx, dcx, weights

    return {
        _aten._thnn_fused_gru_cell.default: _fused_gru,  # noqa: SLF001
        _aten._thnn_fused_gru_cell_backward.default: _fused_gru_backward,  # noqa: SLF001
        _aten._cudnn_rnn.default: forward,  # noqa: SLF001
        _aten._cudnn_rnn_backward.default: backward,  # noqa: SLF001
        _aten._cudnn_rnn_flatten_weight.default: _flatten,  # noqa: SLF001
    }


def _steps(x: torch.Tensor, batch_sizes: Sequence[int]) -> tuple[int, int]:
    """Steps over all sequences, and how many sequences there are."""
    return (sum(batch_sizes), batch_sizes[0]) if batch_sizes else (x.shape[0] * x.shape[1], x.shape[1])


def _bytes(like: torch.Tensor, elements: int) -> torch.Tensor:
    return torch.empty(elements * like.element_size(), dtype=torch.uint8, device=like.device)


def _weight_gradients(x, weight, buffer, turn, elements):  # noqa: ANN001, ANN202
    copy = (x.transpose(0, 1) if turn else x).contiguous()
    whole = torch.zeros_like(buffer)
    _bytes(x, elements)
    del copy
    return _parts(whole, weight)


def _parts(whole: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The buffer cut into what each weight is."""
    parts, start = [], 0
    for weight in like:
        parts.append(whole[start : start + weight.numel()].view(weight.shape))
        start += weight.numel()
    return parts


def _flatten(weight_arr, *_: object, **__: object) -> torch.Tensor:  # noqa: ANN001
    """Let all weights lie in one buffer."""
    whole = torch.zeros(sum(w.numel() for w in weight_arr), dtype=weight_arr[0].dtype, device=weight_arr[0].device)
    for weight, part in zip(weight_arr, _parts(whole, weight_arr), strict=True):
        weight.data = part
    return whole


def _lstm_cell(x, hx, w_ih, w_hh, b_ih=None, b_hh=None):  # noqa: ANN001, ANN202, PLR0913
    """Fused, where C++ would take it apart for a device it does not know. Source: `LSTMCell`, RNN.cpp."""
    inputs, hidden = _aten.linear(x, w_ih), _aten.linear(hx[0], w_hh)
    return _aten._thnn_fused_lstm_cell(inputs, hidden, hx[1], b_ih, b_hh)[:2]  # noqa: SLF001


def _gru_cell(x, hx, w_ih, w_hh, b_ih=None, b_hh=None):  # noqa: ANN001, ANN202, PLR0913
    inputs, hidden = _aten.linear(x, w_ih), _aten.linear(hx, w_hh)
    return _aten._thnn_fused_gru_cell(inputs, hidden, hx, b_ih, b_hh)[0]  # noqa: SLF001


def _fused_gru(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):  # noqa: ANN001, ANN202, ARG001
    """Five numbers a unit are kept for backward. PyTorch has no shapes of this for tensors without data."""
    workspace = hx.new_empty(hx.shape[0], hx.shape[1] * 5)
    return torch.empty_like(hx), workspace


def _fused_gru_backward(grad_hy, workspace, has_bias):  # noqa: ANN001, ANN202
    gates = [workspace.new_empty(workspace.shape[0], workspace.shape[1] // 5 * 3) for _ in range(2)]
    grad_hx = torch.empty_like(grad_hy)
    biases = [gate.sum(0) for gate in gates] if has_bias else [None, None]
    return *gates, grad_hx, *biases
