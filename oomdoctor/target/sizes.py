"""Sizes besides the batch, such as a sequence length: keywords of `make_batch`, and of `build_model` where it has them.

Each is given to the functions of the file that take it, so that the model of a cell is that of its batch.
"""

from __future__ import annotations

import difflib
import inspect
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from oomdoctor.errors import TargetError
from oomdoctor.target.contract import make_one_batch
from oomdoctor.target.placement import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oomdoctor.target.contract import Target

_SMALL_BATCH = 2


def with_sizes(target: Target, sizes: Mapping[str, int]) -> Target:
    """Return the target with sizes that its functions are called with.

    Args:
        target: The user's functions.
        sizes: Sizes by keyword, in units of their own, such as tokens or pixels.

    Raises:
        TargetError: `make_batch` does not take one of them, or the reference gives `build_model` another one.
    """
    for name, size in sizes.items():
        _check_taken(target, name)
        given = target.reference.kwargs.get(name, size)
        if given != size:
            named = target.reference.text if target.reference.hub else target.reference.call
            raise TargetError(
                f"`{named}` sets `{name}` to {given}, and the batch is asked for with {size}",
                hint=f"drop `{name}={given}` from the target: `build_model` is given the size as well",
            )
    of_model = {name: size for name, size in sizes.items() if model_takes(target, name)}
    return replace(target, sizes=dict(sizes), build_model=partial(target.build_model, **of_model))


def model_takes(target: Target, name: str) -> bool:
    """Return whether `build_model` has a keyword of that name, so that each size needs a model of its own."""
    return name in _keywords(target.build_model)


def check_sizes_change(target: Target) -> None:
    """See that each size changes a tensor of the batch or of the model; where another one raises, nobody can say.

    Raises:
        TargetError: One changes none.
    """
    of_batch = {name: size for name, size in target.sizes.items() if not model_takes(target, name)}
    for name, size in of_batch.items():
        with suppress(TargetError, torch.OutOfMemoryError):
            other = max(1, size // 2) if size > 1 else 2
            shapes = [
                [tensor.shape for tensor in tensors_in(make_one_batch(at, _SMALL_BATCH))]
                for at in (target, replace(target, sizes={**target.sizes, name: other}))
            ]
            if shapes[0] == shapes[1]:
                break
    else:
        return
    raise TargetError(
        f"`{name}` changes no tensor: `make_batch` gives the same shapes for {size} and for {other}",
        hint=f"have `make_batch` make its tensors with `{name}`, or leave the size out",
    )


def _check_taken(target: Target, name: str) -> None:
    sizes = _keywords(target.make_batch)[1:]
    if name in sizes or any(one.kind is one.VAR_KEYWORD for one in _parameters(target.make_batch).values()):
        return
    found = ", ".join(f"`{key}`" for key in sizes) or "none besides the batch size"
    hint = f"give it a keyword: `def make_batch(batch_size, *, {name}=...)`; it takes {found}"
    if near := difflib.get_close_matches(name, sizes, 1) or [size for size in sizes if size.startswith(name)]:
        hint = f"did you mean `{near[0]}`? It takes {found}"
    if model_takes(target, name):
        hint = f"a size of the model alone goes with the target: `{target.reference.with_keywords(f'{name}=...')}`"
    raise TargetError(f"`make_batch` takes no `{name}`", hint=hint)


def _keywords(function: Any) -> list[str]:  # noqa: ANN401 - any callable
    """Return the names of a function's parameters that can be given by keyword."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, parameter in _parameters(function).items() if parameter.kind in kinds]


def _parameters(function: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):  # not written in Python
        return {}
