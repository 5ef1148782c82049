"""Find what holds GPU memory: an attribute, a global or a local name, and the line that fills it.

Where a user's file is tried, that is what is left after a trial. In a command's process it is what one optimizer step
makes and the next one does not let go of.
"""

# ruff: noqa: ANN401, SLF001 - torch has no type here; frames have no public way; imported where needed

from __future__ import annotations

import ast
import gc
import inspect
import sys
import weakref
from collections import deque
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

_MOST_TENSORS = 4
"""Tensors whose holder is looked for; of a leak each tells the same."""

_DEEPEST = 5
"""Containers in containers between a tensor and the name that holds it."""

_MOST_SEARCHES = 60
"""Searches for what refers to an object; each goes through all objects of the process."""

_MOST_REFERRERS = 20
_FILLING = frozenset({"append", "appendleft", "add", "extend", "insert", "update", "setdefault"})
_LAST_WITH_COPIES = (3, 12)
"""Pythons up to this one keep a copy of a frame's variables, once somebody has asked for them."""


def find_holder(model: Any, is_own: Callable[[str], bool]) -> str | None:
    """Return what holds the tensors that are left on the GPU besides the model's, in words.

    Args:
        model: The user's model, an `nn.Module`.
        is_own: Tells of a file whether it is the user's code.

    Returns:
        Such as `` `kept` (model.py:12) `` or `` `encoder.history` (model.py:34) ``; None where no name holds any.
    """
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    kept = [tensor for tensor in _gpu_tensors() if id(tensor) not in own][-_MOST_TENSORS:]
    return _HolderSearch(is_own, {id(module): name for name, module in model.named_modules()}, {}).first_of(kept)


def _gpu_tensors() -> list[Any]:
    kind = sys.modules["torch"].Tensor
    found = [item for item in gc.get_objects() if issubclass(type(item), kind)]
    return [tensor for tensor in found if tensor.is_cuda]


class LeakSearch:
    """Finds what holds the tensors that one step makes and that outlive the next, in a process that trains.

    Args:
        is_own: As for `find_holder`.

    Attributes:
        holder: What holds them, in words; None as long as nothing is known to.
    """

    def __init__(self, is_own: Callable[[str], bool]) -> None:
        self._is_own = is_own
        self._before: dict[int, Any] | None = None
        self._made: list[Any] | None = None
        self.holder: str | None = None

    def step_ended(self) -> None:
        """Look at the tensors of now; the third step tells, and those after it cost nothing."""
        if self._before is None:
            self._before = {id(tensor): weakref.ref(tensor) for tensor in _gpu_tensors()}
        elif self._made is None:
            known = self._before
            self._made = [weakref.ref(each) for each in _gpu_tensors() if not _is_alive(known.get(id(each)))]
        elif self._made:
            alive = [tensor for tensor in (each() for each in self._made) if tensor is not None]
            alive.sort(key=lambda tensor: -tensor.numel() * tensor.element_size())
            self._made = []
            names = self._local_names()
            self.holder = _HolderSearch(self._is_own, {}, names).first_of(alive[:_MOST_TENSORS])

    def _local_names(self) -> dict[int, tuple[str, CodeType]]:
        """Return the local variables of the program's functions that are running, by the id of what they hold."""
        found: dict[int, tuple[str, CodeType]] = {}
        frame: Any = sys._getframe()
        while frame is not None:
            if self._is_own(frame.f_code.co_filename) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
                variables = frame.f_locals
                found.update((id(value), (name, frame.f_code)) for name, value in variables.items())
                if sys.version_info[:2] <= _LAST_WITH_COPIES:
                    variables.clear()  # else it would keep the tensors of this step
            frame = frame.f_back
        return found


def _is_alive(reference: Any) -> bool:
    return reference is not None and reference() is not None


