"""Fourier transforms: cuFFT's work areas, and the copies that PyTorch makes.

cuFFT tells the size of a work area on a GPU alone. It is counted as on a null GPU: nothing for short transforms since
CUDA 13, else as many complex numbers as the complex side has, which the documentation names as the least.

Source: `_fft_r2c_cufft`, `_fft_c2r_cufft` and `_exec_fft`, SpectralOps.cpp; for the rule see `cufft.c` of the null
GPU.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.op_trace import Temporaries
from oomdoctor.engines.trace.torch_internals import TORCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.engines.trace.op_trace import OperatorCall, TemporariesByName

_TRANSFORMS: Final = ("_fft_r2c", "_fft_c2r", "_fft_c2c")
_SHORT, _SHORT_OUTER = 512, 128
_SINCE_CUDA: Final = 13
_CUDA_13_WHEELS: Final = (2, 11)
"""First torch whose wheels are built for CUDA 13, for builds that have no CUDA themselves."""


def _has_short_without_area() -> bool:
    built_for = torch.version.cuda
    return TORCH >= _CUDA_13_WHEELS if built_for is None else int(built_for.partition(".")[0]) >= _SINCE_CUDA


def needs_work_area(name: str, args: Sequence[Any]) -> bool:
    """Return whether a transform has a work area, whose size is counted by a rule."""
    return name in _TRANSFORMS and bool(_work_area(name, args))


def _work_area(name: str, args: Sequence[Any]) -> tuple[int, ...]:
    """Return the bytes of a transform's work area; nothing where it has none."""
    given, dims = args[:2]
    if not dims:
        return ()
    lengths = [given.shape[dim] for dim in dims]
    numbers, itemsize = given.numel(), given.element_size()
    if name == "_fft_c2r":
        numbers, lengths[-1] = numbers // lengths[-1] * (args[3] // 2 + 1), args[3]
    elif name == "_fft_r2c":
        numbers, itemsize = numbers // lengths[-1] * (lengths[-1] // 2 + 1), 2 * itemsize
    is_short = lengths[-1] <= _SHORT and all(length <= _SHORT_OUTER for length in lengths[:-1])
    return () if is_short and _has_short_without_area() else (numbers * itemsize,)


def _transform(name: str, call: OperatorCall) -> Temporaries:
    """Take the work area; what becomes real is copied before, since cuFFT overwrites it, and so is what has gaps."""
    given = call.args[0]
    nbytes = given.numel() * given.element_size()
    copies: tuple[int, ...] = ()
    if name == "_fft_c2r":
        given, copies = torch.empty(given.shape, device="meta"), (nbytes,)
    if not _has_one_batch(given, call.args[1]):
        copies += (nbytes,)
    return Temporaries(after=(*copies, *_work_area(name, call.args)))


def _has_one_batch(given: torch.Tensor, dims: Sequence[int]) -> bool:
    """Return whether the dimensions that are not transformed are one, in the order of their strides."""
    chosen = {dim % given.dim() for dim in dims}
    rest = sorted(({*range(given.dim())} - chosen), key=given.stride, reverse=True)
    return all(
        given.stride(outer) == given.shape[inner] * given.stride(inner)
        for outer, inner in pairwise(dim for dim in rest if given.shape[dim] > 1)
    )


TEMPORARIES: Final[TemporariesByName] = {name: partial(_transform, name) for name in _TRANSFORMS}
