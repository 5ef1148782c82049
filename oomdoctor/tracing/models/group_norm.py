"""Group norm: rows of numbers that a kernel needs between its passes, and copies of what lies otherwise.

Source: group_norm_kernel.cu, and `native_group_norm_backward`, group_norm.cpp, torch 2.6. What 2.15 does otherwise
(pull request 191945) was seen on null GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from oomdoctor.tracing.layouts import suggested_layout
from oomdoctor.tracing.taking import Temporaries
from oomdoctor.tracing.version import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.taking import Call

_FLOAT: Final = 4
_HALVES: Final = (torch.float16, torch.bfloat16)
_IS_NEW: Final = TORCH >= (2, 15)
"""Whether kernels copy what is not contiguous, which the operator above them did before, and read channels last."""


def _forward(call: Call) -> Temporaries:
    x, weight, bias, batch, channels, pixels, groups = call.args[:7]
    is_last = _is_last(x)
    sums = (batch * groups * _FLOAT,) * 2 if _IS_NEW and x.dtype in _HALVES else ()
    is_scaled = pixels > 1 and (weight is not None or bias is not None or is_last)
    factors = (batch * channels * _FLOAT,) * 2 if is_scaled else ()
    return Temporaries(after=(*_copies(x), *sums, *factors))


def _backward(call: Call) -> Temporaries:
    (gradient, x), weight, (batch, channels, pixels, groups) = call.args[:2], call.args[4], call.args[5:9]
    each, grouped = batch * channels * _FLOAT, batch * groups * _FLOAT
    copies = _copies(x, gradient)
    if pixels == 1:
        return Temporaries(copies, (grouped, grouped) if _IS_NEW else (each, each, grouped, grouped))
    factors = () if weight is None or _is_last(x) else (each,)
    return Temporaries(copies, (each, each, grouped, grouped, *factors))


def _is_last(x: torch.Tensor) -> bool:
    return _IS_NEW and suggested_layout(x) is not torch.contiguous_format


def _copies(x: torch.Tensor, *others: torch.Tensor) -> tuple[int, ...]:
    if not _IS_NEW:
        return ()
    layout = suggested_layout(x)
    given = (x, *others)
    return tuple(t.numel() * t.element_size() for t in given if not t.is_contiguous(memory_format=layout))


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {
    "native_group_norm": _forward,
    "native_group_norm_backward": _backward,
}
