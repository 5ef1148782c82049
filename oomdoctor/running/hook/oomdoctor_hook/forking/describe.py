"""What the first trial's training process was and had imported, for the fork server that later trials start from."""

# ruff: noqa: PTH100, PTH109, PTH118, PTH119 - paths are texts here, and thousands of them are looked at

from __future__ import annotations

import os
import sys
import sysconfig
from typing import Any

from . import identity

_OURS = ("oomdoctor_hook", "oomdoctor", "sitecustomize", "usercustomize", "__main__", "__mp_main__")
_KEPT = "OOMDOCTOR_NULL_"
_FOLDERS = ("site-packages", "dist-packages")


class Noted:
    """What has to be noted before the program changes it.

    Attributes:
        at_start: The environment that the process was started with, as the kernel keeps it.
        at_torch: The environment when torch had been imported.
    """

    at_start: dict[str, str] | None = None
    at_torch: dict[str, str] | None = None


def at_torch_import() -> None:
    """Note the environment that torch was imported with: a program may have set variables for it before."""
    Noted.at_torch = _without_ours(dict(os.environ))
    Noted.at_start = _environment_at_start()


def describe() -> dict[str, Any]:
    """Everything that `server` has to know; JSON can hold it."""
    return {
        "executable": sys.executable,
        "options": _options(),
        "cwd": os.getcwd(),
        "environment": Noted.at_start or _environment_at_start(),
        "environment_at_torch": Noted.at_torch or _without_ours(dict(os.environ)),
        "modules": importable_modules(),
    }


def importable_modules() -> list[str]:
    """Names of modules of Python's and of installed packages, in the order in which their imports began."""
    roots = library_roots()
    return [name for name, module in list(sys.modules.items()) if _is_importable(name, module, roots)]


def library_roots() -> tuple[str, ...]:
    """Folders of Python's own modules and of installed packages, each with a separator at its end."""
    found = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [entry for entry in sys.path if os.path.basename(entry.rstrip(os.sep)) in _FOLDERS]
    every = [path for entry in found if entry for path in (os.path.abspath(entry), os.path.realpath(entry))]
    return tuple(dict.fromkeys(os.path.join(path, "") for path in every))


def is_installed(file: str | None, roots: tuple[str, ...]) -> bool:
    """Whether a module's file is one of Python's or of an installed package."""
    return isinstance(file, str) and os.path.abspath(file).startswith(roots)


def _is_importable(name: str, module: Any, roots: tuple[str, ...]) -> bool:  # noqa: ANN401 - whatever is there
    if name.partition(".")[0] in _OURS:
        return False
    try:
        spec = module.__spec__
        return spec.name == name and is_installed(spec.origin, roots)
    except Exception:  # noqa: BLE001 - programs put anything into `sys.modules`
        return False


def _options() -> list[str]:
    """The interpreter's own options, which the server has to be started with."""
    from .main import split_command_line  # noqa: PLC0415 - only here

    found = split_command_line(identity.command_line(), len(sys.argv))
    return found[0] if found else []


def _environment_at_start() -> dict[str, str]:
    pairs = (os.fsdecode(part).partition("=") for part in identity.read("/proc/self/environ").split(b"\0") if part)
    return _without_ours({name: value for name, _, value in pairs})


def _without_ours(variables: dict[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in variables.items() if not name.startswith("OOMDOCTOR_") or name.startswith(_KEPT)
    }