class _HolderSearch:
    """Goes from a tensor to what refers to it, and on, until a name is found.

    Args:
        is_own: Tells of a file whether it is the user's code.
        modules: Names of the model's modules by their ids; others go by their class.
        local_names: Local variables, each with its function, by the ids of what they hold.
    """

    def __init__(
        self, is_own: Callable[[str], bool], modules: dict[int, str], local_names: dict[int, tuple[str, CodeType]]
    ) -> None:
        self._is_own = is_own
        self._modules = modules
        self._local_names = local_names
        self._left = _MOST_SEARCHES
        self._seen: set[int] = set()
        self._containers = (list, dict, tuple, set, deque, sys.modules["torch"].Tensor)

    def first_of(self, tensors: list[Any]) -> str | None:
        """Return what holds the first of the tensors that a name holds; None where none does."""
        self._seen.add(id(tensors))
        return next(filter(None, map(self._holder_of, tensors)), None)

    def _holder_of(self, tensor: Any) -> str | None:
        level: list[Any] = [tensor]
        for _ in range(_DEEPEST):
            above: list[Any] = []
            self._seen.update((id(level), id(above)))
            for item in level:
                if id(item) in self._local_names:
                    name, code = self._local_names[id(item)]
                    return f"`{name}`{_line(code.co_filename, name)}"
                for referrer in self._referrers(item):
                    named = self._named(referrer, item)
                    if named is not None:
                        return named
                    if isinstance(referrer, self._containers):
                        above.append(referrer)
            level = above
        return None

    def _referrers(self, item: Any) -> list[Any]:
        self._left -= 1
        found = gc.get_referrers(item)[:_MOST_REFERRERS] if self._left >= 0 else []
        new = [referrer for referrer in found if id(referrer) not in self._seen]
        self._seen.update(map(id, new))
        return new

    def _named(self, referrer: Any, item: Any) -> str | None:
        """Return the name under which an object, or one of the user's files, holds an item."""
        if not isinstance(referrer, dict):  # an object whose attributes have no dictionary of their own yet
            return self._attribute(referrer, item)
        holders = gc.get_referrers(referrer) if _key_of(referrer, item) is not None else []
        return next(filter(None, (self._attribute(one, item) for one in holders if _variables(one) is referrer)), None)

    def _attribute(self, holder: Any, item: Any) -> str | None:
        name = _key_of(_variables(holder), item)
        if name is None:
            return None
        if isinstance(holder, ModuleType):
            file = getattr(holder, "__file__", None)
            return f"`{name}`{_line(file, name)}" if file is not None and self._is_own(file) else None
        file = _file_of_class(holder)
        if id(holder) in self._modules:
            return f"`{self._modules[id(holder)]}.{name}`{_line(file, name)}".replace("`.", "`")
        return f"`{type(holder).__name__}.{name}`{_line(file, name)}" if file and self._is_own(file) else None


def _variables(holder: Any) -> Any:
    """Return the attributes of an object as it keeps them; None of a function, a class, or what has none."""
    if inspect.isroutine(holder) or isinstance(holder, type):
        return None
    try:
        return object.__getattribute__(holder, "__dict__")  # no code of the object's own
    except AttributeError:
        return None


def _key_of(variables: Any, item: Any) -> str | None:
    if not isinstance(variables, dict):
        return None
    key = next((key for key, value in dict.items(variables) if value is item), None)
    return key if isinstance(key, str) else None


def _file_of_class(holder: Any) -> str | None:
    try:
        return inspect.getsourcefile(type(holder))
    except (TypeError, OSError):  # made at run time
        return None


def _line(file: str | None, name: str) -> str:
    """Return the file and the line that fills a name, or else assigns it, in brackets; empty where there is none."""
    path = Path(file or "")
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return ""
    lines = sorted(_filling_lines(tree, name)) or sorted(_assigning_lines(tree, name))
    return f" ({path.name}:{lines[0]})" if lines else ""


def _filling_lines(tree: ast.AST, name: str) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _FILLING and _is(node.func.value, name):
                yield node.lineno
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if _is(node.value, name):
                yield node.lineno
        elif isinstance(node, ast.AugAssign) and _is(node.target, name):
            yield node.lineno


def _assigning_lines(tree: ast.AST, name: str) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store) and _is(node, name):
            yield node.lineno


def _is(node: ast.AST, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
