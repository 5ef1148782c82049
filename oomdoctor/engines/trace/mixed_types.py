"""Tensors of several types that CUDA refuses together, with PyTorch's words; its kernels for shapes take them.

Most often a model in half precision is given numbers in fp32, without autocast. Pairs were compared on a null GPU.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from oomdoctor.engines.trace.refused_types import CALLED

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Pairs(NamedTuple):
    """Positions of arguments whose types are to be the same.

    Attributes:
        places: Pairs of positions.
        says: What PyTorch says where they are not.
        may_be_float: Whether the second may be of fp32 where the first is of half precision.
    """

    places: Sequence[tuple[int, int]]
    says: str
    may_be_float: bool = False


_SCALARS: Final = "expected scalar type {} but found {}"
_PRODUCTS: Final = "expected mat1 and mat2 to have the same dtype, but got: {} != {}"
_ADDED: Final = "self and mat2 must have the same dtype, but got {} and {}"
_PUT: Final = (
    "Index put requires the source and destination dtypes match, got {} for the destination and {} for the source."
)
_ALIKE: Final = {
    "mm": _Pairs([(0, 1)], _PRODUCTS),
    "addmm": _Pairs([(0, 2), (1, 2)], _ADDED),
    "convolution": _Pairs(
        [(0, 1), (0, 2)], "Input type (torch.cuda.{}Tensor) and weight type (torch.cuda.{}Tensor) should be the same"
    ),
    "native_layer_norm": _Pairs([(0, 2), (0, 3)], _SCALARS),
    "native_group_norm": _Pairs([(0, 1), (0, 2)], _SCALARS),
    "index_add": _Pairs([(0, 3)], "index_add_(): self ({}) and source ({}) must have the same scalar type"),
    "_index_put_impl_": _Pairs([(0, 2)], _PUT),
    "index_put_": _Pairs([(0, 2)], _PUT),
    "grid_sampler_2d": _Pairs([(0, 1)], _SCALARS),
    "grid_sampler_3d": _Pairs([(0, 1)], _SCALARS),
    "binary_cross_entropy": _Pairs([(0, 1)], "Found dtype {1} but expected {0}"),
}
_ATTENTION: Final = "Expected query, key, and value to have the same dtype, but got query.dtype: {} and another of {}"

_HALVES: Final = (torch.float16, torch.bfloat16)


@cache
def _pairs_of(operator: Any) -> _Pairs | None:  # noqa: ANN401 - an operator
    name = operator.name().partition(".")[0].removeprefix("aten::")
    if name.startswith("_scaled_dot_product"):
        return _Pairs([(0, 1), (0, 2)], _ATTENTION)
    if name.endswith("batch_norm"):
        return _Pairs([(0, 1), (0, 2)], _SCALARS, may_be_float=True)
    return _ALIKE.get(name)


def check_alike(operator: Any, args: Sequence[Any]) -> None:  # noqa: ANN401 - an operator
    """Refuse tensors of different types where CUDA does.

    Raises:
        RuntimeError: As PyTorch has it.
    """
    pairs = _pairs_of(operator)
    if pairs is None:
        return
    for first, second in pairs.places:
        types = [value.dtype for value in (args[first], *args[second : second + 1]) if isinstance(value, torch.Tensor)]
        is_scale = pairs.may_be_float and types[0] in _HALVES and types[-1] is torch.float32
        if types[0] is not types[-1] and not is_scale:
            raise RuntimeError(pairs.says.format(*map(_called, types)))


def _called(dtype: torch.dtype) -> str:
    return CALLED.get(str(dtype).removeprefix("torch."), str(dtype))
