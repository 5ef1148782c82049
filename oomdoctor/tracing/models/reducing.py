"""What each operator that reduces takes: its partial results, and a copy of what its kernel cannot read as it lies.

Source: `make_reduction` in ReduceOpsUtils.h, ReduceOps.cpp, ReduceAllOps.cpp, and the kernels Reduce*Kernel.cu, torch
2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.tracing.models.reductions import partial_results
from oomdoctor.tracing.taking import Temporaries
from oomdoctor.tracing.version import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.taking import Call

_HALVES: Final = (torch.float16, torch.bfloat16)
_WORD: Final = 4
_PLACE_AND_VALUE: Final = 16
"""An index of 64 bits, and a value, padded to as much."""
_NUMBERS_OF_WELFORD: Final = 4
"""Mean, squared differences, and the count twice, as an integer and as a number."""
_VECTOR_OF_WELFORD: Final = 2 if TORCH >= (2, 7) else 1
"""Where each thread goes through two values at once, 2.6 reads no vectors, and 2.15 vectors of two."""
_TRUTHS_ARE_BOOLS: Final = TORCH >= (2, 7)
"""Partial results of `any` and `all` are bools in 2.15, and of the input's type in 2.6."""


def _sum(call: Call) -> Temporaries:
    """Summed in fp32, or in the result's type where that is larger, of values that were given that type."""
    tensor, dtype = call.args[0], _result_type(call)
    is_read_as_it_is = tensor.dtype in (dtype, *_HALVES) if dtype is torch.float32 else tensor.dtype is dtype
    return _partial(call, None if is_read_as_it_is else dtype, max(_WORD, dtype.itemsize))


def _extreme(call: Call) -> Temporaries:
    return _partial(call, None, call.args[0].element_size())


def _whole_extreme(call: Call) -> Temporaries:
    """The least and the largest of all, at once or one of them."""
    both = 2 if len(call.results) > 1 else 1
    return _of_contiguous(call, both * call.args[0].element_size())


def _both_extremes(call: Call) -> Temporaries:
    if call.kwargs.get("dim") is None:
        return _whole_extreme(call)
    return _partial(call, None, 2 * call.args[0].element_size())


def _place(call: Call) -> Temporaries:
    return _partial(call, None, _PLACE_AND_VALUE)


def _extreme_and_place(call: Call) -> Temporaries:
    """Of a dimension; without one it is the value alone."""
    return _place(call) if len(call.args) > 1 else _whole_extreme(call)


def _place_of_all(call: Call) -> Temporaries:
    """Over all where no dimension is given, laid flat."""
    if _dims(call) is not None:
        return _place(call)
    return _of_contiguous(call, _PLACE_AND_VALUE, flat=True)


def _truth(call: Call) -> Temporaries:
    return _partial(call, None, 1 if _TRUTHS_ARE_BOOLS else call.args[0].element_size())


def _spread(call: Call) -> Temporaries:
    """Variance by Welford's algorithm, in fp32 or fp64."""
    item = _NUMBERS_OF_WELFORD * max(_WORD, call.args[0].element_size())
    return _partial(call, None, item, _VECTOR_OF_WELFORD)


def _partial(call: Call, dtype: torch.dtype | None, item_bytes: int, *vector: int) -> Temporaries:
    tensor = _meta(call.args[0])
    copy: tuple[int, ...] = ()
    if dtype is not None:
        tensor = tensor.to(dtype)
        copy = (tensor.numel() * tensor.element_size(),)
    return Temporaries(after=(*copy, *partial_results(call.card, tensor, _dims(call), item_bytes, *vector)))


def _of_contiguous(call: Call, item_bytes: int, *, flat: bool = False) -> Temporaries:
    tensor = _meta(call.args[0])
    whole = tensor.reshape(-1) if flat else tensor.contiguous()
    is_copied = whole.untyped_storage()._cdata != tensor.untyped_storage()._cdata  # noqa: SLF001 - its identity
    copy = (whole.numel() * whole.element_size(),) if is_copied else ()
    return Temporaries(after=(*copy, *partial_results(call.card, whole, None, item_bytes)))


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _dims(call: Call) -> Any:  # noqa: ANN401 - a list of integers, or None
    """Over which dimensions, given as one or several, by place or by name."""
    given = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    if isinstance(given, bool) or not isinstance(given, int | list | tuple):
        return None
    return (given,) if isinstance(given, int) else given


def _result_type(call: Call) -> torch.dtype:
    result = call.kwargs.get("out", call.results[0])
    dtype: torch.dtype = result.dtype
    return dtype


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {
    **dict.fromkeys(("sum", "nansum", "mean", "prod"), _sum),
    **dict.fromkeys(("amax", "amin"), _extreme),
    **dict.fromkeys(("max", "min"), _extreme_and_place),
    "aminmax": _both_extremes,
    **dict.fromkeys(("argmax", "argmin"), _place_of_all),
    **dict.fromkeys(("any", "all"), _truth),
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _spread),
}
