"""Find what holds GPU memory after a trial: the module's attribute or the global name, and the line that fills it."""

from __future__ import annotations

import ast
import gc
import inspect
from collections import deque
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_TENSORS: Final = 4
"""Tensors whose holder is looked for; of a leak each tells the same."""

_DEEPEST: Final = 5
"""Containers in containers between a tensor and the name that holds it."""

_MOST_SEARCHES: Final = 60
"""Searches for what refers to an object; each goes through all objects of the process."""

_MOST_REFERRERS: Final = 20
_CONTAINERS: Final = (list, dict, tuple, set, deque, torch.Tensor)
_FILLING: Final = frozenset({"append", "appendleft", "add", "extend", "insert", "update", "setdefault"})


def find_holder(model: torch.nn.Module, own_roots: Sequence[Path]) -> str | None:
    """Return what holds the tensors that are left on the GPU besides the model's, in words.

    Args:
        model: The user's model.
        own_roots: Directories or files of the user's code.

    Returns:
        Such as `` `kept` (model.py:12) `` or `` `encoder.history` (model.py:34) ``; None where no name holds any.
    """
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    kept = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor) and id(item) not in own]
    kept = [tensor for tensor in kept if tensor.is_cuda][-_MOST_TENSORS:]
    search = _HolderSearch(model, own_roots)
    search.seen.add(id(kept))
    return next(filter(None, map(search.holder_of, kept)), None)


class _HolderSearch:
    """Goes from a tensor to what refers to it, and on, until a name is found.

    Args:
        model: The user's model.
        own_roots: Directories or files of the user's code.

    Attributes:
        seen: Objects that are not looked at again, by id.
    """

    def __init__(self, model: torch.nn.Module, own_roots: Sequence[Path]) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._own_roots = own_roots
        self._left = _MOST_SEARCHES
        self.seen: set[int] = set()

    def holder_of(self, tensor: torch.Tensor) -> str | None:
        """Return the name that holds a tensor, with its line; None where none was found."""
        level: list[object] = [tensor]
        for _ in range(_DEEPEST):
            above: list[object] = []
            self.seen.update((id(level), id(above)))
            for item in level:
                for referrer in self._referrers(item):
                    if isinstance(referrer, dict) and (named := self._named(referrer, item)) is not None:
                        return named
                    if isinstance(referrer, _CONTAINERS):
                        above.append(referrer)
            level = above
        return None

    def _referrers(self, item: object) -> list[object]:
        self._left -= 1
        found = gc.get_referrers(item)[:_MOST_REFERRERS] if self._left >= 0 else []
        new = [referrer for referrer in found if id(referrer) not in self.seen]
        self.seen.update(map(id, new))
        return new

    def _named(self, referrer: dict[object, object], item: object) -> str | None:
        """Return the name under which a module of the model, or one of the user's files, holds an item."""
        key = next((key for key, value in dict.items(referrer) if value is item), None)
        if not isinstance(key, str):
            return None
        for module in gc.get_referrers(referrer):
            if isinstance(module, torch.nn.Module) and id(module) in self._names and vars(module) is referrer:
                path = f"{self._names[id(module)]}.{key}".removeprefix(".")
                return f"`{path}`{_line(_file_of_class(module), key)}"
            if isinstance(module, ModuleType) and vars(module) is referrer and _is_own(module, self._own_roots):
                return f"`{key}`{_line(getattr(module, '__file__', None), key)}"
        return None


def _is_own(module: ModuleType, own_roots: Sequence[Path]) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and any(Path(file).is_relative_to(root) for root in own_roots)


def _file_of_class(module: torch.nn.Module) -> str | None:
    try:
        return inspect.getsourcefile(type(module))
    except TypeError:  # made at run time
        return None


def _line(file: str | None, name: str) -> str:
    """Return the file and the line that fills a name, or else assigns it, in brackets; empty where there is none."""
    try:
        tree = ast.parse(Path(file or "").read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return ""
    lines = sorted(_filling_lines(tree, name)) or sorted(_assigning_lines(tree, name))
    return f" ({Path(file or '').name}:{lines[0]})" if lines else ""


def _filling_lines(tree: ast.AST, name: str) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=holder, attr=method)) if method in _FILLING and _is(holder, name):
                yield node.lineno
            case ast.Subscript(value=holder, ctx=ast.Store()) if _is(holder, name):
                yield node.lineno
            case ast.AugAssign(target=holder) if _is(holder, name):
                yield node.lineno


def _assigning_lines(tree: ast.AST, name: str) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store) and _is(node, name):
            yield node.lineno


def _is(node: ast.AST, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
