"""Names of a model's modules, as people call them: without wrappers, and alike layers as one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

_WRAPPED: Final = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Names under which wrappers hold the module that they wrap, whatever the wrapper."""
_PARALLEL: Final = (nn.DataParallel, nn.parallel.DistributedDataParallel)
_POSITION: Final = re.compile(r"\d+$")


def named_modules(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Every module once, with its path; list positions are `*` where the list holds modules of one kind.

    What `torch.compile`, `DataParallel` and checkpointing put around a module adds nothing to a path.
    """
    yield from _walk(model, (), set())


def _walk(module: nn.Module, path: tuple[str, ...], seen: set[int]) -> Iterator[tuple[nn.Module, str]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    yield module, ".".join(path)
    children = [(name, child) for name, child in module._modules.items() if child is not None]  # noqa: SLF001 - as torch's own walk
    is_list = isinstance(module, nn.ModuleList) or len({type(child) for _, child in children}) == 1
    holds_many = isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
    for name, child in children:
        shown = _POSITION.sub("*", name) if holds_many and is_list else name
        yield from _walk(child, path if _is_wrapped(module, name) else (*path, shown), seen)


def _is_wrapped(parent: nn.Module, name: str) -> bool:
    return name in _WRAPPED or (name == "module" and isinstance(parent, _PARALLEL))
