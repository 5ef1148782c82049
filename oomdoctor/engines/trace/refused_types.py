"""Types of tensors that CUDA refuses, with PyTorch's words, since a trace runs no kernel that would refuse them.

Types for which there is no kernel are in the table `refused_types.toml`, which says how they were found. What runs in
another type than that of its first tensor is left alone: a pointwise operator of tensors of several types, integers
beside floating-point numbers, or an operator that is given a type.

Types that do not go together are most often a model in half precision and numbers in fp32, without autocast. CUDA's
kernels for shapes take them. Pairs were compared on a null GPU.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from oomdoctor.agent.operator_kinds import tensors_in
from oomdoctor.engines.trace.layouts import HALF_TYPES, POINTWISE
from oomdoctor.engines.trace.torch_internals import TORCH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PATH: Final = Path(__file__).with_name("refused_types.toml")
CALLED: Final = {
    "bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long",
    "float16": "Half", "bfloat16": "BFloat16", "float32": "Float", "float64": "Double",
}  # fmt: skip
"""PyTorch's names of types in its errors, by those in Python."""
TYPES: Final = tuple(getattr(torch, name) for name in CALLED)


@cache
def refusals() -> Mapping[str, Mapping[torch.dtype, str]]:
    """Return what PyTorch says of types that it refuses, by operator without `aten::`."""
    found: dict[str, dict[torch.dtype, str]] = {}
    for row in tomllib.loads(PATH.read_text(encoding="utf-8"))["refusal"]:
        said = {getattr(torch, name): row["says"].replace("{type}", CALLED[name]) for name in row["types"]}
        for operator in row["operators"]:
            found.setdefault(operator, {}).update(said)
    return found


def check_types(operator: Any, args: Any, kwargs: dict[str, Any]) -> None:  # noqa: ANN401 - an operator
    """Refuse tensors of a type for which CUDA has no kernel.

    Raises:
        NotImplementedError: As PyTorch has it.
    """
    refused = _refusals_of(operator)
    if not refused:
        return
    values = (*args, *kwargs.values())
    given = tensors_in(values)
    said = refused.get(given[0].dtype) if given else None
    if said is not None and needs_kernel(operator, given) and not _computes_in_another(operator, values, given):
        raise NotImplementedError(said)


def _computes_in_another(operator: Any, values: Any, given: list[torch.Tensor]) -> bool:  # noqa: ANN401 - an operator
    """Return whether an operator may run in another type than that of its first tensor."""
    if any(isinstance(value, torch.dtype) for value in values):
        return True
    types = {tensor.dtype for tensor in given}
    floats = [dtype.is_floating_point for dtype in types]
    return len(types) > 1 and (POINTWISE in operator.tags or (any(floats) and not given[0].dtype.is_floating_point))


@cache
def _refusals_of(operator: Any) -> Mapping[torch.dtype, str]:  # noqa: ANN401 - an operator
    return refusals().get(operator.name().removeprefix("aten::"), {})


def needs_kernel(operator: Any, given: list[torch.Tensor]) -> bool:  # noqa: ANN401 - an operator
    """Return whether an operator's own kernel surely runs on tensors.

    There is nothing to compute for tensors without elements, some operators do another for numbers, and outer products
    sum nothing.
    """
    is_outer = operator.name() == "aten::bmm" and given[0].shape[-1] == 1
    return not is_outer and all(tensor.numel() and tensor.dim() for tensor in given)


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
_ADDED: Final = "{2} and mat2 must have the same dtype, but got {0} and {1}"
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


class _Classes(NamedTuple):
    """Types that the second argument, the classes, may have, and what PyTorch says of others."""

    says: str
    types: Sequence[torch.dtype] = (torch.int64,)


_OF_ROWS: Final = (
    "expected target dtype to be Long or Byte, but got {}"
    if TORCH >= (2, 13)
    else "\"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for '{}'"
)
_CLASSES: Final = {
    "aten::nll_loss_forward": _Classes(_OF_ROWS, (torch.int64, torch.uint8)),
    "aten::nll_loss2d_forward": _Classes("expected scalar type Long but found {}"),
}


@cache
def _classes_of(operator: Any) -> _Classes | None:  # noqa: ANN401 - an operator
    return _CLASSES.get(operator.name())


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
    if (classes := _classes_of(operator)) is not None and args[1].dtype not in classes.types:
        raise RuntimeError(classes.says.format(_called(args[1].dtype)))
    pairs = _pairs_of(operator)
    if pairs is None:
        return
    for first, second in pairs.places:
        types = [value.dtype for value in (args[first], *args[second : second + 1]) if isinstance(value, torch.Tensor)]
        is_scale = pairs.may_be_float and types[0] in HALF_TYPES and types[-1] is torch.float32
        if types[0] is not types[-1] and not is_scale:
            raise RuntimeError(pairs.says.format(_called(types[0]), _called(types[-1]), ("self", "mat1")[first]))


def _called(dtype: torch.dtype) -> str:
    return CALLED.get(str(dtype).removeprefix("torch."), str(dtype))
