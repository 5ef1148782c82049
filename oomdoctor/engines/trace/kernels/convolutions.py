"""Windows: convolutions through cuDNN, their double backward, `im2col`, pooling, padding and upsampling, with copies.

PyTorch makes contiguous copies before cuDNN's kernels and adds the bias after them. A convolution's workspace is asked
of the installed cuDNN (`oomdoctor.engines.cudnn`), and not counted where there is none. The double backward (gradient
penalties and other losses on gradients) copies more for CUDA than for a device that C++ does not know. `im2col` first
allocates as much as its input.
Pooling, padding by reflection and upsampling copy tensors whose layout their kernels cannot read or write.

Source: `_convolution`, `convolution_backward`, `_convolution_double_backward` and `use_cudnn_depthwise`,
Convolution.cpp; ConvShared.cpp of cuDNN; `im2col_cuda` and `col2im_cuda`, Im2Col.cu and Col2Im.cu;
AdaptiveMaxPooling2d.cu, AdaptiveAveragePooling.cu, DilatedMaxPool2d.cu, AveragePool2d.cu, ReflectionPad.cu,
UpSampleNearest2d.cu, UpSampleBilinear2d.cu, UpSampleBicubic2d.cu and UpSampleNearest3d.cu, torch 2.6 to 2.15.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from oomdoctor.engines.cudnn import Convolution, TensorLayout, can_ask, regular_strides, workspaces
from oomdoctor.engines.cudnn_library import card_properties
from oomdoctor.engines.trace.layouts import CHANNELS_LAST, copied_bytes, has_channels_last_strides, suggested_layout
from oomdoctor.engines.trace.op_trace import OptionalWorkspace, Temporaries
from oomdoctor.engines.trace.refusals import mismatch_error, untraceable
from oomdoctor.engines.trace.torch_internals import operator_named, strided_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.engines.trace.op_trace import KernelsByName, OperatorCall, TemporariesByName

_SIGNAL: Final = 3
_PICTURE: Final = 4
_FEWEST_CHANNELS: Final = 32
_NARROWEST: Final = 7
_QUICK_STRIDE: Final = 2

_MaybeTensor = torch.Tensor | None


class _Settings(NamedTuple):
    """Arguments of a convolution after its tensors."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int

    def of_space(self, dimensions: int) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Return padding, stride and dilation for each dimension of space."""
        return tuple(  # type: ignore[return-value]
            [*values] * dimensions if len(values) == 1 else [*values]
            for values in (self.padding, self.stride, self.dilation)
        )

    @property
    def has_large_output_padding(self) -> bool:
        """Return whether the output is padded by a stride or more. Source: `is_output_padding_big`, Convolution.cpp."""
        return any(padding >= step for padding, step in zip(self.output_padding, self.stride, strict=False))

    def as_picture(self) -> _Settings:
        """Return the settings of a signal that runs as a picture of one row."""
        return self._replace(
            stride=[1, *self.stride], padding=[0, *self.padding], dilation=[1, *self.dilation],
            output_padding=[0, *self.output_padding],
        )  # fmt: skip


def kernels(device: EmulatedDevice) -> KernelsByName:
    """Return the kernels of this family."""
    return {
        "convolution": partial(_convolution_forward, device),
        "convolution_backward": partial(_convolution_backward, device),
        **{name: partial(_run_window, device, operator_named(name)) for name in ("im2col", "col2im")},
    }


def overrides() -> KernelsByName:
    """Return the functions above autograd of this family."""
    return {"_convolution_double_backward": _double_backward}


def _convolution_forward(
    device: EmulatedDevice, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: Any  # noqa: ANN401
) -> torch.Tensor:  # fmt: skip
    settings = _Settings(*rest)
    if settings.has_large_output_padding:
        raise untraceable("aten.convolution", "PyTorch's own transposed convolution, which cuDNN does not run")
    convolve = operator_named("convolution")
    metas = [torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in (x, weight)]
    try:
        size = tuple(convolve(*metas, None, *settings).shape)
    except RuntimeError as error:
        raise (mismatch_error(convolve, (*metas, None, *settings)) or error) from None
    if x.dim() == _SIGNAL:  # runs as a picture of one row
        flat = settings.as_picture()
        row = _cudnn_convolution(
            device, x.contiguous().unsqueeze(2), weight.unsqueeze(2), bias, (*size[:2], 1, size[2]), flat
        )
        return row.view(size)
    return _cudnn_convolution(device, x, weight, bias, size, settings)


def _cudnn_convolution(  # noqa: PLR0913, PLR0917 - the arguments of a convolution
    device: EmulatedDevice,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    size: Sequence[int],
    settings: _Settings,
) -> torch.Tensor:
    depthwise = _is_depthwise(x, weight, settings)
    layout = torch.contiguous_format if depthwise else _layout(x, weight)
    x = x.contiguous(memory_format=layout)
    if depthwise:
        weight = weight.contiguous()
        return torch.empty(size, dtype=x.dtype, device=x.device)
    output = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=layout)
    weight = weight.contiguous(memory_format=layout)
    if settings.transposed:
        _take_workspace(device, "data", output, weight, x, settings)
    else:
        _take_workspace(device, "forward", x, weight, output, settings)
    return output if bias is None else output.add_(bias.reshape(1, -1, *(1,) * (output.dim() - 2)))


def _convolution_backward(
    device: EmulatedDevice, gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, _: object, *rest: Any  # noqa: ANN401
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    settings, mask = _Settings(*rest[:-1]), rest[-1]
    if x.dim() != _SIGNAL:
        return _gradients(device, gradient, x, weight, settings, mask)
    rows = (gradient.unsqueeze(2), x.contiguous().unsqueeze(2), weight.unsqueeze(2))
    for_x, for_weight, for_bias = _gradients(device, *rows, settings.as_picture(), mask)
    return *(None if found is None else found.squeeze(2) for found in (for_x, for_weight)), for_bias


def _gradients(  # noqa: PLR0913, PLR0917 - the arguments of a convolution
    device: EmulatedDevice,
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    settings: _Settings,
    mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    if _is_depthwise(x, weight, settings):
        found = _depthwise_gradients(gradient, x, weight, mask)
    else:
        found = _cudnn_gradients(device, gradient, x, weight, settings, mask)
    return *found, gradient.sum([0, *range(2, gradient.dim())]) if mask[2] else None


def _depthwise_gradients(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mask: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    """Allocate the weight's gradient first. Source: `conv_depthwise2d_backward_cuda`, DepthwiseConv2d.cu."""
    _held = gradient.contiguous()
    for_weight = _depthwise_weight_gradient(x, weight) if mask[1] else None
    _copy = weight.contiguous()
    return _like(x, torch.contiguous_format) if mask[0] else None, for_weight


