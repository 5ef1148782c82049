"""Batch norm: by cuDNN where it can, and by PyTorch's own kernels.

Source: `_batch_norm_impl_index`, Normalization.cpp; `cudnn_batch_norm`, BatchNorm.cpp; `batch_norm_cuda` and
`batch_norm_backward_cuda`, Normalization.cu and .cuh; torch 2.6 to 2.15. cuDNN's reserve space counts as 0, as on the
null GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.tracing.layouts import suggested_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten: Final[Any] = torch.ops.aten
_HALVES: Final = (torch.float16, torch.bfloat16)
_SPATIAL: Final = 3
_MOST_SAMPLES: Final = {True: 880_801, False: 65_535}
_VALUES_A_THREAD: Final = 16
_THREADS_WIDE: Final = 32
_MOST_THREADS: Final = 512
_MOST_BLOCKS: Final = 128
_WORTH_A_GRID: Final = 8

Tensors = tuple[torch.Tensor, ...]
Optional = torch.Tensor | None


def kernels() -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {
        "cudnn_batch_norm": _cudnn,
        "cudnn_batch_norm_backward": _cudnn_backward,
        "native_batch_norm": _native,
        "native_batch_norm_backward": _native_backward,
    }


def batch_norm_roads() -> dict[str, Callable[..., Any]]:
    """Functions above autograd, by the operator's name."""
    return {"_batch_norm_impl_index": _choose}


def _choose(  # noqa: PLR0913, PLR0917 - PyTorch's signature
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
    if cudnn_enabled and _fits_cudnn(x, weight, bias, mean, variance, training=training):
        x = x.contiguous(memory_format=suggested_layout(x))
        return *_aten.cudnn_batch_norm(x, weight, bias, mean, variance, training, momentum, epsilon), 1
    done = _aten.native_batch_norm(x, weight, bias, mean, variance, training, momentum, epsilon)
    return *done, torch.empty(0, dtype=torch.uint8, device=x.device), 0


def _fits_cudnn(  # noqa: PLR0913 - what the operator is given
    x: torch.Tensor, weight: Optional, bias: Optional, mean: Optional, variance: Optional, *, training: bool
) -> bool:
    if weight is None or bias is None or x.dim() < _SPATIAL or x.shape[0] > _MOST_SAMPLES[training]:
        return False
    if torch.bfloat16 in (x.dtype, weight.dtype) or (x.dtype is torch.float16 and weight.dtype is not torch.float32):
        return False
    return (mean is None) == (variance is None) and (mean is not None or training)


def _row(x: torch.Tensor) -> torch.Tensor:
    """A number for each channel, in fp32 at least."""
    dtype = torch.float32 if x.dtype in _HALVES else x.dtype
    return torch.empty(x.shape[1], dtype=dtype, device=x.device)


def _cudnn(x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> Tensors:  # noqa: ANN401 - PyTorch's signature
    training, result = rest[3], torch.empty_like(x)
    saved = [torch.empty_like(weight) if training else weight.new_empty(0) for _ in range(2)]
    return result, *saved, x.new_empty(0, dtype=torch.uint8)


def _cudnn_backward(x: torch.Tensor, _: torch.Tensor, weight: torch.Tensor, *__: object) -> Tensors:
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)


def _native(x: torch.Tensor, _: Optional, __: Optional, *rest: Any) -> Tensors:  # noqa: ANN401 - PyTorch's signature
    training = rest[2]
    results = torch.empty_like(x), _row(x), _row(x)
    if training and _has_channels_last(x):
        _staging(x, 4)
    return results


def _has_channels_last(x: torch.Tensor) -> bool:
    """Whether the channels of a sample lie side by side."""
    return (x.is_contiguous() and x.stride(1) == 1) or suggested_layout(x) is not torch.contiguous_format


def _staging(x: torch.Tensor, rows: int) -> None:
    """What blocks leave for each other, and their semaphores."""
    channels = x.shape[1]
    width, height = _grid(x.numel() // channels, channels)
    if height > 1:
        left = torch.empty(rows * channels * height, dtype=_row_type(x), device=x.device)
        semaphores = torch.empty(width, dtype=torch.int32, device=x.device)
        del left, semaphores


def _row_type(x: torch.Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in _HALVES else x.dtype


def _grid(values: int, channels: int) -> tuple[int, int]:
    """Blocks across channels and across values. Source: `flexible_launch_configs`."""
    wide = _power_of_two(channels)
    block_width = min(wide, _THREADS_WIDE)
    block_height = min(_power_of_two(-(-values // _VALUES_A_THREAD)), _MOST_THREADS // block_width)
    if block_width * block_height != _MOST_THREADS:
        block_width = min(wide, _MOST_THREADS // block_height)
    height = min(-(-values // (block_height * _VALUES_A_THREAD)), _MOST_BLOCKS)
    return -(-channels // block_width), height if height >= _WORTH_A_GRID else 1


def _power_of_two(number: int) -> int:
    """The largest that is not above it."""
    return 1 << (max(number, 1).bit_length() - 1)


def _native_backward(  # noqa: PLR0913, PLR0917 - PyTorch's signature
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
    if is_reduced and wanted[0] and not _has_channels_last(x):
        result = torch.empty_like(x)
        return result, *_weight_rows(x, weight, wanted)
    kept = _remade(x, mean, (saved_mean, saved_deviation), is_reduced=is_reduced)
    rows: Sequence[Optional] = (None, None)
    if is_reduced:
        sums, rows = _reduced(gradient, x, weight, wanted)
        kept += sums
    whole = torch.empty_like(x) if wanted[0] else None
    del kept
    return whole, *rows


def _remade(
    x: torch.Tensor, mean: Optional, saved: tuple[Optional, Optional], *, is_reduced: bool
) -> list[torch.Tensor]:
    """What cuDNN does not keep of an evaluation is made again."""
    saved_mean, saved_deviation = saved
    made = []
    if is_reduced and not _is_there(saved_mean) and mean is not None and mean.dtype is not _row_type(x):
        made.append(mean.to(_row_type(x)))
    if not _is_there(saved_deviation):
        made.append(_row(x))
    return made


def _is_there(saved: Optional) -> bool:
    return saved is not None and saved.numel() > 0


def _weight_rows(x: torch.Tensor, weight: Optional, wanted: Sequence[bool]) -> list[Optional]:
    return [(_row(x) if weight is None else torch.empty_like(weight)) if want else None for want in wanted[1:]]


def _reduced(
    gradient: torch.Tensor, x: torch.Tensor, weight: Optional, wanted: Sequence[bool]
) -> tuple[list[torch.Tensor], list[Optional]]:
    """Sums that the input's gradient needs, and the gradients of weight and bias."""
    has_channels_last = _has_channels_last(gradient) and _has_channels_last(x)
    sums = [_row(x) for _ in range(2)] if wanted[0] or has_channels_last else []
    if not has_channels_last:
        return sums, _weight_rows(x, weight, wanted)
    rows = _weight_rows(x, weight, (True, weight is not None, weight is not None))
    _staging(x, 2)
    kept = sums + [row for row in rows if row is not None]  # all are made, whoever wants them
    return kept, [row if want else None for row, want in zip(rows, wanted[1:], strict=True)]
