"""Set a target's objects back to what they held before a trial. Runs in the worker.

Models keep activations of the last step in attributes, hooks write them to dictionaries, and steps to globals. On the
device they are in the next trial's way, as they would not be in a new process. So what the target's objects hold is
noted once the model is placed, and set back after a trial that left memory behind. Where that does not give all of it
back, the worker is replaced, which takes seconds.

What is on the device when it is noted is left alone: to hold it, or what leads to it, would be to change what a step
takes.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from functools import _lru_cache_wrapper, partial
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.agent.holders import find_holder
from oomdoctor.trial.process_state import own_modules
from oomdoctor.trial.trial import await_release, release_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

_MOST_OBJECTS: Final = 100_000
"""Objects that are looked at; a data set that is a list of samples has more."""
_LEFT_ALONE: Final = object()
"""Stands for a value that is not set back."""
_EMPTY: Final = object()
"""Stands for the content of an empty cell, and for a name that is not there."""
_LEAVES: Final = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device, ModuleType)


class TargetState:
    """Contents of a target's objects as they were when its model was placed.

    Args:
        model: The model, on the device.
        own_roots: Directories or files of the user's code.

    Attributes:
        has_kept_memory: Whether the objects kept memory of any trial.
    """

    def __init__(self, model: torch.nn.Module, own_roots: Sequence[Path]) -> None:
        self._model, self._start_bytes = model, torch.cuda.memory_allocated()
        self.has_kept_memory = False
        owners = [module for _, module in own_modules(own_roots)]
        networks = list(model.modules())
        self._objects = _Objects([*map(vars, owners), *networks], {module.__name__ for module in owners})
        self._undo: list[Callable[[], None]] = []
        for owner in owners:
            self._note_table(vars(owner))
        for network in networks:
            self._note_network(network)
        for one in self._objects.of_host():
            self._note(one)
        del self._objects  # which holds all of them

    def find_holder(self, is_own: Callable[[str], bool]) -> str | None:
        """Return what holds the memory that is left of a trial, in words; see `oomdoctor.agent.holders`."""
        await_release(self._model, self._start_bytes)
        return find_holder(self._model, is_own)

    def give_back(self) -> None:
        """Have memory as it was before a trial, and all objects hold what they held where they keep some of it."""
        if not self.has_kept_memory:
            await_release(self._model, self._start_bytes)
            self.has_kept_memory = torch.cuda.memory_allocated() > self._start_bytes
        if self.has_kept_memory:
            for undo in self._undo:
                undo()
            release_memory(self._model)
            await_release(self._model, self._start_bytes)

    def _note(self, one: Any) -> None:  # noqa: ANN401 - any object of the user's
        if isinstance(one, dict):
            self._note_table(one)
        elif isinstance(one, list | deque):
            before = tuple(one)
            self._undo.append(lambda: _restore_sequence(one, before))
        elif isinstance(one, CellType):
            content = _content(one)
            self._undo.append(lambda: _restore_cell(one, content))
        elif isinstance(one, _lru_cache_wrapper) and not one.cache_info().currsize:
            self._undo.append(one.cache_clear)
        elif isinstance(one, type) and self._objects.is_own_class(one):
            names = self._kept(vars(one))
            self._undo.append(lambda: _restore_class(one, names))

    def _note_table(self, table: dict[Any, Any]) -> None:
        before = self._kept(table)
        self._undo.append(lambda: _restore_table(table, before))

    def _note_network(self, network: torch.nn.Module) -> None:
        """Note a network's attributes and buffers; a step may let go of the network itself."""
        alive = weakref.ref(network)
        attributes, buffers = self._kept(vars(network)), self._kept(network._buffers)  # noqa: SLF001 - no public table

        def undo() -> None:
            if (found := alive()) is not None:
                _restore_table(vars(found), attributes)
                _restore_table(found._buffers, buffers)  # noqa: SLF001 - as above

        self._undo.append(undo)

    def _kept(self, table: Any) -> dict[Any, object]:  # noqa: ANN401 - a dictionary or a view of one
        return {key: value if self._objects.is_of_host(value) else _LEFT_ALONE for key, value in table.items()}


