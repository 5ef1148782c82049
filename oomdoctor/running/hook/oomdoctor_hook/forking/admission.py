"""Whether a fork of the server may stand for a process. What is not known to be harmless is refused."""

# ruff: noqa: PTH109, PTH112, PTH113, PTH118, PTH208 - as in `main`

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any, NamedTuple

from .describe import library_roots
from .main import first_path, split_command_line

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


class Server(NamedTuple):
    """What a process has to agree with.

    Attributes:
        interpreter: The server's own, as `identity.interpreter` says it.
        environment: What the described process was started with.
        path: `sys.path` as a program finds it, without its own folder.
        reads: Variables that were read during the imports.
        changes: What the imports did to the environment; a program hands that on to those that it starts.
    """

    interpreter: dict[str, Any]
    environment: dict[str, str]
    path: list[str]
    reads: set[str]
    changes: dict[str, str | None]


def refusal(process: dict[str, Any], server: Server) -> str:
    """Why the process has to run by itself; empty where it need not."""
    for name, value in server.interpreter.items():
        if process["interpreter"].get(name) != value:
            return f"another {name}"
    if None in process["streams"]:
        return "a stream is closed"
    missing = [entry for entry in process["path"] if entry not in server.path and not _is_hook(entry)]
    if missing:
        return f"`{missing[0]}` in its path"
    variable = _differing_variable(process["environment"], server)
    return f"another `{variable}`" if variable else _program_refusal(process)


def _is_hook(entry: str) -> bool:
    return entry == os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120


def _differing_variable(environment: dict[str, str], server: Server) -> str | None:
    for name in {*environment, *server.environment}:
        if environment.get(name) != server.environment.get(name) and _matters(name, environment, server):
            return name
    return None


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
    """A module of the server's that a program would find in its own folder instead."""
    if os.path.join(os.path.realpath(folder), "") in library_roots():
        return None
    names = {name.partition(".")[0] for name in sys.modules}
    return next((name for name in (_module_name(folder, entry) for entry in os.listdir(folder)) if name in names), None)


def _module_name(folder: str, entry: str) -> str | None:
    for suffix in (".py", ".pyc", *EXTENSION_SUFFIXES):
        if entry.endswith(suffix):
            return entry[: -len(suffix)]
    is_package = os.path.isfile(os.path.join(folder, entry, "__init__.py"))
    return entry if is_package else None
