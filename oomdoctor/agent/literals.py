"""Literals: values that a trial gives to names of the program's own files, as if their lines had been edited.

The parent has found the place of each (`oomdoctor.target.literals`). The source is changed between reading and
compiling: the file stays as it is, and so do the numbers of its lines, and no bytecode of it is kept.
"""

# ruff: noqa: ANN401, PTH113, PTH118 - what programs hand over has no type here; paths are texts

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import decode_source
from typing import TYPE_CHECKING, Any

from . import settings
from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

_EDITS: dict[str, list[list[Any]]] = json.loads(settings.LITERALS or "{}")
"""By real path: line, column in bytes of UTF-8, the same of its end, the text that stands there, and the new one."""

_ABSOLUTE_SINCE = (3, 9)
_WITHOUT_CACHED = (3, 15)
_TOLD: list[Callable[[str], Any]] = []


def begin(tell: Callable[[str], Any]) -> None:
    """Change what is compiled from now on: imported modules, `python -m`, `runpy`, and the script of `python FILE`.

    Args:
        tell: Called with the real path of each file that was changed and is about to run.
    """
    _TOLD.append(tell)
    _wrap_imports()
    _wrap_runpy()
    is_fork = hasattr(sys.modules["__main__"], "__file__")  # whose script `prepare_script` compiles anyway
    if not is_fork and not sys.flags.inspect:
        sys.addaudithook(_ScriptStart())


def edited_code(path: str, data: bytes) -> CodeType | None:
    """Return the code of a file with its literals set; None where none is to be set, or it has changed meanwhile."""
    real = os.path.realpath(path)
    source = guarded(_edited)(data, _EDITS[real]) if real in _EDITS else None
    if source is None:
        return None
    code: CodeType = compile(source, path, "exec", dont_inherit=True)
    for tell in _TOLD:
        tell(real)
    return code


def _edited(data: bytes, edits: list[list[Any]]) -> str | None:
    body = decode_source(data).encode()
    starts = [0]
    for text in body.split(b"\n"):
        starts.append(starts[-1] + len(text) + 1)
    for line, column, end_line, end_column, old, new in sorted(edits, reverse=True):
        first, last = starts[line - 1] + column, starts[end_line - 1] + end_column
        if body[first:last].decode(errors="replace") != old:
            return None
        breaks = "\n" * (end_line - line)
        body = body[:first] + (f"({new}{breaks})" if breaks else new).encode() + body[last:]
    return body.decode()


def prepare_script(path: str, namespace: dict[str, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Give `__main__` the names that Python gives it before it runs a script.

    Args:
        path: The script.
        namespace: Names of `__main__`.

    Returns:
        The function to call, and its arguments.
    """
    name = os.path.join(os.getcwd(), path) if sys.version_info >= _ABSOLUTE_SINCE else path  # noqa: PTH109 - a text
    namespace["__file__"] = name
    if sys.version_info < _WITHOUT_CACHED:
        namespace["__cached__"] = None
    namespace["__loader__"] = SourceFileLoader("__main__", name)
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a text
            data = file.read()
        code = edited_code(name, data) or compile(data, name, "exec", dont_inherit=True)
    except Exception as error:  # noqa: BLE001 - it is raised where the program's errors are
        return _raise, (error.with_traceback(None),)
    return exec, (code, namespace)


def _raise(error: BaseException) -> None:
    raise error


def _wrap_imports() -> None:
    loader: Any = next(base for base in SourceFileLoader.__mro__ if "get_code" in vars(base))
    original = loader.get_code

    @functools.wraps(original)
    def get_code(self: Any, fullname: str) -> Any:
        path = self.get_filename(fullname)
        if os.path.realpath(path) not in _EDITS:
            return original(self, fullname)
        return edited_code(path, self.get_data(path)) or original(self, fullname)

    loader.get_code = get_code


def _wrap_runpy() -> None:
    """Change what `runpy.run_path` runs, with which multiprocessing starts a script's children again."""
    module: Any = runpy
    original = module._get_code_from_file  # noqa: SLF001 - no loader is asked

    @functools.wraps(original)
    def get_code_from_file(*arguments: Any) -> Any:
        path = os.fsdecode(arguments[-1])
        code = None
        if os.path.realpath(path) in _EDITS:
            with open(path, "rb") as file:  # noqa: PTH123 - a text
                code = edited_code(path, file.read())
        if code is None:
            return original(*arguments)
        return code if len(arguments) == 1 else (code, path)  # the second until Python 3.11

    module._get_code_from_file = get_code_from_file  # noqa: SLF001


class _ScriptStart:
    """Runs the script of `python FILE` where its literals are set, at the moment at which Python would read it.

    Python asks its audit hooks before that, with `sys.path` and `__main__` ready, and what such a hook raises ends the
    process as what the script raises does, `SystemExit` included. No loader is asked for a script.
    """

    __cantrace__ = True  # or the script would run without the program's own tracing and without a debugger

    def __init__(self) -> None:
        self._is_over = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_over or event != "cpython.run_file":
            return
        self._is_over = True
        path = os.fsdecode(arguments[0])
        if os.path.realpath(path) not in _EDITS or not os.path.isfile(path):
            return
        function, values = prepare_script(path, vars(sys.modules["__main__"]))
        try:
            function(*values)
        except SystemExit:
            raise
        except BaseException:
            _hide_frame()
            raise
        raise SystemExit


def _hide_frame() -> None:
    """Show the error that ends the program without our frames beneath it."""
    before = sys.excepthook

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        sys.excepthook = before
        rest = trace
        while rest is not None and rest.tb_frame.f_code.co_filename == __file__:
            rest = rest.tb_next
        sys.last_traceback = rest
        before(kind, error.with_traceback(rest), rest)

    sys.excepthook = excepthook
