"""Normalization: softmax, batch norm, layer norm, RMS norm and group norm; fused recurrent cells.

Batch norm runs by cuDNN where it can, else by PyTorch's own kernels; cuDNN's reserve space is 0, and its workspaces are
those of the null GPU, measured on an H200 (`cudnn.c`). The backward of layer norm has partial gradients of the weights
where rows are many, since torch 2.8 (pull request 150773); their greatest number was seen on null GPUs in 2.15, and so
was what group norm does otherwise there (pull request 191945).

Source: SoftMax.cu, Dropout.cu and RNN.cu; `_batch_norm_impl_index`, Normalization.cpp; `cudnn_batch_norm`,
BatchNorm.cpp; `batch_norm_cuda` and `batch_norm_backward_cuda`, Normalization.cu and .cuh; `layer_norm_backward_cuda`
and `LaunchGammaBetaBackwardCUDAKernel`, layer_norm_kernel.cu; group_norm_kernel.cu, and `native_group_norm_backward`,
group_norm.cpp; torch 2.6 to 2.15.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.kernels.reductions import (
    LARGEST_32_BIT,
    largest_power_of_two,
    partial_results,
    variance_results,
)
from oomdoctor.engines.trace.layouts import (
    HALF_TYPES,
    accumulation_type,
    copied_bytes,
    is_channels_last_picture,
    meta_like,
    suggested_layout,
)
from oomdoctor.engines.trace.op_trace import Temporaries
from oomdoctor.engines.trace.torch_internals import TORCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.engines.trace.op_trace import AllocationStep, KernelsByName, OperatorCall, TemporariesByName


def _softmax(call: OperatorCall) -> Temporaries:
    """Take contiguous copies of the arguments. Source: `host_softmax`, SoftMax.cu."""
    return Temporaries(after=copied_bytes(call.args))


def _softmax_backward(call: OperatorCall) -> Temporaries:
    """Take the product of gradient and output, and copies of product and output that are not contiguous.

    Source: `softmax_backward_cuda_out`, SoftMax.cu.
    """
    gradient, output = map(meta_like, call.args[:2])
    product = gradient * output
    return Temporaries(after=(product.nbytes, *copied_bytes((product, output))))


def _second_result_first(_: OperatorCall) -> Temporaries:
    """Return the order of a dropout's mask or a cell's workspace, allocated before the output."""
    return Temporaries(order=[1, 0])


def _third_result_first(_: OperatorCall) -> Temporaries:
    return Temporaries(order=[2, 0, 1])


_aten: Final[Any] = torch.ops.aten
_SPATIAL: Final = 3
_GROUP_CHANNELS: Final = 64
_TILE_ROWS: Final = {2: 160, 4: 64, 8: 64}
"""Rows of a tile of cuDNN's forward, by bytes of an element."""
_BACKWARD_TILE_ROWS: Final = 96
_MOST_SAMPLES: Final = {True: 880_801, False: 65_535}
_VALUES_A_THREAD: Final = 16
_THREADS_WIDE: Final = 32
_MOST_THREADS: Final = 512
_MOST_GRID_ROWS: Final = 128
_WORTH_A_GRID: Final = 8

Tensors = tuple[torch.Tensor, ...]
Optional = torch.Tensor | None


def _batch_norm(  # noqa: PLR0913, PLR0917 - PyTorch's signature
    x: torch.Tensor,
    weight: Optional,
    bias: Optional,
    mean: Optional,
    variance: Optional,
    training: bool,  # noqa: FBT001
    momentum: float,
    epsilon: float,
    cudnn_enabled: bool,  # noqa: FBT001
) -> tuple[Any, ...]:
    named = {"running_mean": mean, "running_var": variance, "weight": weight, "bias": bias}
    for name, given in named.items():
        if given is not None and given.numel() != x.shape[1]:
            raise RuntimeError(f"{name} should contain {x.shape[1]} elements not {given.numel()}")
    if cudnn_enabled and _fits_cudnn(x, weight, bias, mean, variance, training=training):
        x = x.contiguous(memory_format=suggested_layout(x))
        return *_aten.cudnn_batch_norm(x, weight, bias, mean, variance, training, momentum, epsilon), 1
    done = _aten.native_batch_norm(x, weight, bias, mean, variance, training, momentum, epsilon)
    return *done, torch.empty(0, dtype=torch.uint8, device=x.device), 0


def _fits_cudnn(  # noqa: PLR0913 - what the operator is given
    x: torch.Tensor, weight: Optional, bias: Optional, mean: Optional, variance: Optional, *, training: bool
) -> bool:
    if weight is None or bias is None or x.dim() < _SPATIAL:
        return False
    if x.shape[0] > _MOST_SAMPLES[training] or x.numel() > LARGEST_32_BIT:
        return False
    if torch.bfloat16 in (x.dtype, weight.dtype) or (x.dtype is torch.float16 and weight.dtype is not torch.float32):
        return False
    return (mean is None) == (variance is None) and (mean is not None or training)


