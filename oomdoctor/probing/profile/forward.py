"""Which module's forward runs: marks at the beginning and the end of each call, also of those in the backward pass."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

from oomdoctor.probing.profile.marks import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from oomdoctor.probing.profile.graph import GraphWatch
    from oomdoctor.probing.profile.marks import Marks


@contextmanager
def watching_modules(modules: Sequence[nn.Module], marks: Marks, graph: GraphWatch) -> Iterator[None]:
    """Mark the calls of `modules`, which are named by their positions, for as long as this is entered."""
    handles = [handle for index in _hookable(modules) for handle in _hook(modules[index], index, marks, graph)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hookable(modules: Sequence[nn.Module]) -> Iterator[int]:
    """All but scripted modules, which take no hooks, and what lies inside of compiled ones, whose hooks do not run."""
    inside = {id(part) for module in modules if _is_compiled(module) for part in module.modules() if part is not module}
    for index, module in enumerate(modules):
        compiled_itself = getattr(module, "_compiled_call_impl", None) is not None
        if id(module) not in inside and not compiled_itself and not isinstance(module, torch.jit.ScriptModule):
            yield index


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def _hook(module: nn.Module, index: int, marks: Marks, graph: GraphWatch) -> tuple[RemovableHandle, RemovableHandle]:
    return (
        module.register_forward_pre_hook(partial(_enter, index, marks, graph), prepend=True),
        module.register_forward_hook(partial(_leave, index, marks, graph), always_call=True),
    )


def _enter(index: int, marks: Marks, graph: GraphWatch, _module: nn.Module, _args: object) -> None:
    if not torch.compiler.is_compiling():
        marks.note(Kind.ENTER, index)
        graph.entered(index)


def _leave(index: int, marks: Marks, graph: GraphWatch, _module: nn.Module, _args: object, output: object) -> None:
    if not torch.compiler.is_compiling():
        marks.note(Kind.LEAVE, index)
        graph.left(output)
