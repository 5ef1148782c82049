"""What a command line of Python runs, and how to run it as Python itself would."""

# ruff: noqa: PTH109, PTH118, PTH120 - as Python does it, on texts

from __future__ import annotations

import builtins
import os
import runpy
import sys
import types
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_PLAIN_OPTIONS = frozenset("bBdOPqRsuv")
_OPTIONS_WITH_VALUE = ("-W", "-X")
_ABSOLUTE_SINCE = (3, 9)


def split_command_line(command_line: list[str], arguments: int) -> tuple[list[str], str, bool] | None:
    """Take a command line of Python apart; None where it is an unusual one.

    Args:
        command_line: All of it.
        arguments: How many of its last are in `sys.argv`, with the program itself.

    Returns:
        The interpreter's options, the script or module, and whether it is a module.
    """
    position = len(command_line) - arguments
    if arguments < 1 or position < 1:
        return None
    options, target = command_line[1:position], command_line[position]
    is_module = _take_module_option(options)
    if target.startswith("-") or not _are_usual(options):
        return None
    return options, target, is_module


def _take_module_option(options: list[str]) -> bool:
    if not options or options[-1].startswith("--") or options[-1] in _OPTIONS_WITH_VALUE:
        return False
    last = options[-1]
    if not (last.startswith("-") and last.endswith("m") and set(last[1:-1]) <= _PLAIN_OPTIONS):
        return False
    if options[-2:-1] and options[-2] in _OPTIONS_WITH_VALUE:
        return False
    options.pop()
    if last != "-m":
        options.append(last[:-1])
    return True


def _are_usual(options: list[str]) -> bool:
    rest = iter(options)
    for option in rest:
        if option in _OPTIONS_WITH_VALUE:
            next(rest, None)
        elif option.startswith(_OPTIONS_WITH_VALUE):
            continue
        elif not option.startswith("-") or len(option) == 1 or not set(option[1:]) <= _PLAIN_OPTIONS:
            return False
    return True


def first_path(target: str, *, is_module: bool) -> str | None:
    """What Python puts first into `sys.path` for a script or a module; None for nothing."""
    if getattr(sys.flags, "safe_path", False):
        return None
    return os.getcwd() if is_module else os.path.dirname(os.path.realpath(target))


def prepare(target: str, *, is_module: bool, had: dict[str, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Make `__main__` and complete `sys.path`.

    Args:
        target: The script or the module.
        is_module: Which of these.
        had: What `__main__` had in it at the start of a Python like this one.

    Returns:
        What to call, and with what.
    """
    namespace = _new_main(had)
    if not is_module and _is_package(target):
        sys.path.insert(0, _full_name(target))
        return runpy._run_module_as_main, ("__main__", False)  # type: ignore[attr-defined]  # noqa: SLF001 - as C does
    first = first_path(target, is_module=is_module)
    if first is not None:
        sys.path.insert(0, first)
    if is_module:
        return runpy._run_module_as_main, (target, True)  # type: ignore[attr-defined]  # noqa: SLF001 - as C does
    return _script(target, namespace)


def _is_package(path: str) -> bool:
    import pkgutil  # noqa: PLC0415 - in the program's process

    return pkgutil.get_importer(path) is not None


def _full_name(path: str) -> str:
    return os.path.join(os.getcwd(), path) if sys.version_info >= _ABSOLUTE_SINCE else path


def _new_main(had: dict[str, Any]) -> dict[str, Any]:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    namespace = vars(module)
    if "__annotations__" in had:
        namespace["__annotations__"] = {}
    namespace["__builtins__"] = builtins
    return namespace


def _script(path: str, namespace: dict[str, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    name = _full_name(path)
    namespace["__file__"] = name
    if sys.version_info < (3, 15):
        namespace["__cached__"] = None
    namespace["__loader__"] = SourceFileLoader("__main__", name)
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - as above
            code = compile(file.read(), name, "exec", dont_inherit=True)
    except Exception as error:  # noqa: BLE001 - it is raised where the program's errors are
        return _raise, (error.with_traceback(None),)
    return exec, (code, namespace)


def _raise(error: BaseException) -> None:
    raise error
