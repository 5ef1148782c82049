"""Recurrent networks through cuDNN: one buffer for all weights, and a reserve space between forward and backward.

cuDNN publishes no sizes: reserve space and workspace are those of the null GPU, measured on an H200 (`cudnn_rnn.c`).
Cells run by fused kernels.

Source: `_cudnn_rnn`, `_cudnn_rnn_backward`, `_cudnn_rnn_flatten_weight` and `_cudnn_impl`, RNN.cpp of cuDNN; `LSTMCell`
and `GRUCell`, RNN.cpp; AutocastRNN.cpp; torch 2.6 to 2.15.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.engines.trace.op_trace import KernelsByName

_aten: Any = torch.ops.aten
_MODES: Final = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""cuDNN's number of each cell."""
_LSTM: Final = 2
_GATES: Final = {0: 1, 1: 1, 2: 4, 3: 3}
_SAVED_A_LAYER: Final = {0: 1, 1: 1, 2: 5, 3: 6}
"""Gates of a cell, and hidden states that a layer saves for each step, by cuDNN's number of the cell."""
_HEADER_BYTES: Final = 256
_PRODUCT_BYTES: Final = 8 << 20
_UNIT_BYTES: Final = 32
_MATRICES: Final = 2
_PADDED: Final = 3
"""Dimensions of a batch of sequences of one length; packed ones have one less."""


class _WorkspaceSizes(NamedTuple):
    """Values of a step in a direction: of the hidden size, of the largest input, of the state; more in small layers."""

    one_way: int
    both_ways: int
    input: int
    state: int
    more_in_small: int
    small: int


_PLAIN: Final = _WorkspaceSizes(5, 5, 1, 6, 10, 256)
_WORKSPACE_SIZES: Final = {
    0: _PLAIN, 1: _PLAIN, 2: _WorkspaceSizes(5, 6, 1, 12, 10, 100), 3: _WorkspaceSizes(4, 6, 2, 6, 6, 100),
}  # fmt: skip


class _Forward(NamedTuple):
    """The tensors of `_cudnn_rnn`, its first arguments."""

    x: torch.Tensor
    weight: list[torch.Tensor]
    weight_stride0: int
    weight_buf: torch.Tensor | None
    hx: torch.Tensor
    cx: torch.Tensor | None


class _Backward(NamedTuple):
    """The tensors of `_cudnn_rnn_backward`, its first arguments."""

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


class _Settings(NamedTuple):
    """The arguments of both after their tensors."""

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

    @property
    def state_size(self) -> int:
        """Elements of a hidden state."""
        return self.proj_size or self.hidden_size


def kernels() -> KernelsByName:
    """Return the kernels of this family."""
    return {
        "_cudnn_rnn": _forward,
        "_cudnn_rnn_backward": _backward,
        "_cudnn_rnn_flatten_weight": _flatten,
        "_thnn_fused_gru_cell": _fused_gru,
        "_thnn_fused_gru_cell_backward": _fused_gru_backward,
    }


