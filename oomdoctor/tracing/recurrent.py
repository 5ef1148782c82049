"""Recurrent networks as cuDNN's are done: one buffer for all weights, a reserve space between forward and backward.

Source: RNN.cpp of cuDNN (`_cudnn_rnn`, `_cudnn_rnn_backward`, `_cudnn_rnn_flatten_weight`), torch 2.6 to 2.15. cuDNN
publishes no sizes: reserve space and workspace are those of the null GPU (`cudnn_rnn.c`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from oomdoctor.tracing.private import operator_named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_GATES: Final = {0: 1, 1: 1, 2: 4, 3: 3}
_KEPT_A_LAYER: Final = {0: 1, 1: 1, 2: 5, 3: 6}
"""By cuDNN's number of the cell: ReLU, tanh, LSTM, GRU."""
_PADDED: Final = 3
"""Dimensions of a batch of sequences of one length; packed ones have one less."""


class _Forward(NamedTuple):
    """Arguments of `_cudnn_rnn`."""

    x: torch.Tensor
    weight: list[torch.Tensor]
    weight_stride0: int
    weight_buf: torch.Tensor | None
    hx: torch.Tensor
    cx: torch.Tensor | None
    mode: int
    hidden_size: int
    proj_size: int
    num_layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool
    batch_sizes: Sequence[int]
    dropout_state: torch.Tensor | None


class _Backward(NamedTuple):
    """Arguments of `_cudnn_rnn_backward`."""

    x: torch.Tensor
    weight: list[torch.Tensor]
    weight_stride0: int
    weight_buf: torch.Tensor
    hx: torch.Tensor
    cx: torch.Tensor | None
    output: torch.Tensor
    grad_output: torch.Tensor | None
    grad_hy: torch.Tensor | None
    grad_cy: torch.Tensor | None
    mode: int
    hidden_size: int
    proj_size: int
    num_layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool
    batch_sizes: Sequence[int]
    dropout_state: torch.Tensor | None
    reserve: torch.Tensor
    output_mask: Sequence[bool]


def recurrent_kernels() -> dict[object, Callable[..., Any]]:
    """Kernels by operator."""
    named: dict[str, Callable[..., Any]] = {
        "_cudnn_rnn": _forward,
        "_cudnn_rnn_backward": _backward,
        "_cudnn_rnn_flatten_weight": _flatten,
        "_thnn_fused_gru_cell": _fused_gru,
        "_thnn_fused_gru_cell_backward": _fused_gru_backward,
    }
    return {operator_named(name): kernel for name, kernel in named.items()}


def parts(whole: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The buffer cut into what each weight is."""
    found, start = [], 0
    for weight in like:
        found.append(whole[start : start + weight.numel()].view(weight.shape))
        start += weight.numel()
    return found


def whole_of(weights: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """A buffer for all weights."""
    return torch.zeros(sum(weight.numel() for weight in weights), dtype=dtype, device=weights[0].device)


def _forward(*args: Any) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - a kernel's arguments
    call = _Forward(*args)
    buffer = whole_of(call.weight, call.weight[0].dtype) if call.weight_buf is None else call.weight_buf
    x = _by_time(call.x, call).contiguous()
    hx, cx = call.hx.contiguous(), None if call.cx is None else call.cx.contiguous()
    output = x.new_empty(*x.shape[:-1], _state_size(call) * (1 + call.bidirectional))
    hy = torch.empty_like(hx)
    cy = x.new_empty(0) if cx is None else torch.empty_like(cx)
    workspace = _bytes(x, _workspace_elements(call, x))
    reserve = _bytes(x, _reserve_elements(call, x) if call.train else 0)
    del workspace
    return _by_time(output, call), hy, cy, reserve, buffer


def _backward(*args: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a kernel's arguments
    call = _Backward(*args)
    grad_output = torch.zeros_like(call.output) if call.grad_output is None else call.grad_output
    absent = [
        torch.zeros_like(state)
        for state, gradient in ((call.hx, call.grad_hy), (call.cx, call.grad_cy))
        if state is not None and gradient is None
    ]
    copies = [_by_time(tensor, call).contiguous() for tensor in (call.x, grad_output, call.output)]
    dx, dhx = torch.empty_like(copies[0]), torch.empty_like(call.hx)
    dcx = None if call.cx is None else torch.empty_like(call.cx)
    elements = _workspace_elements(call, copies[0])
    _bytes(call.x, elements)
    copies.clear()
    weights = _weight_gradients(call, elements) if call.output_mask[3] else []
    del absent
    return _by_time(dx, call), dhx, dcx, weights


def _weight_gradients(call: _Backward, elements: int) -> list[torch.Tensor]:
    copy = _by_time(call.x, call).contiguous()
    whole = torch.zeros_like(call.weight_buf)
    _bytes(copy, elements)
    return parts(whole, call.weight)


def _by_time(tensor: torch.Tensor, call: _Forward | _Backward) -> torch.Tensor:
    """The tensor with its first two dimensions turned, where the batch comes first."""
    return tensor.transpose(0, 1) if call.batch_first and not call.batch_sizes else tensor


def _state_size(call: _Forward | _Backward) -> int:
    return call.proj_size or call.hidden_size


def _reserve_elements(call: _Forward, x: torch.Tensor) -> int:
    """What forward leaves for backward: some of every step, and the output of every layer but the last."""
    steps = x.shape[0] * x.shape[1] if x.dim() == _PADDED else x.shape[0]
    kept = call.num_layers * _KEPT_A_LAYER[call.mode] * call.hidden_size
    return steps * (1 + call.bidirectional) * (kept + (call.num_layers - 1) * _state_size(call))


def _workspace_elements(call: _Forward | _Backward, x: torch.Tensor) -> int:
    """What a call takes: a copy of the matrices, and a few states of one step."""
    directions, gates, state = 1 + call.bidirectional, _GATES[call.mode], _state_size(call)
    batch = x.shape[1] if x.dim() == _PADDED else call.batch_sizes[0]
    matrices = 0
    for layer in range(call.num_layers * directions):
        columns = x.shape[-1] if layer < directions else directions * state
        matrices += gates * call.hidden_size * (columns + state) + call.hidden_size * call.proj_size
    return matrices + (3 * gates - 1) * call.num_layers * directions * batch * call.hidden_size


def _bytes(like: torch.Tensor, elements: int) -> torch.Tensor:
    return torch.empty(elements * like.element_size(), dtype=torch.uint8, device=like.device)


def _flatten(weights: Sequence[torch.Tensor], *_: object) -> torch.Tensor:
    """Let all weights lie in one buffer."""
    whole = whole_of(weights, weights[0].dtype)
    for weight, part in zip(weights, parts(whole, weights), strict=True):
        weight.data = part
    return whole


def _fused_gru(_: torch.Tensor, __: torch.Tensor, hx: torch.Tensor, *___: object) -> tuple[torch.Tensor, ...]:
    """Five numbers a unit are kept for backward. PyTorch has no shapes of this for tensors without data."""
    workspace = hx.new_empty(hx.shape[0], hx.shape[1] * 5)
    return torch.empty_like(hx), workspace


def _fused_gru_backward(
    gradient: torch.Tensor, workspace: torch.Tensor, has_bias: bool  # noqa: FBT001 - PyTorch's signature
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    gates = [workspace.new_empty(workspace.shape[0], workspace.shape[1] // 5 * 3) for _ in range(2)]
    grad_hx = torch.empty_like(gradient)
    biases = [gate.sum(0) if has_bias else None for gate in gates]
    return *gates, grad_hx, *biases
