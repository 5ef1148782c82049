"""Types of tensors for which CUDA has no kernel: refused with PyTorch's words, since a trace runs no kernel that would.

The table `refused_types.toml` says which, and how it was found. What runs in another type than that of its first tensor
is left alone: a pointwise operator of tensors of several types, integers beside floating-point numbers, or an operator
that is given a type.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.agent.operator_kinds import tensors_in
from oomdoctor.engines.trace.layouts import POINTWISE

if TYPE_CHECKING:
    from collections.abc import Mapping

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