def _split_buffer(whole: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the views of a buffer that have the shapes of the weights."""
    found, start = [], 0
    for weight in like:
        found.append(whole[start : start + weight.numel()].view(weight.shape))
        start += weight.numel()
    return found


def _new_buffer(weights: Sequence[torch.Tensor], weights_per_layer: int, dtype: torch.dtype) -> torch.Tensor:
    """Allocate a buffer for all weights."""
    return torch.zeros(_buffer_numbers(weights, weights_per_layer), dtype=dtype, device=weights[0].device)


def _buffer_numbers(weights: Sequence[torch.Tensor], weights_per_layer: int) -> int:
    """Return the numbers of a buffer: cuDNN's has two biases for each gate, also where the network has none."""
    first = weights[::weights_per_layer]
    biases = 0 if _has_biases(weights_per_layer) else sum(2 * weight.shape[0] for weight in first)
    return sum(weight.numel() for weight in weights) + biases


def _has_biases(weights_per_layer: int) -> bool:
    """Return whether layers have biases: more weights than two matrices and a projection."""
    return weights_per_layer > _MATRICES + 1


def _forward(*args: Any) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - a kernel's arguments
    call, settings = _Forward(*args[: len(_Forward._fields)]), _Settings(*args[len(_Forward._fields) :])
    x = _time_first(call.x, settings).contiguous()
    hx, cx = call.hx.contiguous(), None if call.cx is None else call.cx.contiguous()
    output = x.new_empty(*x.shape[:-1], settings.state_size * (1 + settings.bidirectional))
    hy = torch.empty_like(hx)
    cy = x.new_empty(0) if cx is None else torch.empty_like(cx)
    buffer = call.weight_buf
    if buffer is None:
        buffer = _new_buffer(call.weight, call.weight_stride0, call.weight[0].dtype)
    workspace = _byte_tensor(x, _workspace_bytes(settings, x))
    reserve = _byte_tensor(x, _reserve_bytes(settings, x) if settings.train else 0)
    del workspace
    return _time_first(output, settings), hy, cy, reserve, buffer


def _backward(*args: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a kernel's arguments
    tensors = len(_Backward._fields)
    call, settings, mask = _Backward(*args[:tensors]), _Settings(*args[tensors:-2]), args[-1]
    grad_output = torch.zeros_like(call.output) if call.grad_output is None else call.grad_output
    absent = [
        torch.zeros_like(state)
        for state, gradient in ((call.hx, call.grad_hy), (call.cx, call.grad_cy))
        if state is not None and gradient is None
    ]
    copies = [_time_first(tensor, settings).contiguous() for tensor in (call.x, grad_output, call.output)]
    dx, dhx = torch.empty_like(copies[0]), torch.empty_like(call.hx)
    dcx = None if call.cx is None else torch.empty_like(call.cx)
    workspace = _workspace_bytes(settings, copies[0])
    _byte_tensor(call.x, workspace)
    copies.clear()
    weights = _weight_gradients(call, settings, workspace) if mask[3] else []
    del absent
    return _time_first(dx, settings), dhx, dcx, weights


def _weight_gradients(call: _Backward, settings: _Settings, workspace: int) -> list[torch.Tensor]:
    copy = _time_first(call.x, settings).contiguous()
    whole = torch.zeros_like(call.weight_buf)
    _held = _byte_tensor(copy, workspace)
    if _has_biases(call.weight_stride0):
        return _split_buffer(whole, call.weight)
    return [torch.empty_like(weight) for weight in call.weight]  # what is not in the order of the buffer is copied


def _time_first(tensor: torch.Tensor, settings: _Settings) -> torch.Tensor:
    """Swap the first two dimensions where the batch comes first."""
    return tensor.transpose(0, 1) if settings.batch_first and not settings.batch_sizes else tensor


def _reserve_bytes(settings: _Settings, x: torch.Tensor) -> int:
    """Return the bytes kept for backward: some of every step, what lies between the layers, and dropout's masks."""
    directions, hidden, element = 1 + settings.bidirectional, settings.hidden_size, x.element_size()
    saved = 6 * hidden + settings.proj_size if settings.proj_size else _SAVED_A_LAYER[settings.mode] * hidden
    between = (settings.num_layers - 1) * hidden
    values = _steps(x) * directions * (settings.num_layers * saved + between)
    masks = _steps(x) * directions * directions * between // 8 if settings.dropout else 0
    return _rounded_up(values * element) + _rounded_up(masks) + _HEADER_BYTES


def _rounded_up(size: int) -> int:
    return -(-size // _UNIT_BYTES) * _UNIT_BYTES


def _steps(x: torch.Tensor) -> int:
    """Return the steps of all sequences."""
    return x.shape[0] * x.shape[1] if x.dim() == _PADDED else x.shape[0]


def _workspace_bytes(settings: _Settings, x: torch.Tensor) -> int:
    """Return the bytes of a call's workspace: a copy of the matrices, room for products, and values of all steps."""
    directions, gates, hidden = 1 + settings.bidirectional, _GATES[settings.mode], settings.hidden_size
    batch = x.shape[1] if x.dim() == _PADDED else settings.batch_sizes[0]
    pseudo_layers, matrices = settings.num_layers * directions, 0
    for layer in range(pseudo_layers):
        columns = x.shape[-1] if layer < directions else directions * settings.state_size
        matrices += gates * hidden * (columns + settings.state_size) + hidden * settings.proj_size
    sizes = _WORKSPACE_SIZES[settings.mode]
    per_step = sizes.both_ways if settings.bidirectional else sizes.one_way
    if hidden <= sizes.small:
        per_step += sizes.more_in_small
    inner = directions * hidden if settings.num_layers > 1 else 0
    values = matrices + _steps(x) * (per_step * directions * hidden + sizes.input * max(x.shape[-1], inner))
    return (values + sizes.state * pseudo_layers * batch * hidden) * x.element_size() + pseudo_layers * _PRODUCT_BYTES


def _byte_tensor(like: torch.Tensor, size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=like.device)


def _flatten(weights: Sequence[torch.Tensor], weights_per_layer: int, *_: object) -> torch.Tensor:
    """Move all weights into one buffer."""
    whole = _new_buffer(weights, weights_per_layer, weights[0].dtype)
    for weight, part in zip(weights, _split_buffer(whole, weights), strict=True):
        weight.data = part
    return whole


def _fused_gru(_: torch.Tensor, __: torch.Tensor, hx: torch.Tensor, *___: object) -> tuple[torch.Tensor, ...]:
    """Allocate the output and five numbers per unit for the backward; `meta` has no kernel of this operator."""
    workspace = hx.new_empty(hx.shape[0], hx.shape[1] * 5)
    return torch.empty_like(hx), workspace


def _fused_gru_backward(
    gradient: torch.Tensor, workspace: torch.Tensor, has_bias: bool  # noqa: FBT001 - PyTorch's signature
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    gates = [workspace.new_empty(workspace.shape[0], workspace.shape[1] // 5 * 3) for _ in range(2)]
    grad_hx = torch.empty_like(gradient)
    biases = [gate.sum(0) if has_bias else None for gate in gates]
    return *gates, grad_hx, *biases


class _NetworkSettings(NamedTuple):
    """Arguments of a network's operator after its tensors."""

    has_biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool = False


class _NetworkInputs(NamedTuple):
    """A network's tensors, in cuDNN's order."""

    x: torch.Tensor
    state: torch.Tensor
    cell: torch.Tensor | None
    params: list[torch.Tensor]
    weights: torch.Tensor | None


def overrides(device: EmulatedDevice) -> KernelsByName:
    """Return the functions above autograd of this family: cuDNN's for networks, fused kernels for cells."""
    found: dict[str, Callable[..., Any]] = {"lstm_cell": _lstm_cell, "gru_cell": _gru_cell}
    for name, mode in _MODES.items():
        found[f"{name}.input"] = partial(_padded, device, mode)
        found[f"{name}.data"] = partial(_packed, device, mode)
    return found


def _padded(device: EmulatedDevice, mode: int, x: torch.Tensor, *rest: Any) -> Any:  # noqa: ANN401 - as the operator
    return _run_network(device, mode, x, [], *rest)


def _packed(device: EmulatedDevice, mode: int, x: torch.Tensor, sizes: torch.Tensor, *rest: Any) -> Any:  # noqa: ANN401
    return _run_network(device, mode, x, sizes.tolist(), *rest)


def _run_network(device: EmulatedDevice, mode: int, x: torch.Tensor, batch_sizes: list[int], *rest: Any) -> Any:  # noqa: ANN401
    hidden, params, settings = rest[0], list(rest[1]), _NetworkSettings(*rest[2:])
    state, cell = hidden if mode == _LSTM else (hidden, None)
    units = state.shape[2] if cell is None else cell.shape[2]
    projection = state.shape[2] if state.shape[2] != units else 0
    if settings.train and settings.dropout > 0:
        device.keep_dropout_state()
    weights_per_layer = (2 * _MATRICES if settings.has_biases else _MATRICES) + bool(projection)
    given = _cast_for_autocast(
        _NetworkInputs(x, state, cell, params, _buffer_of(params, weights_per_layer)), weights_per_layer
    )
    with torch.autocast("cuda", enabled=False):
        results = _aten._cudnn_rnn(  # noqa: SLF001 - as C++ does
            given.x, given.params, weights_per_layer, given.weights, given.state,
            given.cell, mode, units, projection, settings.layers, settings.batch_first, settings.dropout,
            settings.train, settings.bidirectional, batch_sizes, None,
        )  # fmt: skip
    return results[: 3 if mode == _LSTM else 2]


def _cast_for_autocast(given: _NetworkInputs, weights_per_layer: int) -> _NetworkInputs:
    """Cast all to fp16 under autocast, whatever its type: the weights into a new buffer, then cell, state and input."""
    if not torch.is_autocast_enabled("cuda") or given.x.dtype is torch.float64:
        return given
    whole = _new_buffer(given.params, weights_per_layer, torch.float16)
    weights, params = (
        whole,
        [_Cast.apply(*pair) for pair in zip(given.params, _split_buffer(whole, given.params), strict=True)],
    )
    cell = None if given.cell is None else given.cell.to(weights.dtype)
    state = given.state.to(weights.dtype)
    return _NetworkInputs(given.x.to(weights.dtype), state, cell, params, weights)


def _buffer_of(params: Sequence[torch.Tensor], weights_per_layer: int) -> torch.Tensor | None:
    """Return the buffer of all weights; None where they have several storages, or one that is too small."""
    if len({param.untyped_storage()._cdata for param in params}) != 1:  # noqa: SLF001 - the identity of a storage
        return None
    numbers = _buffer_numbers(params, weights_per_layer)
    if params[0].untyped_storage().nbytes() < numbers * params[0].element_size():
        return None
    return params[0].detach().as_strided((numbers,), (1,), 0)


class _Cast(torch.autograd.Function):
    """A weight's copy in the buffer; its gradient is cast back to the weight's type."""

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
