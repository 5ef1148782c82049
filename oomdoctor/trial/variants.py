"""Apply a variant to the user's functions: the one place in the worker that knows what each part of it changes.

The default variant changes nothing: the model, the batch and the optimizer are the user's own. The variables of a
variant's environment are set before the worker starts, by `oomdoctor.request`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.errors import TargetError
from oomdoctor.target.contract import build, is_out_of_memory, make_one_batch
from oomdoctor.target.contract import make_optimizer as make_target_optimizer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from oomdoctor.results import Variant
    from oomdoctor.target.contract import Target
    from oomdoctor.target.tracebacks import Passes

Transformation = Callable[[torch.nn.Module], torch.nn.Module]

_AUTOCAST_TYPES: Final = MappingProxyType({"bf16": torch.bfloat16, "fp16": torch.float16})


def _freeze_all_but_last(model: torch.nn.Module) -> torch.nn.Module:
    """Freeze every parameter but the last."""
    for parameter in list(model.parameters())[:-1]:
        parameter.requires_grad_(False)  # noqa: FBT003 - torch's own
    return model


TRANSFORMATIONS: Final[Mapping[str, Transformation]] = MappingProxyType({"_freeze_all_but_last": _freeze_all_but_last})
"""Transformations of the model by name. A name that begins with `_` is for tests of the way that a name takes here."""


def build_model(target: Target, variant: Variant) -> torch.nn.Module:
    """Build the model on the CPU and transform it.

    Raises:
        TargetError: The user's function raised or returned no module, or there is no such transformation.
    """
    model = build(target, passes=is_out_of_memory)
    for name in variant.transformations:
        if name not in TRANSFORMATIONS:
            raise TargetError(f"there is no transformation `{name}`", hint=f"there are {', '.join(TRANSFORMATIONS)}")
        model = TRANSFORMATIONS[name](model)
    return model


def make_batch(target: Target, variant: Variant, batch_size: int, *, passes: Passes = is_out_of_memory) -> Any:  # noqa: ANN401 - any nest
    """Have the file make a batch of `batch_size` samples on the CPU, with the sizes of the variant's axes.

    Raises:
        TargetError: The function raised or returned nothing.
    """
    sizes = {axis.name: axis.size for axis in variant.axes}
    return make_one_batch(target, batch_size, sizes=sizes, passes=passes)


def make_optimizer(target: Target, variant: Variant, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Make the file's own optimizer, or else the variant's.

    Raises:
        TargetError: There is no such optimizer, it cannot be had for this model, or nothing is trained.
    """
    return make_target_optimizer(target, model, variant.optimizer)


def autocast(variant: Variant) -> AbstractContextManager[None]:
    """Return the context in which the forward runs."""
    dtype = _AUTOCAST_TYPES.get(variant.precision)
    return torch.autocast("cuda", dtype=dtype, enabled=dtype is not None)


def gradient_scaler(variant: Variant) -> torch.amp.GradScaler:
    """Return the scaler of the loss, which does nothing outside of fp16."""
    # From 1, not 65536: a first step skipped for an infinite gradient would leave the optimizer without its state.
    return torch.amp.GradScaler("cuda", init_scale=1.0, enabled=variant.precision == "fp16")
