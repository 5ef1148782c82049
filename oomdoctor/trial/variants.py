"""Apply a variant to the user's functions: the one place in the worker that knows what each part of it changes.

The default variant changes nothing: the model, the batch and the optimizer are the user's own. The variables of a
variant's environment are set before the worker starts, by `oomdoctor.request`.
"""

from __future__ import annotations

import difflib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import torch

from oomdoctor.errors import TargetError
from oomdoctor.target.contract import DEFAULT_OPTIMIZER, build, call_user, is_out_of_memory
from oomdoctor.target.placement import described
from oomdoctor.trial.lone_rank import HINT_FOR_META, hinted_for_meta

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from oomdoctor.remedies.applied import Changes
    from oomdoctor.results import Variant
    from oomdoctor.target.contract import Passes, Target

_AUTOCAST_TYPES: Final = MappingProxyType({"bf16": torch.bfloat16, "fp16": torch.float16})


def build_model(
    target: Target,
    changes: Changes,
    *,
    on_meta: bool = False,
    hint: str = HINT_FOR_META,
    passes: Passes = is_out_of_memory,
) -> torch.nn.Module:
    """Build the model on the CPU, or on the meta device for its caller to give it memory, and change it.

    Args:
        target: The user's functions.
        changes: What a variant changes in it.
        on_meta: Whether it is built without memory.
        hint: What to do about an error that names the meta device.
        passes: Which errors go through as they are.

    Raises:
        TargetError: The user's function raised or returned no module, or a change has nothing to change in it.
    """
    if not on_meta:
        return changes.model(build(target, passes=passes))
    with torch.device("meta"), hinted_for_meta(hint):
        return changes.model(build(target, passes=passes, on_meta=True))


def make_optimizer(target: Target, model: torch.nn.Module, name: str | None) -> torch.optim.Optimizer:
    """Make the file's own optimizer, else the `torch.optim` class of that name, else AdamW, over what is trained.

    Args:
        target: The user's functions.
        model: What to train.
        name: Name of a `torch.optim` class in any case; it gives way to the file's `build_optimizer`.

    Raises:
        TargetError: There is no such optimizer, it cannot be had for this model, or nothing is trained.
    """
    if target.build_optimizer is not None:
        optimizer = call_user(target, target.build_optimizer, model, call="build_optimizer(model)")
        if isinstance(optimizer, torch.optim.Optimizer):
            return _without_closure(optimizer)
        raise TargetError(
            f"`build_optimizer(model)` returned {described(optimizer)}, not a `torch.optim.Optimizer`",
            hint=_optimizer_hint(optimizer),
        )
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise TargetError("the model has no parameters that require a gradient", hint="there is nothing to train in it")
    optimizer_class = _optimizer_class(name or DEFAULT_OPTIMIZER)
    call = f"torch.optim.{optimizer_class.__name__}(...)"
    return _without_closure(call_user(target, optimizer_class, parameters, call=call))


def _optimizer_hint(returned: object) -> str:
    """Return what to do about what is no optimizer; of several, what stands for them."""
    if isinstance(returned, list | tuple | dict) and len(returned) > 1:
        return (
            "a file has one optimizer. Where several train one model, return one with a group of parameters for each:\n"
            '`torch.optim.AdamW([{"params": first}, {"params": second, "lr": 1e-3}])`. Where they take turns, as in a\n'
            "GAN, or are of several classes, give the training command instead, which may have several:\n"
            "`-- python train.py --batch-size {micro_batch}`"
        )
    return "return one optimizer, for example `torch.optim.AdamW(model.parameters(), lr=3e-4)`"


def _without_closure(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TargetError(
            "LBFGS evaluates the loss again and again through a closure, and trials take plain steps",
            hint="choose an optimizer whose `step()` takes no closure",
        )
    return optimizer


def optimizer_names() -> list[str]:
    """Return the names of the classes of `torch.optim`, such as `AdamW`."""
    classes = [item for item in vars(torch.optim).values() if isinstance(item, type)]
    return sorted(
        item.__name__
        for item in classes
        if issubclass(item, torch.optim.Optimizer) and item not in (torch.optim.Optimizer, torch.optim.LBFGS)
    )


def _optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    by_lower_case = {known.lower(): known for known in optimizer_names()}
    if name.lower() in by_lower_case:
        found: type[torch.optim.Optimizer] = getattr(torch.optim, by_lower_case[name.lower()])
        return found
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=3, cutoff=0.5)
    names = [f"`{by_lower_case[key]}`" for key in near or by_lower_case]
    raise TargetError(
        f"`torch.optim` has no optimizer `{name}`",
        hint=f"did you mean {' or '.join(names)}?" if near else f"it has {', '.join(names)}",
    )


def autocast(variant: Variant) -> AbstractContextManager[None]:
    """Return the context in which the forward runs."""
    dtype = _AUTOCAST_TYPES.get(variant.precision)
    return torch.autocast("cuda", dtype=dtype, enabled=dtype is not None)


def gradient_scaler(variant: Variant) -> torch.amp.GradScaler:
    """Return the scaler of the loss, which does nothing outside of fp16."""
    # From 1, not 65536: a first step skipped for an infinite gradient would leave the optimizer without its state.
    return torch.amp.GradScaler("cuda", init_scale=1.0, enabled=variant.precision == "fp16")
