"""The four functions of the user's file, and what each has to give back."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from inspect import isasyncgen, isawaitable, isgenerator
from traceback import format_exception_only
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from oomdoctor.errors import TargetError
from oomdoctor.target.placement import default_training_step, described, tensors_in
from oomdoctor.target.tracebacks import Passes, call_user, failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oomdoctor.target.reference import Reference


Role = Literal["build_model", "make_batch", "training_step", "build_optimizer"]
Result = TypeVar("Result")

DEFAULT_OPTIMIZER = "AdamW"


@dataclass(frozen=True, slots=True)
class FoundFunction:
    """Origin of one function of the contract.

    Attributes:
        role: Its name in the contract.
        name: Its name in the file, with the arguments of the reference; None where a default stands in.
        location: File and line, such as `model.py:12`; None where a default stands in or the source is not known.
        note: What the default does; empty for a function of the file.
    """

    role: Role
    name: str | None
    location: str | None = None
    note: str = ""

    def __str__(self) -> str:
        return self.note if self.name is None else f"`{self.name}`" + (f" at {self.location}" if self.location else "")


@dataclass(frozen=True, slots=True)
class Target:
    """A target, imported.

    Attributes:
        reference: How it was named.
        name: The same as text.
        description: First line of the module's docstring; empty without one.
        own_roots: Directories or files that hold the user's code.
        build_model: Builds the model, with the reference's arguments.
        make_batch: Makes a batch of so many samples.
        training_step: The file's, or the default one.
        build_optimizer: The file's; None where it has none.
        found: One entry for each function of the contract.
    """

    reference: Reference
    name: str
    description: str
    own_roots: tuple[Path, ...]
    build_model: Callable[[], object]
    make_batch: Callable[[int], object]
    training_step: Callable[[torch.nn.Module, Any], torch.Tensor]
    build_optimizer: Callable[[torch.nn.Module], object] | None
    found: tuple[FoundFunction, ...]


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error, or what caused it, is PyTorch's own OutOfMemoryError."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        if isinstance(link, torch.OutOfMemoryError):
            return True
        seen.add(id(link))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return False


def build(target: Target, *, passes: Passes = is_out_of_memory) -> torch.nn.Module:
    """Build the model, where the user's code builds it; placing it is left to the caller.

    Args:
        target: The user's functions.
        passes: Which errors go through as they are, instead of becoming a TargetError.

    Raises:
        TargetError: The function raised, or did not return a module.
    """
    model = _call(target, target.build_model, call=target.reference.call, passes=passes)
    if isinstance(model, torch.nn.Module):
        return model
    raise TargetError(
        f"`{target.reference.call}` returned {described(model)}, not a `torch.nn.Module`", hint=_hint_for_model(model)
    )


def make_one_batch(
    target: Target, batch_size: int, *, sizes: Mapping[str, int] | None = None, passes: Passes = is_out_of_memory
) -> Any:  # noqa: ANN401 - any nest
    """Have the file make a batch of `batch_size` samples; placing it is left to the caller.

    Args:
        target: The user's functions.
        batch_size: Samples.
        sizes: Other sizes, such as a sequence length, which `make_batch` takes as keywords.
        passes: Which errors go through as they are, instead of becoming a TargetError.

    Raises:
        TargetError: The function raised, or returned nothing.
    """
    sizes = sizes or {}
    call = f"make_batch({', '.join([str(batch_size), *(f'{name}={size}' for name, size in sizes.items())])})"
    batch = _call(target, partial(target.make_batch, **sizes), batch_size, call=call, passes=passes)
    if batch is None:
        raise TargetError(f"`{call}` returned None", hint="end `make_batch` with a `return` of the batch")
    return batch


def check_batch(batch: object) -> None:
    """See that `make_batch` returned data, and not something that would make or hold it elsewhere.

    Raises:
        TargetError: It is a generator, a coroutine, an array of another library, or empty.
    """
    if isgenerator(batch) or isawaitable(batch) or isasyncgen(batch):
        raise TargetError(
            f"`make_batch` returned {described(batch)}, which is no batch",
            hint="return the batch itself; a `yield` or an `async` makes something else of the function",
        )
    parts = batch if isinstance(batch, tuple | list) else batch.values() if isinstance(batch, Mapping) else (batch,)
    if any(type(part).__module__ == "numpy" for part in parts):
        raise TargetError(
            "`make_batch` returned NumPy arrays, which cannot be put on a GPU",
            hint="convert them with `torch.from_numpy(...)`",
        )
    if isinstance(batch, tuple | list | Mapping) and not batch:
        raise TargetError(f"`make_batch` returned {described(batch)} that is empty", hint="return the batch's tensors")


def check_batch_sizes(batch_a: object, size_a: int, batch_b: object, size_b: int) -> None:
    """See that `make_batch` heeds `batch_size`: two sizes must not give tensors with the same numbers of elements.

    A batch may be packed or flattened, so nothing is asked of any one dimension; one without tensors tells nothing.

    Raises:
        TargetError: No tensor changed.
    """
    elements_a, elements_b = (sorted(tensor.numel() for tensor in tensors_in(batch)) for batch in (batch_a, batch_b))
    if size_a == size_b or not elements_a or elements_a != elements_b:
        return
    shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors_in(batch_a))
    raise TargetError(
        f"`make_batch` ignores `batch_size`: {size_a} and {size_b} samples gave tensors of the same sizes ({shapes})",
        hint="make the leading dimension of the tensors `batch_size`, as in `torch.randn(batch_size, 3, 224, 224)`",
    )


def check_loss(loss: object) -> None:
    """See that `loss.backward()` will work.

    Raises:
        TargetError: It is not a floating-point scalar tensor that is attached to the graph.
    """
    if not isinstance(loss, torch.Tensor):
        hint = _HINT_FOR_NO_LOSS if loss is None else _HINT_FOR_NO_TENSOR
        raise TargetError(f"`training_step` returned {described(loss)}, not a tensor", hint=hint)
    if loss.dim() != 0:
        raise TargetError(
            f"`training_step` returned {described(loss)}, not a scalar",
            hint="reduce the loss over the batch, for example with `loss.mean()`",
        )
    if not loss.is_floating_point():
        raise TargetError(
            f"`training_step` returned a loss of type `{loss.dtype}`, which has no gradient",
            hint="return the loss that is trained on, not a count or an accuracy",
        )
    if not loss.requires_grad:
        raise TargetError(
            "`training_step` returned a loss that is not attached to the graph: there is no gradient to compute",
            hint="look for `torch.no_grad()`, `.detach()`, `.item()` or `torch.tensor(loss)` on the way to the loss, "
            "or for a model whose parameters are all frozen",
        )


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
        optimizer = _call(target, target.build_optimizer, model, call="build_optimizer(model)", passes=is_out_of_memory)
        if isinstance(optimizer, torch.optim.Optimizer):
            return _without_closure(optimizer)
        raise TargetError(
            f"`build_optimizer(model)` returned {described(optimizer)}, not a `torch.optim.Optimizer`",
            hint="return one optimizer, for example `torch.optim.AdamW(model.parameters(), lr=3e-4)`",
        )
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise TargetError("the model has no parameters that require a gradient", hint="there is nothing to train in it")
    optimizer_class = _optimizer_class(name or DEFAULT_OPTIMIZER)
    call = f"torch.optim.{optimizer_class.__name__}(...)"
    return _without_closure(_call(target, optimizer_class, parameters, call=call, passes=is_out_of_memory))


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


def describe(target: Target) -> dict[str, str]:
    """Return for each function of the contract where it was found, or its default."""
    return {entry.role: str(entry) for entry in target.found}


def step_failure(target: Target, error: BaseException) -> TargetError:
    """Return the error to raise in place of one that forward, backward or the optimizer's step ended with."""
    return failure(error, "the training step", target.own_roots, hint=step_hint(target, error))


