"""Compiled code is refused where it is called: what it fuses, and so what it allocates, only the compiler knows."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from oomdoctor.tracing.errors import cannot_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.patches import Patches


def refuse_compiled(patches: Patches) -> None:
    """Let `torch.compile` return what says no as soon as it is called."""
    patches.set(torch, "compile", _compile)
    patches.set(torch.nn.Module, "compile", lambda module, *_, **__: _compile(module) and None)


def _compile(model: Any = None, **options: object) -> Any:  # noqa: ANN401 - a module or a function, as `torch.compile`
    if model is None:
        return lambda given: _compile(given, **options)
    if isinstance(model, torch.nn.Module):
        model.register_forward_pre_hook(_refuse)
        return model
    return _refusing(model)


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def refuse(*_: object, **__: object) -> NoReturn:
        _refuse()

    return refuse


def _refuse(*_: object) -> NoReturn:
    raise cannot_trace("torch.compile")