def _channel_row(x: torch.Tensor) -> torch.Tensor:
    """Allocate a number for each channel, in fp32 at least."""
    return torch.empty(x.shape[1], dtype=accumulation_type(x.dtype), device=x.device)


def _cudnn_batch_norm(x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> Tensors:  # noqa: ANN401 - PyTorch's signature
    training, result = rest[3], torch.empty_like(x)
    saved = [torch.empty_like(weight) if training else weight.new_empty(0) for _ in range(2)]
    if training:
        _tiles(x, _TILE_ROWS[x.element_size()], 516, 1072)
    return result, *saved, x.new_empty(0, dtype=torch.uint8)


def _cudnn_batch_norm_backward(x: torch.Tensor, _: torch.Tensor, weight: torch.Tensor, *__: object) -> Tensors:
    results = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
    _tiles(x, _BACKWARD_TILE_ROWS, 512, 1056)
    return results


def _tiles(x: torch.Tensor, rows: int, tile_bytes: int, fixed_bytes: int) -> None:
    """Allocate cuDNN's workspace for channels last: sums of tiles of rows, 64 channels at a time."""
    if suggested_layout(x) is torch.contiguous_format:
        return
    groups, tiles = -(-x.shape[1] // _GROUP_CHANNELS), -(-x.numel() // x.shape[1] // rows)
    torch.empty(groups * (tiles * tile_bytes + 4) + fixed_bytes, dtype=torch.uint8, device=x.device)


def _native_batch_norm(
    device: EmulatedDevice, x: torch.Tensor, weight: Optional, bias: Optional, *rest: Any  # noqa: ANN401 - PyTorch's signature
) -> Tensors:  # fmt: skip
    training = rest[2]
    results = torch.empty_like(x), _channel_row(x), _channel_row(x)
    if _is_general(x):
        if training:
            device.call_library(_BATCH_VARIANCE, meta_like(x))
        _ones(x, weight, bias)
    elif training and _has_channels_last(x):
        _staging(x, 4)
    return results


def _is_general(x: torch.Tensor) -> bool:
    """Return whether no kernel for one layout and 32-bit indices will do. Source: `batch_norm_choose_impl`."""
    return not ((x.is_contiguous() or is_channels_last_picture(x)) and _has_short_indices(x))


def _has_short_indices(x: torch.Tensor) -> bool:
    """Return whether 32 bits count the elements. Source: `canUse32BitIndexMath`, IndexUtils.cuh."""
    reach = sum((length - 1) * step for length, step in zip(x.shape, x.stride(), strict=True))
    return max(x.numel(), reach) < LARGEST_32_BIT


def _ones(x: torch.Tensor, *given: Optional) -> list[torch.Tensor]:
    """Allocate a number for each weight that is not given."""
    dtype = accumulation_type(x.dtype)
    return [torch.empty((), dtype=dtype, device=x.device) for one in given if one is None]


_BATCH_VARIANCE: Final = "batch_norm_variance"


def _batch_variance(call: OperatorCall) -> Temporaries:
    """Reduce all dimensions but the channels', bf16 as a copy in fp32. Source: `make_reduction`, ReduceOpsUtils.h."""
    x = call.args[0]
    copy = (x.numel() * _WORD,) if x.dtype is torch.bfloat16 else ()
    read = torch.empty_strided(x.shape, x.stride(), dtype=torch.float32, device="meta") if copy else x
    dims = (0, *range(2, x.dim()))
    return Temporaries(after=(*copy, *variance_results(call.card, read, dims, held=len(copy))))


def _has_channels_last(x: torch.Tensor) -> bool:
    """Return whether the channels of a pixel are contiguous."""
    return (x.is_contiguous() and x.stride(1) == 1) or suggested_layout(x) is not torch.contiguous_format


def _staging(x: torch.Tensor, rows: int) -> None:
    """Allocate the partial results that blocks exchange, and their semaphores."""
    channels = x.shape[1]
    values = x.numel() // channels
    wide = largest_power_of_two(channels)
    block_width = min(wide, _THREADS_WIDE)
    block_height = min(largest_power_of_two(-(-values // _VALUES_A_THREAD)), _MOST_THREADS // block_width)
    if block_width * block_height != _MOST_THREADS:
        block_width = min(wide, _MOST_THREADS // block_height)
    height = min(-(-values // (block_height * _VALUES_A_THREAD)), _MOST_GRID_ROWS)
    width, height = -(-channels // block_width), height if height >= _WORTH_A_GRID else 1
    if height > 1:
        left = torch.empty(rows * channels * height, dtype=accumulation_type(x.dtype), device=x.device)
        semaphores = torch.empty(width, dtype=torch.int32, device=x.device)
        del left, semaphores


def _native_batch_norm_backward(  # noqa: PLR0913, PLR0917 - PyTorch's signature
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: Optional,
    mean: Optional,
    variance: Optional,  # noqa: ARG001
    saved_mean: Optional,
    saved_deviation: Optional,
    training: bool,  # noqa: FBT001
    epsilon: float,  # noqa: ARG001
    wanted: Sequence[bool],
) -> tuple[Optional, ...]:
    is_reduced = training or wanted[1] or wanted[2]
    if is_reduced and wanted[0] and not _has_channels_last(x) and all(map(_has_short_indices, (x, gradient))):
        _copies = _rows_of_channels(x, gradient)
        return torch.empty_like(x, memory_format=torch.contiguous_format), *_weight_rows(x, weight, wanted)
    kept = _recomputed_statistics(x, mean, (saved_mean, saved_deviation), is_reduced=is_reduced)
    rows: Sequence[Optional] = (None, None)
    if is_reduced:
        sums, rows = _channel_sums(gradient, x, weight, wanted)
        kept += sums
    whole = None
    if wanted[0]:
        kept += _ones(x, weight) if training and _is_general(x) else []
        layout = suggested_layout(x) if training else torch.contiguous_format
        whole = torch.empty_like(x, memory_format=layout)
    del kept
    return whole, *rows


def _rows_of_channels(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Reshape tensors to (batch, channels, rest), which copies what does not lie so."""
    return [tensor.reshape(*tensor.shape[:2], -1) for tensor in tensors]


def _recomputed_statistics(
    x: torch.Tensor, mean: Optional, saved: tuple[Optional, Optional], *, is_reduced: bool
) -> list[torch.Tensor]:
    """Compute the statistics again that cuDNN does not keep of an evaluation."""
    saved_mean, saved_deviation = saved
    made = []
    if is_reduced and not _is_saved(saved_mean) and mean is not None and mean.dtype is not accumulation_type(x.dtype):
        made.append(mean.to(accumulation_type(x.dtype)))
    if not _is_saved(saved_deviation):
        made.append(_channel_row(x))
    return made


def _is_saved(saved: Optional) -> bool:
    return saved is not None and saved.numel() > 0


def _weight_rows(x: torch.Tensor, weight: Optional, wanted: Sequence[bool]) -> list[Optional]:
    return [(_channel_row(x) if weight is None else torch.empty_like(weight)) if want else None for want in wanted[1:]]


def _channel_sums(
    gradient: torch.Tensor, x: torch.Tensor, weight: Optional, wanted: Sequence[bool]
) -> tuple[list[torch.Tensor], list[Optional]]:
    """Return the sums that the input's gradient needs, and the gradients of weight and bias."""
    has_channels_last = all(_has_channels_last(each) and _has_short_indices(each) for each in (gradient, x))
    sums = [_channel_row(x) for _ in range(2)] if wanted[0] or has_channels_last else []
    if not has_channels_last:
        _copies = _rows_of_channels(x, gradient)
        return sums, _weight_rows(x, weight, wanted)
    rows = _weight_rows(x, weight, (True, weight is not None, weight is not None))
    _staging(x, 2)
    kept = sums + [row for row in rows if row is not None]  # all are allocated, wanted or not
    return kept, [row if want else None for row, want in zip(rows, wanted[1:], strict=True)]


_HAS_PARTIAL_GRADIENTS: Final = TORCH >= (2, 8)
_MANY_ROWS: Final = 64 * 1024
_BLOCK: Final = 32
_MOST_BLOCKS: Final = 32 * 1024
_WORD: Final = 4


def _layer_norm_backward(call: OperatorCall) -> Temporaries:
    gradient, x, shape = call.args[:3]
    before, after = copied_bytes((x,)), copied_bytes((gradient,))
    wanted = [result for result in call.results[1:] if result is not None]
    return Temporaries(before, (*after, *_partial_gradients(call, x, prod(shape), wanted, len(before) + len(after))))


def _partial_gradients(
    call: OperatorCall, x: torch.Tensor, width: int, wanted: list[Any], held: int
) -> tuple[AllocationStep, ...]:
    """Return the steps of each weight's table of partial gradients, and of its sum, with partial results.

    Args:
        call: The backward.
        x: The input.
        width: Numbers in a row of the input.
        wanted: The weights' gradients.
        held: Number of allocations before these.
    """
    rows = x.numel() // width
    if not _HAS_PARTIAL_GRADIENTS or rows <= _MANY_ROWS or width // _BLOCK >= call.card.sm_count // 2:
        return ()
    height = min(-(-rows // _BLOCK), _MOST_BLOCKS // -(-width // _BLOCK))
    taken: list[AllocationStep] = [height * result.size[-1] * result.dtype.itemsize for result in wanted]
    for result in wanted:
        partial = torch.empty(height, result.size[-1], dtype=result.dtype, device="meta")
        buffers = partial_results(call.card, partial, [0], max(_WORD, result.dtype.itemsize))
        taken.append(result.size[-1] * result.dtype.itemsize)
        first = held + sum(step >= 0 for step in taken if isinstance(step, int))
        taken += [*buffers, *(-1 - first - index for index in range(len(buffers)))]
    return tuple(taken)


def _layer_norm(x: torch.Tensor, normalized_shape: Sequence[int], *_: object) -> Tensors:
    """Allocate output, mean and standard deviation of each row. Source: `layer_norm_cuda`, layer_norm_kernel.cu."""
    rank = len(normalized_shape)
    if x.shape[-rank:] != tuple(normalized_shape):
        expected = ", ".join(map(str, ("*", *normalized_shape)))
        raise RuntimeError(
            f"Given normalized_shape={[*normalized_shape]}, expected input with shape [{expected}], but got input of "
            f"size{[*x.shape]}"
        )
    rows = (*x.shape[: x.dim() - rank], *(1,) * rank)
    x = x.contiguous()
    dtype = accumulation_type(x.dtype)
    return torch.empty_like(x), *(torch.empty(rows, dtype=dtype, device=x.device) for _ in range(2))


def _weight_norm_backward(_: torch.Tensor, direction: torch.Tensor, length: torch.Tensor, *__: object) -> Tensors:
    """Allocate the gradients; `meta` has no kernel of this operator."""
    return torch.empty_like(direction), torch.empty_like(length)


_FLOAT_BYTES: Final = 4
_IS_NEW: Final = TORCH >= (2, 15)
"""Whether kernels copy tensors that are not contiguous, as the operator did before, and read channels last."""


def _group_norm(call: OperatorCall) -> Temporaries:
    x, weight, bias, batch, channels, pixels, groups = call.args[:7]
    is_last = _is_channels_last(x)
    sums = (batch * groups * _FLOAT_BYTES,) * 2 if _IS_NEW and x.dtype in HALF_TYPES else ()
    is_scaled = pixels > 1 and (weight is not None or bias is not None or is_last)
    factors = (batch * channels * _FLOAT_BYTES,) * 2 if is_scaled else ()
    return Temporaries(after=(*_group_norm_copies(x), *sums, *factors))


def _group_norm_backward(call: OperatorCall) -> Temporaries:
    (gradient, x), weight, (batch, channels, pixels, groups) = call.args[:2], call.args[4], call.args[5:9]
    each, grouped = batch * channels * _FLOAT_BYTES, batch * groups * _FLOAT_BYTES
    copies = _group_norm_copies(x, gradient)
    if not call.args[9][0]:  # the gradient of the input is not asked for
        return Temporaries(copies, (each, each) if pixels > 1 or not _IS_NEW else ())
    if pixels == 1:
        return Temporaries(copies, (grouped, grouped) if _IS_NEW else (each, each, grouped, grouped))
    factors = () if weight is None or _is_channels_last(x) else (each,)
    return Temporaries(copies, (each, each, grouped, grouped, *factors))


def _is_channels_last(x: torch.Tensor) -> bool:
    return _IS_NEW and suggested_layout(x) is not torch.contiguous_format


def _group_norm_copies(x: torch.Tensor, *others: torch.Tensor) -> tuple[int, ...]:
    return copied_bytes((x, *others), suggested_layout(x)) if _IS_NEW else ()


TEMPORARIES: Final[TemporariesByName] = {
    _BATCH_VARIANCE: _batch_variance,
    **dict.fromkeys(("_softmax", "_log_softmax", "_log_softmax_backward_data"), _softmax),
    "_softmax_backward_data": _softmax_backward,
    "native_dropout": _second_result_first,
    "rrelu_with_noise": lambda call: Temporaries(after=copied_bytes(call.args[:1])),
    "_thnn_fused_lstm_cell": _third_result_first,
    "_thnn_fused_gru_cell": _second_result_first,
    **dict.fromkeys(("native_layer_norm_backward", "_fused_rms_norm_backward"), _layer_norm_backward),
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
}


def kernels(device: EmulatedDevice) -> KernelsByName:
    """Return the kernels of this family."""
    return {
        "cudnn_batch_norm": _cudnn_batch_norm,
        "cudnn_batch_norm_backward": _cudnn_batch_norm_backward,
        "native_batch_norm": partial(_native_batch_norm, device),
        "native_batch_norm_backward": _native_batch_norm_backward,
        "native_layer_norm": _layer_norm,
        "_weight_norm_interface_backward": _weight_norm_backward,
    }


def overrides() -> KernelsByName:
    """Return the functions above autograd of this family."""
    return {"_batch_norm_impl_index": _batch_norm}