def step_hint(target: Target, error: BaseException) -> str | None:
    """Return the hint for an error of the user's code; None for an unknown one."""
    text = "".join(format_exception_only(error))  # an error whose `__str__` raises has a text here too
    if _WRONG_DEVICE.search(text):
        return _HINT_FOR_WRONG_DEVICE
    if "backward through the graph a second time" in text:
        return _HINT_FOR_SECOND_BACKWARD
    if target.training_step is default_training_step and _WRONG_CALL.search(text):
        return _HINT_FOR_WRONG_CALL
    return None


_WRONG_DEVICE = re.compile(
    r"\b(?:on|at) the same device\b|have the same device type"
    r"|Input type \(.*\) and weight type \(.*\) should be the same"
    r"|is not on the expected device"
    r"|must have its parameters and buffers on device"
    r"|Cannot copy out of meta tensor"
    r"|Expected a '\w+' device type for generator"
    r"|invalid device ordinal|[Dd]evice index value \d+ is out of index range"
)
_HINT_FOR_WRONG_DEVICE = (
    "oomdoctor places the model and the batch; remove `.to(...)`, `.cuda()` and `device=` with a fixed device, and "
    "make further tensors where the data is, as in `torch.arange(n, device=x.device)`"
)
_HINT_FOR_SECOND_BACKWARD = (
    "oomdoctor calls `backward()` and steps the optimizer; leave both out of `training_step` and return the loss"
)
_WRONG_CALL = re.compile(r"forward\(\) (?:takes|got|missing)")
_HINT_FOR_WRONG_CALL = (
    "without a `training_step` a tuple or list is called as `model(*batch)`, a dict as `model(**batch)`; define "
    "`training_step(model, batch)` where the model wants it otherwise"
)
_HINT_FOR_NO_LOSS = "end `training_step` with `return loss`"
_HINT_FOR_NO_TENSOR = "return the loss tensor itself, before `.item()` or `float(...)`, and nothing besides"


def _call(target: Target, function: Callable[..., Result], *args: object, call: str, passes: Passes) -> Result:
    advise = partial(step_hint, target)
    return call_user(function, *args, call=call, own_roots=target.own_roots, passes=passes, advise=advise)


def _hint_for_model(value: object) -> str:
    if value is None:
        return "end the function with `return model`"
    if isinstance(value, type):
        return f"return an instance of it: `return {value.__name__}(...)`"
    if isinstance(value, tuple | list) and any(isinstance(item, torch.nn.Module) for item in value):
        return "return the model alone"
    return "the function has to build the model and return it"


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