class _Objects:
    """Objects that others lead to, and which of them lead to the device.

    Args:
        first: Those to begin at.
        names: Names of the user's modules, whose classes are looked into.
    """

    def __init__(self, first: Iterable[object], names: set[str]) -> None:
        self._names = names
        self._found: dict[int, object] = {}
        self._from: dict[int, list[int]] = {}
        waiting = deque(first)
        while waiting and len(self._found) < _MOST_OBJECTS:
            one = waiting.popleft()
            if id(one) not in self._found:
                self._found[id(one)] = one
                for part in self._parts(one):
                    self._from.setdefault(id(part), []).append(id(one))
                    waiting.append(part)
        self._of_device = self._leading([key for key, one in self._found.items() if _is_of_device(one)])
        # Nothing is known of what was not looked at.
        self._of_device |= self._leading([key for key in self._from if key not in self._found])

    def of_host(self) -> Iterator[object]:
        """Yield all that do not lead to the device."""
        return (one for key, one in self._found.items() if key not in self._of_device)

    def is_of_host(self, value: object) -> bool:
        """Return whether a value of one of them does not lead to the device."""
        return isinstance(value, _LEAVES) or (id(value) in self._found and id(value) not in self._of_device)

    def is_own_class(self, one: type) -> bool:
        """Return whether a class is the user's; those of libraries are left as they are."""
        return one.__module__ in self._names

    def _leading(self, last: list[int]) -> set[int]:
        found: set[int] = set()
        waiting = list(last)
        while waiting:
            key = waiting.pop()
            if key not in found:
                found.add(key)
                waiting += self._from.get(key, [])
        return found

    def _parts(self, one: Any) -> list[object]:  # noqa: ANN401 - any object of the user's
        return [part for part in self._all_parts(one) if not isinstance(part, _LEAVES)]

    def _all_parts(self, one: Any) -> Iterator[object]:  # noqa: ANN401 - as above
        """Yield what an object holds; not of functions their globals, nor of others' classes anything."""
        if isinstance(one, dict):
            yield from dict.values(one)
        elif isinstance(one, list | tuple | deque | set | frozenset):
            yield from one
        elif isinstance(one, CellType):
            yield _content(one)
        elif isinstance(one, FunctionType):
            yield from one.__closure__ or ()
        elif isinstance(one, MethodType):
            yield from (one.__self__, one.__func__)
        elif isinstance(one, partial):
            yield from (one.func, one.args, one.keywords)
        elif isinstance(one, type):
            yield from vars(one).values() if self.is_own_class(one) else ()
        elif _has_own_state(one) and isinstance(state := _attributes(one), dict):
            yield state


def _is_of_device(one: object) -> bool:
    """Return whether an object is on the device, or is a network, whose parameters are."""
    return isinstance(one, torch.nn.Module) or (isinstance(one, torch.Tensor) and one.is_cuda)


def _has_own_state(one: object) -> bool:
    """Return whether what an object holds is its own affair; a logger, say, leads to all others of the process."""
    is_of_python = type(one).__module__.partition(".")[0] in sys.stdlib_module_names
    return not isinstance(one, torch.Tensor) and (not is_of_python or isinstance(one, SimpleNamespace))


def _attributes(one: object) -> object:
    try:
        return object.__getattribute__(one, "__dict__")  # without the user's own code
    except AttributeError:
        return None


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _restore_table(table: dict[Any, Any], before: dict[Any, object]) -> None:
    for key in [key for key in table if key not in before]:
        del table[key]
    for key, value in before.items():
        if value is not _LEFT_ALONE and table.get(key, _EMPTY) is not value:
            table[key] = value


def _restore_sequence(items: list[Any] | deque[Any], before: tuple[object, ...]) -> None:
    if len(items) != len(before) or any(one is not other for one, other in zip(items, before, strict=True)):
        items.clear()
        items.extend(before)


def _restore_cell(cell: CellType, before: object) -> None:
    if before is not _EMPTY:
        cell.cell_contents = before
    elif _content(cell) is not _EMPTY:
        del cell.cell_contents


def _restore_class(owner: type, before: dict[str, object]) -> None:
    for name in [name for name in vars(owner) if name not in before]:
        delattr(owner, name)
    for name, value in before.items():
        if value is not _LEFT_ALONE and vars(owner).get(name, _EMPTY) is not value:
            setattr(owner, name, value)
