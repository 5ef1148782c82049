"""Admission: describe a Python process and its command line, and refuse what a fork of the server cannot stand for."""

# ruff: noqa: PTH100, PTH109, PTH112, PTH113, PTH118, PTH119, PTH120, PTH208 - paths are texts, and there are thousands

from __future__ import annotations

import builtins
import functools
import os
import pkgutil
import runpy
import sys
import sysconfig
import types
from importlib.machinery import EXTENSION_SUFFIXES
from typing import TYPE_CHECKING, Any, NamedTuple

from . import proxy

if TYPE_CHECKING:
    from collections.abc import Callable


_OWN_MODULES = ("oomdoctor_agent", "oomdoctor", "sitecustomize", "usercustomize", "__main__", "__mp_main__")
_KEPT = "OOMDOCTOR_NULL_"
_FOLDERS = ("site-packages", "dist-packages")

_PLAIN_OPTIONS = frozenset("bBdOPqRsuv")
_OPTIONS_WITH_VALUE = ("-W", "-X")
_ABSOLUTE_SINCE = (3, 9)

_CHANGING = ("OOMDOCTOR_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
"""Beginnings of names that a trial or a launcher gives another value each time, and that no import depends on."""

_HARMLESS = frozenset(
    {
        *("PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "PYTHONUNBUFFERED", "FORK_LAUNCHED"),
        *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"),
    }
)
_RANKS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0"}
"""Variables of launchers that imports do look at, and what they mean where they are missing."""

_CARD = "OOMDOCTOR_NULL_"
_READ_BY_NATIVE_CODE = (
    *("TORCH", "PYTORCH", "ATEN", "C10", "CUDA", "CUBLAS", "CUDNN", "NVIDIA", "NCCL", "GLOO", "TRITON", "TF_", "XLA"),
    *("JAX", "OMP_", "GOMP_", "KMP_", "MKL", "OPENBLAS", "BLIS", "DNNL", "ONEDNN", "NUMEXPR", "LD_", "MALLOC_"),
    *("GLIBC_", "TCMALLOC", "LC_", "LANG", "LOCPATH", "TZ", "PYTHON", _CARD),
)
"""Beginnings of names that native code may have read when it was loaded, which nobody sees."""


_NOTED: dict[str, dict[str, str]] = {}
"""Environments by name: `start` as the kernel keeps it, and `torch` when torch had been imported."""


def at_torch_import() -> None:
    """Note the environment that torch was imported with: a program may have set variables for it before."""
    _NOTED["torch"] = _without_ours(dict(os.environ))
    _NOTED["start"] = _environment_at_start()


def describe_process() -> dict[str, Any]:
    """Return everything that the server has to know; JSON can hold it."""
    split = split_command_line(proxy.command_line(), len(sys.argv))
    roots = library_roots()
    return {
        "executable": sys.executable,
        "options": split[0] if split else [],
        "cwd": os.getcwd(),
        "environment": _NOTED.get("start") or _environment_at_start(),
        "environment_at_torch": _NOTED.get("torch") or _without_ours(dict(os.environ)),
        # Those of Python and of installed packages, in the order in which their imports began.
        "modules": [name for name, module in list(sys.modules.items()) if _is_importable(name, module, roots)],
    }


def library_roots() -> tuple[str, ...]:
    """Return the folders of Python's modules and of installed packages, each with a separator at its end."""
    found = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [entry for entry in sys.path if entry and _holds_installed(entry)]
    every = [path for entry in found if entry for path in (os.path.abspath(entry), os.path.realpath(entry))]
    return tuple(dict.fromkeys(os.path.join(path, "") for path in every))


@functools.lru_cache(maxsize=None)
def _holds_installed(folder: str) -> bool:
    """Return whether a folder of `PYTHONPATH`, say, is one that packages are installed into, whatever its name.

    An installer leaves a `.dist-info` for each package, and none beside a project's own modules, also where that is
    installed to be edited; and a torch that was built has its `version.py`. A program that was started in such a folder
    may have its own modules there, which are not to be imported before it.
    """
    if os.path.basename(folder.rstrip(os.sep)) in _FOLDERS:
        return True
    try:
        names = os.listdir(folder)
        is_elsewhere = os.path.realpath(folder) != os.path.realpath(os.getcwd())
    except OSError:  # an archive, or nothing
        return False
    is_torch = "torch" in names and os.path.isfile(os.path.join(folder, "torch", "version.py"))
    return is_elsewhere and (is_torch or any(name.endswith(".dist-info") for name in names))


def is_installed(file: str | None, roots: tuple[str, ...]) -> bool:
    """Return whether a module's file is one of Python's or of an installed package."""
    return isinstance(file, str) and os.path.abspath(file).startswith(roots)


def _is_importable(name: str, module: Any, roots: tuple[str, ...]) -> bool:  # noqa: ANN401 - whatever is there
    if name.partition(".")[0] in _OWN_MODULES:
        return False
    try:
        spec = module.__spec__
        return spec.name == name and is_installed(spec.origin, roots)
    except Exception:  # noqa: BLE001 - programs put anything into `sys.modules`
        return False


def _environment_at_start() -> dict[str, str]:
    pairs = (os.fsdecode(part).partition("=") for part in proxy.read_file("/proc/self/environ").split(b"\0") if part)
    return _without_ours({name: value for name, _, value in pairs})


def _without_ours(variables: dict[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in variables.items() if not name.startswith("OOMDOCTOR_") or name.startswith(_KEPT)
    }


# --- command lines ----------------------------------------------------------------------------------------------------


def split_command_line(command_line: list[str], arguments: int) -> tuple[list[str], str, bool] | None:
    """Take a command line of Python apart; None where it is an unusual one.

    Args:
        command_line: All of it.
        arguments: Number of its last words that are in `sys.argv`, with the program itself.

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
    """Return the entry that Python puts first into `sys.path` for a script or a module; None for none."""
    if getattr(sys.flags, "safe_path", False):
        return None
    return os.getcwd() if is_module else os.path.dirname(os.path.realpath(target))


def prepare_main(target: str, *, is_module: bool, had: dict[str, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Make `__main__` and complete `sys.path`.

    Args:
        target: The script or the module.
        is_module: Which of these.
        had: The names of `__main__` at the start of a Python like this one.

    Returns:
        The function to call, and its arguments.
    """
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    namespace = vars(module)
    if "__annotations__" in had:
        namespace["__annotations__"] = {}
    namespace["__builtins__"] = builtins
    if not is_module and pkgutil.get_importer(target) is not None:  # a folder or an archive
        sys.path.insert(0, _full_name(target))
        return runpy._run_module_as_main, ("__main__", False)  # type: ignore[attr-defined]  # noqa: SLF001 - as C does
    first = first_path(target, is_module=is_module)
    if first is not None:
        sys.path.insert(0, first)
    if is_module:
        return runpy._run_module_as_main, (target, True)  # type: ignore[attr-defined]  # noqa: SLF001 - as C does
    # Not earlier: what it reads of the environment is the program's, not the server's.
    from ..literals import prepare_script  # noqa: PLC0415

    return prepare_script(target, namespace)


def _full_name(path: str) -> str:
    return os.path.join(os.getcwd(), path) if sys.version_info >= _ABSOLUTE_SINCE else path


# --- admission --------------------------------------------------------------------------------------------------------


class Server(NamedTuple):
    """The server that a process would be forked from.

    Attributes:
        interpreter: The server's own, as `proxy.interpreter` says it.
        environment: The environment that the described process was started with.
        path: `sys.path` as a program finds it, without its own folder.
        reads: Variables that were read during the imports.
        changes: Changes that the imports made to the environment; a program hands them on to those that it starts.
    """

    interpreter: dict[str, Any]
    environment: dict[str, str]
    path: list[str]
    reads: set[str]
    changes: dict[str, str | None]


def refusal(process: dict[str, Any], server: Server) -> str:
    """Return why the process has to run by itself; empty where it need not."""
    for name, value in server.interpreter.items():
        if process["interpreter"].get(name) != value:
            return f"another {name}"
    if None in process["streams"]:
        return "a stream is closed"
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + "/bootstrap"
    missing = [entry for entry in process["path"] if entry not in (*server.path, own)]
    if missing:
        return f"`{missing[0]}` in its path"
    environment = process["environment"]
    for name in {*environment, *server.environment}:
        if environment.get(name) != server.environment.get(name) and _matters(name, environment, server):
            return f"another `{name}`"
    return _program_refusal(process)


def _matters(name: str, environment: dict[str, str], server: Server) -> bool:
    if name in _RANKS:
        ours, theirs = (each.get(name, _RANKS[name]) for each in (server.environment, environment))
        return name in server.reads and ours != theirs
    if name in server.changes and environment.get(name) == server.changes[name]:
        return False
    if name in _HARMLESS or (name.startswith(_CHANGING) and not name.startswith(_CARD)):
        return False
    return name in server.reads or name.startswith(_READ_BY_NATIVE_CODE)


def _program_refusal(process: dict[str, Any]) -> str:
    split = split_command_line(process["command_line"], len(process["argv"]))
    if split is None:
        return "an unusual command line"
    _, target, is_module = split
    if not is_module and (process["argv"][0] != target or target.endswith(".pyc")):
        return "an unusual program"
    here = os.getcwd()
    os.chdir(process["cwd"])
    try:
        if not is_module and not os.access(target, os.R_OK):
            return "a program that cannot be read"
        first = first_path(target, is_module=is_module)
        shadowed = _shadowed(first) if first and not os.path.isdir(target) else None
        return f"its folder has another `{shadowed}`" if shadowed else ""
    finally:
        os.chdir(here)


def _shadowed(folder: str) -> str | None:
    """Return a module of the server's that a program would find in its own folder instead."""
    if os.path.join(os.path.realpath(folder), "") in library_roots():
        return None
    names = {name.partition(".")[0] for name in sys.modules}
    for entry in os.listdir(folder):
        suffix = next((each for each in (".py", ".pyc", *EXTENSION_SUFFIXES) if entry.endswith(each)), "")
        name = entry[: len(entry) - len(suffix)]
        if name in names and (suffix or os.path.isfile(os.path.join(folder, entry, "__init__.py"))):
            return name
    return None
