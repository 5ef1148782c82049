"""Import of the user's file, the way Python would run it as a script or import it as a module."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.errors import TargetError
from oomdoctor.targets.binding import bind
from oomdoctor.targets.tracebacks import failure, raised_in_user_code, user_traceback

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from oomdoctor.targets.contract import Target
    from oomdoctor.targets.reference import Reference

_PYTHON = ".".join(map(str, sys.version_info[:3]))


def load_target(reference: Reference) -> Target:
    """Import the target and find its functions; for the worker, whose `sys.path` and `sys.argv` become the target's.

    The file's directory (for a file in a package: the directory that holds the package) and the reference's directory
    come first on `sys.path`. What stands under `if __name__ == "__main__"` does not run.

    Raises:
        TargetError: The target cannot be imported, lacks a function, or has one that cannot be called as it has to be.
    """
    try:
        module = _import(reference)
    except BaseException as error:  # noqa: BLE001 - an import runs any code, and `exit()` is some
        problem = _import_failure(error, reference)
    else:
        return bind(reference, module, _own_roots(reference))
    raise problem  # outside of the `except`, so that the error and its frames are let go


def _import(reference: Reference) -> ModuleType:
    sys.argv = [reference.path or reference.location]
    if reference.path is None:
        _put_first_on_path(reference.directory)
        return importlib.import_module(str(reference.module))
    path = Path(reference.path)
    root = _import_root(path)
    _put_first_on_path(str(root), reference.directory)
    if root == path.parent or "." in path.stem:
        return _import_file(path)
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    module = importlib.import_module(name)
    # A package of the same name that is already imported would have been taken instead.
    return module if _same_file(module, path) else _import_file(path)


def _import_file(path: Path) -> ModuleType:
    """Import the one file, under its own name where that is free, so that what it pickles can be found again."""
    name = path.stem
    if name in sys.modules and not _same_file(sys.modules[name], path):
        name = f"_target_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _import_root(path: Path) -> Path:
    """The directory from which the file is imported: above the packages that it is in."""
    root = path.parent
    while (root / "__init__.py").is_file() and root != root.parent:
        root = root.parent
    return root


def _put_first_on_path(*directories: str) -> None:
    sys.path[:] = [*dict.fromkeys(directories), *(entry for entry in sys.path if entry not in directories)]
    importlib.invalidate_caches()


def _same_file(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and os.path.realpath(file) == os.path.realpath(path)


def _own_roots(reference: Reference) -> tuple[Path, ...]:
    """Where the user's code lies: the file's directory, its whole package, or the one file of an installed module."""
    if reference.path is not None:
        path = Path(reference.path)
        root = _import_root(path)
        return (path.parent if root == path.parent else root / path.relative_to(root).parts[0],)
    spec = _find_top(str(reference.module).partition(".")[0])
    if spec is None:
        return ()
    return tuple(map(Path, spec.submodule_search_locations or filter(None, [spec.origin])))


def _find_top(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _import_failure(error: BaseException, reference: Reference) -> TargetError:
    own_roots = _own_roots(reference)
    if isinstance(error, SyntaxError):
        file = reference.location if error.filename in {None, reference.path} else error.filename
        line = "" if error.lineno is None else f" line {error.lineno}"
        return TargetError(
            f"`{file}`{line}: {error.msg}",
            hint=f"correct the line, or run oomdoctor with the Python that it is written for; this is {_PYTHON}",
            details=user_traceback(error, own_roots),
        )
    named = f"{reference.module}.".startswith(f"{error.name}.") if isinstance(error, ImportError) else False
    if isinstance(error, ModuleNotFoundError) and named and not raised_in_user_code(error, own_roots):
        return _module_missing(error, reference)
    return failure(error, f"importing `{reference.location}`", own_roots, hint=_import_hint(error))


def _module_missing(error: ModuleNotFoundError, reference: Reference) -> TargetError:
    parent, _, last = str(reference.module).rpartition(".")
    if parent and hasattr(sys.modules.get(parent), last):
        hint = f"`{last}` is in `{parent}`, not a module of its own: write `{parent}:{last}`"
    else:
        hint = f"modules are looked for in `{reference.directory}` and among those installed for `{sys.executable}`"
    return TargetError(f"there is no module `{error.name}`, which `{reference.location}` names", hint=hint)


def _import_hint(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError):
        return f"install `{error.name}` for `{sys.executable}`, or run oomdoctor where the file's imports are installed"
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        return "add an empty `__init__.py` to the file's directory, or name the target as a module: `package.module`"
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return (
            "the file is imported, without arguments, to find its functions; put what only a script does, such as "
            'reading its arguments, under `if __name__ == "__main__":`'
        )
    return None
