"""Call back when a module has been imported, without a trace on the module.

It keeps its own spec and its own loader.
"""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import sys

TYPE_CHECKING = False  # type checkers know the name; `typing` takes longer to import than all of this

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_waiting: dict[str, list[Callable[[], None]]] = {}


def when_imported(name: str, begin: Callable[[], None]) -> None:
    """Call `begin` once the module `name` has been imported, after others that wait for it; at once where it is."""
    if name in sys.modules:
        _begin(begin)
        return
    if not _waiting:
        sys.meta_path.insert(0, _Watcher)
    _waiting.setdefault(name, []).append(begin)


class _Watcher:
    """A finder that finds nothing itself: it asks the others, and listens to the loader that they name."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        """Give the spec that the other finders give for `name`; None for all that is not waited for.

        Programs also look for a module without importing it, so the waiting ends when one is loaded.
        """
        if name not in _waiting:
            return None
        spec = _ask_others(cls, name, path, target)
        try:  # noqa: SIM105 - `contextlib` would be imported for it
            _listen(spec.loader, name)
        except Exception:  # noqa: BLE001, S110 - no such module, or a loader that cannot be listened to
            pass
        return spec


def _ask_others(own: Any, name: str, path: Any, target: Any) -> Any:
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        if finder is own or find_spec is None:
            continue
        spec = find_spec(name, path, target)
        if spec is not None:
            return spec
    return None


def _listen(loader: Any, name: str) -> None:
    """Begin after the loader has run its module; the loader is as it was while the module runs."""
    run = loader.exec_module

    def exec_module(module: Any) -> None:
        del loader.exec_module
        run(module)
        waiting = _waiting.pop(name, [])
        if not _waiting and _Watcher in sys.meta_path:
            sys.meta_path.remove(_Watcher)
        for begin in waiting:
            _begin(begin)

    loader.exec_module = exec_module


def _begin(begin: Callable[[], None]) -> None:
    writes = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # the agent's folder belongs to another Python's installation
    try:
        begin()
    except Exception:  # noqa: BLE001, S110 - the program's import has worked, and that is what counts
        pass
    finally:
        sys.dont_write_bytecode = writes