def _depthwise_weight_gradient(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    _copy = x.contiguous()
    return _like(weight, torch.contiguous_format)


def _cudnn_gradients(  # noqa: PLR0913, PLR0917 - the arguments of a convolution
    device: EmulatedDevice,
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    settings: _Settings,
    mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """Make the copies of each part, and take its workspace. Source: `cudnn_convolution_backward`, ConvShared.cpp."""
    layout = _layout(x, weight)
    for_x = for_weight = None
    if mask[1]:
        x = x.contiguous(memory_format=layout)
    of_x = suggested_layout(x)
    if settings.transposed:
        gradient = gradient.contiguous(memory_format=of_x)
    elif suggested_layout(gradient) is not of_x:  # also where one pixel has any layout
        gradient = gradient.clone(memory_format=of_x)
    if mask[0]:
        layout = _layout(gradient, weight)
        for_x = _like(x, layout)
        copies = [tensor.contiguous(memory_format=layout) for tensor in (gradient, weight)]
        if settings.transposed:
            _take_workspace(device, "forward", copies[0], copies[1], for_x, settings)
        else:
            _take_workspace(device, "data", for_x, copies[1], copies[0], settings)
        copies.clear()
    if mask[1]:
        layout = _layout(x, gradient)
        copy = gradient.contiguous(memory_format=layout)
        for_weight = _like(weight, layout)
        ends = (copy, x) if settings.transposed else (x, copy)
        _take_workspace(device, "filter", ends[0], for_weight, ends[1], settings)
    return for_x, for_weight


_WORKSPACE: Final = "cudnn_convolution"


def _take_workspace(  # noqa: PLR0913, PLR0917 - the arguments of a convolution
    device: EmulatedDevice, kind: str, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, settings: _Settings
) -> None:
    """Take the workspace of one of cuDNN's three convolutions, for as long as it runs."""
    if not can_ask() or not all(tensor.numel() for tensor in (x, w, y)):
        return
    flags = torch.backends.cudnn
    deterministic = flags.deterministic or torch.are_deterministic_algorithms_enabled()
    channels_last = any(map(has_channels_last_strides, (x, w, y)))
    told = [_told_layout(tensor, channels_last=channels_last) for tensor in (x, w, y)]
    padding, stride, dilation = (tuple(values) for values in settings.of_space(x.dim() - 2))
    convolution = Convolution(
        kind, str(x.dtype).removeprefix("torch."), told[0], told[1], told[2], padding, stride, dilation
    )
    device.call_library(_WORKSPACE, convolution, deterministic, flags.allow_tf32)


def _told_layout(tensor: torch.Tensor, *, channels_last: bool) -> TensorLayout:
    address = tensor.storage_offset() * tensor.itemsize
    alignment = _ALIGNMENT if not address % _ALIGNMENT else int(address & -address)
    size = tuple(tensor.shape)
    return TensorLayout(size, regular_strides(size, tensor.stride(), channels_last=channels_last), alignment)


_ALIGNMENT: Final = 32
"""Largest alignment that PyTorch tells cuDNN. Source: `getAlignment`, Conv_v8.cpp."""


def _workspace_of(call: OperatorCall) -> Temporaries:
    convolution, deterministic, allow_tf32 = call.args
    card = card_properties(call.card)
    sizes = workspaces(card, convolution, deterministic=deterministic, allow_tf32=allow_tf32)
    return Temporaries(after=(OptionalWorkspace(convolution, sizes),) if any(sizes) else ())


def _like(tensor: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device, memory_format=layout)


def _layout(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Return channels last where either tensor is, except in fp64. Source: `cudnn_conv_suggest_memory_format`."""
    if x.dtype is not torch.float64 and (has_channels_last_strides(x) or has_channels_last_strides(weight)):
        return CHANNELS_LAST[x.dim()]
    return torch.contiguous_format


def _is_depthwise(x: torch.Tensor, weight: torch.Tensor, settings: _Settings) -> bool:
    """Return whether PyTorch's own kernel for one filter per channel runs, and not cuDNN."""
    one_a_channel = x.shape[1] == settings.groups > 1 and weight.shape[0] % x.shape[1] == 0
    if not one_a_channel or settings.transposed or x.dim() != _PICTURE:
        return False
    if _layout(x, weight) is not torch.contiguous_format:
        return False
    return not (x.dtype is weight.dtype is torch.float16 and _suits_cudnn(x, weight, settings))


def _suits_cudnn(x: torch.Tensor, weight: torch.Tensor, settings: _Settings) -> bool:
    """Return whether cuDNN is quicker in fp16. Source: `use_cudnn_depthwise`."""
    batch, channels, height, width = x.shape
    vertical, stride = settings.stride[0], settings.stride[-1]  # a signal has one
    if any(step > 1 for step in settings.dilation) or channels < _FEWEST_CHANNELS:
        return False
    if height == 1:
        return stride == 1 or _is_quick(batch, channels, width, weight, stride)
    return vertical == stride and _is_quick(batch, channels, width, weight, stride)


def _is_quick(batch: int, channels: int, width: int, weight: torch.Tensor, stride: int) -> bool:
    """Source: `check_cudnn_depthwise_workload_with_filter`."""
    filter_size = weight.shape[3]
    if weight.shape[2] != filter_size or filter_size not in {1, 3, 5} or width < _NARROWEST or stride > _QUICK_STRIDE:
        return False
    if stride == 1:
        return True
    if filter_size == 1:
        return width <= 28 if batch == 1 else batch <= 16 and channels >= 128 and width <= _NARROWEST  # noqa: PLR2004
    return batch == 1 or channels >= 512 or (channels >= 256 and width >= 28)  # noqa: PLR2004 - the rule's numbers


def _double_backward(  # noqa: PLR0913, PLR0917 - PyTorch's signature
    for_input: _MaybeTensor,
    for_weight: _MaybeTensor,
    for_bias: _MaybeTensor,
    gradient: torch.Tensor,
    weight: torch.Tensor,
    x: torch.Tensor,
    *rest: object,
) -> tuple[_MaybeTensor, _MaybeTensor, _MaybeTensor]:
    """Return the gradients of the output's gradient, the input and the weight, as CUDA computes them.

    Args:
        for_input: Gradient of the input's gradient.
        for_weight: Gradient of the weight's gradient.
        for_bias: Gradient of the bias's gradient.
        gradient: The output's gradient.
        weight: The weight.
        x: The input.
        rest: Stride, padding, dilation, transposed, output padding, groups, and the gradients wanted (unused).
    """
    settings = _Settings(*rest[:-1])  # type: ignore[arg-type]
    of_gradient: _MaybeTensor = None
    if for_input is not None and x.numel():
        weight = weight.contiguous()
        of_gradient = _convolve(for_input, weight, settings)
    if for_weight is not None and x.numel():
        for_weight = for_weight.contiguous()
        of_gradient = _sum_of(of_gradient, _convolve(x, for_weight, settings))
    if for_bias is not None:
        row = for_bias.contiguous().view(1, -1, *(1,) * (gradient.dim() - 2))
        of_gradient = _sum_of(of_gradient, row.expand(gradient.shape))
    of_weight = _of_weight(for_input, gradient, weight, settings) if for_input is not None and x.numel() else None
    of_input = _of_input(for_weight, gradient, x, settings) if for_weight is not None and x.numel() else None
    return of_gradient, of_input, of_weight


def _sum_of(first: _MaybeTensor, second: torch.Tensor) -> torch.Tensor:
    return second if first is None else first + second


def _convolve(x: torch.Tensor, weight: torch.Tensor, settings: _Settings) -> torch.Tensor:
    return torch.convolution(x, weight, None, *settings)


def _of_weight(
    for_input: torch.Tensor, gradient: torch.Tensor, weight: torch.Tensor, settings: _Settings
) -> torch.Tensor:
    """Convolve input and gradient, summed over the batch, group by group."""
    swapped = settings._replace(stride=settings.dilation, dilation=settings.stride, groups=1, transposed=False)
    gradients, inputs = gradient.transpose(0, 1), for_input.transpose(0, 1)
    parts = []
    for a, b in zip(gradients.chunk(settings.groups), inputs.chunk(settings.groups), strict=True):
        filters = a.contiguous()
        parts.append(_convolve(filters, b, swapped) if settings.transposed else _convolve(b, filters, swapped))
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    return _narrowed(whole.transpose(0, 1), weight.shape)


def _of_input(for_weight: torch.Tensor, gradient: torch.Tensor, x: torch.Tensor, settings: _Settings) -> torch.Tensor:
    back = settings._replace(transposed=not settings.transposed)
    if settings.transposed:
        return _narrowed(_convolve(gradient.contiguous(), for_weight, back), x.shape)
    missing = [
        length - ((kernel - 1) * dilation - 2 * padding + stride * (left - 1) + 1)
        for length, kernel, left, stride, padding, dilation in zip(
            x.shape[2:], for_weight.shape[2:], gradient.shape[2:], *settings[:3], strict=True
        )
    ]
    return _convolve(gradient.contiguous(), for_weight, back._replace(output_padding=missing))


def _narrowed(tensor: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """Cut each dimension but the first two to a size."""
    for index in range(2, tensor.dim()):
        if tensor.shape[index] > size[index]:
            tensor = tensor.narrow(index, 0, size[index])
    return tensor


def _run_window(device: EmulatedDevice, operator: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:  # noqa: ANN401
    size = operator(torch.empty(x.shape, dtype=x.dtype, device="meta"), *rest).shape
    first = device.tensor((x.numel(),), (1,), x.dtype)
    _copy = x.contiguous()
    if size.numel() > x.numel():
        return torch.empty(size, dtype=x.dtype, device=x.device)
    return strided_view(first, size, torch.empty(size, device="meta").stride(), 0)


def _of_contiguous(call: OperatorCall) -> Temporaries:
    """Copy what is read, the input or its result's gradient, where it is not contiguous."""
    return Temporaries(after=copied_bytes(call.args[:1]))


def _contiguous_result(call: OperatorCall) -> Temporaries:
    """Write a result that is not contiguous into a tensor that is, and read such a one."""
    return Temporaries(after=(*_result_copies(call), *copied_bytes(call.args[:1])))


def _contiguous_gradient(call: OperatorCall) -> Temporaries:
    return Temporaries(after=(*copied_bytes(call.args[:1]), *_result_copies(call)))


_OF_CONTIGUOUS: Final = (
    "_adaptive_avg_pool3d_backward", "_upsample_nearest_exact3d_backward", "adaptive_max_pool3d",
    "adaptive_max_pool3d_backward", "avg_pool3d", "avg_pool3d_backward", "reflection_pad1d",
    "reflection_pad1d_backward", "reflection_pad2d", "reflection_pad2d_backward", "reflection_pad3d",
    "upsample_nearest3d_backward",
)  # fmt: skip
_NEAREST: Final = ("upsample_nearest2d", "_upsample_nearest_exact2d")
_NEAREST_3D: Final = ("upsample_nearest3d", "_upsample_nearest_exact3d")
_OTHERS: Final = ("upsample_bilinear2d", "upsample_bicubic2d")


def _result_copies(call: OperatorCall) -> tuple[int, ...]:
    """Return the bytes of contiguous tensors that are written where the results are not contiguous."""
    return tuple(prod(result.size) * result.dtype.itemsize for result in call.results if not _is_contiguous(result))


def _is_contiguous(result: Any) -> bool:  # noqa: ANN401 - see `plans`
    return torch.empty_strided(result.size, result.stride, device="meta").is_contiguous()


def _adaptive_max_backward(call: OperatorCall) -> Temporaries:
    gradient, _, indices = call.args[:3]
    return Temporaries(after=(*copied_bytes((gradient, indices)), *_result_copies(call)))


def _windowed(call: OperatorCall) -> Temporaries:
    return Temporaries(after=_copies_like(call.args[0], call.args[0]))


def _windowed_backward(call: OperatorCall) -> Temporaries:
    gradient, x = call.args[:2]
    return Temporaries(after=_copies_like(x, x, gradient))


def _copies_like(x: torch.Tensor, *tensors: torch.Tensor) -> tuple[int, ...]:
    """Return the bytes of copies of tensors that do not have the layout of `x`, channels last or contiguous."""
    return copied_bytes(tensors, suggested_layout(x))


TEMPORARIES: Final[TemporariesByName] = {
    _WORKSPACE: _workspace_of,
    **dict.fromkeys(("adaptive_max_pool2d", *_NEAREST_3D), _contiguous_result),
    "adaptive_max_pool2d_backward": _adaptive_max_backward,
    "_adaptive_avg_pool2d": lambda call: Temporaries(_copies_like(call.args[0], call.args[0])),
    "_adaptive_avg_pool3d": lambda call: Temporaries(copied_bytes(call.args[:1])),
    "max_pool2d_with_indices": _windowed,
    "max_pool3d_with_indices": _windowed,
    "max_pool3d_with_indices_backward": lambda call: Temporaries(after=_copies_like(call.args[1], call.args[0])),
    "max_pool2d_with_indices_backward": _windowed_backward,
    "avg_pool2d": _windowed,
    "avg_pool2d_backward": _windowed_backward,
    **dict.fromkeys(_OF_CONTIGUOUS, _of_contiguous),
    "upsample_trilinear3d_backward": _contiguous_gradient,
    **dict.fromkeys(_NEAREST, _windowed),
    **dict.fromkeys((f"{name}_backward" for name in (*_NEAREST, *_OTHERS)), _windowed),
}
