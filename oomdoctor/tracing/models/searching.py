"""What is looked up, and where, as kernels want it: contiguous, and of one type.

Source: `searchsorted_maybe_trim_input_tensors`, BucketizationUtils.h; torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from oomdoctor.tracing.taking import Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.taking import Call


def _searched(call: Call) -> Temporaries:
    given = [value for value in call.args[:2] if isinstance(value, torch.Tensor) and value.dim()]
    copied = tuple(t.numel() * t.element_size() for t in given if not t.is_contiguous())
    if len({t.dtype for t in given}) > 1:
        dtype = torch.promote_types(given[0].dtype, given[1].dtype)
        copied += tuple(t.numel() * dtype.itemsize for t in given if t.dtype is not dtype)
    return Temporaries(after=copied)


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = dict.fromkeys(("searchsorted", "bucketize"), _searched)
