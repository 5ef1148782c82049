"""Import the user's file, the way Python would run it as a script or import it as a module, and bind its functions."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import linecache
import os
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from oomdoctor.errors import TargetError
from oomdoctor.target.contract import (
    DEFAULT_OPTIMIZER,
    FoundFunction,
    Role,
    Target,
    failure,
    raised_in_user_code,
    user_traceback,
)
from oomdoctor.target.hubs import generate
from oomdoctor.target.placement import default_training_step, described

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec

    from oomdoctor.target.reference import Reference


_ARGUMENTS: dict[Role, tuple[str, ...]] = {
    "make_batch": ("batch_size",),
    "training_step": ("model", "batch"),
    "build_optimizer": ("model",),
    "parallelize": ("model", "mesh"),
    "evaluation_step": ("model", "batch"),
}
_DEFAULTS: dict[Role, str] = {
    "training_step": 'default: the model is called on the batch; its scalar, `.loss` or ["loss"] is taken',
    "build_optimizer": f"default: `torch.optim.{DEFAULT_OPTIMIZER}` unless `--optimizer` names another",
}
_TEMPLATES: dict[Role, str] = {
    "build_model": """\
def build_model():
    return {model}
""",
    "make_batch": """\
def make_batch(batch_size):  # the largest batch that training sees at this size
    images = torch.randn(batch_size, 3, 224, 224)
    labels = torch.randint(0, 1000, (batch_size,))
    return images, labels
""",
    "training_step": """\
def training_step(model, batch):  # not needed where the model returns its loss
    images, labels = batch
    return torch.nn.functional.cross_entropy(model(images), labels)
""",
}
_MOST_LISTED = 12


def bind(reference: Reference, module: ModuleType, own_roots: tuple[Path, ...]) -> Target:
    """Find the functions of the contract in the imported module.

    Raises:
        TargetError: One is missing, is not a function, or cannot be called as it has to be.
    """
    builder_name = reference.attribute or "build_model"
    builder = _lookup(module, builder_name)
    if builder is None and reference.attribute is not None:
        raise _attribute_missing(reference, module)
    others = {role: _lookup(module, role) for role in _ARGUMENTS}
    functions: dict[Role, Any] = {"build_model": builder, **others}
    for role, function in functions.items():
        _check_callable(reference, builder_name if role == "build_model" else role, function)
    if builder is None or functions["make_batch"] is None:
        raise _functions_missing(reference, module, functions)
    args, kwargs = (reference.args, reference.kwargs) if reference.hub is None else ((), {})
    _check_call(builder, args, kwargs, f"{reference.location}:{reference.call}")
    for role, function in others.items():
        if function is not None:
            _check_call(function, _ARGUMENTS[role], {}, f"{role}({', '.join(_ARGUMENTS[role])})")
    return Target(
        reference=reference,
        name=reference.text,
        description=next(iter((module.__doc__ or "").strip().splitlines()), ""),
        own_roots=own_roots,
        build_model=partial(builder, *args, **kwargs),
        make_batch=functions["make_batch"],
        training_step=functions["training_step"] or default_training_step,
        build_optimizer=functions["build_optimizer"],
        parallelize=functions["parallelize"],
        evaluation_step=functions["evaluation_step"],
        found=tuple(
            _found(reference, role, function)
            for role, function in functions.items()
            if function is not None or role in _DEFAULTS
        ),
    )


def _lookup(module: ModuleType, name: str) -> Any:  # noqa: ANN401 - the user's file holds anything
    """Return the module's attribute `name`, which may be dotted; None where there is none."""
    item: Any = module
    for part in name.split("."):
        item = getattr(item, part, None)
    return item


def _found(reference: Reference, role: Role, function: Callable[..., object] | None) -> FoundFunction:
    if function is None:
        return FoundFunction(role, None, note=_DEFAULTS[role])
    return FoundFunction(
        role, reference.call if role == "build_model" else role, _location(function, reference.directory)
    )


def _location(function: Any, directory: str) -> str | None:  # noqa: ANN401 - any callable
    """File and line where it is defined, from `directory` where it is inside."""
    try:
        source = inspect.unwrap(function.func if isinstance(function, partial) else function)
        file, line = Path(inspect.getsourcefile(source) or ""), inspect.getsourcelines(source)[1]
    except (OSError, TypeError, ValueError):  # made at run time, or not written in Python
        return None
    return f"{file.relative_to(directory) if file.is_relative_to(directory) else file}:{max(line, 1)}"


def _check_callable(reference: Reference, name: str, function: object) -> None:
    if function is None or (callable(function) and not isinstance(function, torch.nn.Module)):
        return
    value = described(function)
    example = f"def build_model():\n    return {name}" if isinstance(function, torch.nn.Module) else f"def {name}(...):"
    raise TargetError(
        f"`{name}` in `{reference.location}` is {value}, not a function",
        hint=f"define a function, so that it can be called anew:\n\n{_indented(example)}",
    )


def _check_call(
    function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object], call: str
) -> None:
    """See that the function takes these arguments; one whose signature cannot be had is left to the call itself."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        problem = str(error)
    else:
        return
    unknown = [name for name in kwargs if name not in signature.parameters]
    near = [near for name in unknown for near in difflib.get_close_matches(name, signature.parameters)]
    hint = (f"did you mean `{near[0]}`? " if near else "") + f"its parameters are `{_plain(signature)}`"
    if call.startswith("make_batch(") and (sizes := _without_default(signature)[len(args) :]):
        given = ", ".join(f"{name}=..." for name in sizes)
        hint += f"; give other sizes than the batch a default, as in `def make_batch(batch_size, *, {given})`, and "
        hint += f"`--at {sizes[0]}=...` asks about another one"
    raise TargetError(f"`{call}` cannot be called so: {problem}", hint=hint)


def _without_default(signature: inspect.Signature) -> list[str]:
    """Return the names of the parameters that every call must give."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    every = signature.parameters.values()
    return [each.name for each in every if each.default is inspect.Parameter.empty and each.kind not in variable]


def _plain(signature: inspect.Signature) -> str:
    """Return the signature as a caller needs it: names and defaults."""
    parameters = [item.replace(annotation=inspect.Parameter.empty) for item in signature.parameters.values()]
    return str(inspect.Signature(parameters))


def _attribute_missing(reference: Reference, module: ModuleType) -> TargetError:
    names = _callables(module)
    near = difflib.get_close_matches(str(reference.attribute), names, n=1, cutoff=0.6)
    has = _what_it_has(module)
    return TargetError(
        f"`{reference.location}` has no `{reference.attribute}`",
        hint=f"did you mean `{near[0]}`? {has}" if near else has,
    )


def _functions_missing(reference: Reference, module: ModuleType, functions: dict[Role, Any]) -> TargetError:
    """Say what was looked for and what the file has, and give the lines to add."""
    missing = [role for role in ("build_model", "make_batch") if functions[role] is None]
    wanted: list[Role] = [role for role in _TEMPLATES if functions[role] is None]
    lines = "\n\n".join(_TEMPLATES[role].format(model=_model_expression(module)).rstrip() for role in wanted)
    imports = "" if getattr(module, "torch", None) is torch else "import torch\n\n"
    builders = difflib.get_close_matches("build_model", _callables(module), n=1, cutoff=0.5)
    renamed = (
        f"where `{builders[0]}` builds the model, name it: `{reference.location}:{builders[0]}`; otherwise "
        if builders and functions["build_model"] is None
        else ""
    )
    return TargetError(
        f"`{reference.location}` has no {' and no '.join(f'`{role}`' for role in missing)}",
        details=f"looked for `{reference.call}` and `make_batch(batch_size)`; {_what_it_has(module)}",
        hint=f"{renamed}add to the file, with sizes of your own:\n\n{_indented(imports + lines)}",
    )


def _model_expression(module: ModuleType) -> str:
    """Return the call that builds the last module class of the file, which usually is the whole model."""
    classes = [
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, torch.nn.Module) and item.__module__ == module.__name__
    ]
    if not classes:
        return "MyModel()"
    needed = [
        parameter
        for parameter in list(inspect.signature(classes[-1]).parameters.values())
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return f"{classes[-1].__name__}({'...' if needed else ''})"


def _callables(module: ModuleType) -> list[str]:
    """Public functions and classes that the module itself defines."""
    return [
        name
        for name, item in vars(module).items()
        if callable(item) and not name.startswith("_") and getattr(item, "__module__", None) == module.__name__
    ]


def _what_it_has(module: ModuleType) -> str:
    names = _callables(module)
    listed = ", ".join(f"`{name}`" for name in names[:_MOST_LISTED])
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"the file has {listed}{more}" if names else "the file defines no public function or class"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())


_PYTHON = ".".join(map(str, sys.version_info[:3]))


def load_target(reference: Reference, *, is_imported: bool = False) -> Target:
    """Import the target and find its functions; for the worker, whose `sys.path` and `sys.argv` become the target's.

    The file's directory (for a file in a package: the directory that holds the package) and the reference's directory
    come first on `sys.path`. What stands under `if __name__ == "__main__"` does not run.

    Args:
        reference: The target.
        is_imported: Whether this process has imported its file, which then does not run again.

    Raises:
        TargetError: The target cannot be imported, lacks a function, or has one that cannot be called as it has to be.
    """
    generated = None if reference.hub is None else generate(reference)
    try:
        if generated is None:
            module = _import(reference, is_imported=is_imported)
        else:
            module = _import_source(reference, generated.source)
    except BaseException as error:  # noqa: BLE001 - an import runs any code, and `exit()` is some
        problem = _import_failure(error, reference)
    else:
        target = bind(reference, module, _own_roots(reference))
        return target if generated is None else replace(target, choices=dict(generated.choices))
    raise problem  # outside of the `except`, so that the error and its frames are let go


def _import(reference: Reference, *, is_imported: bool) -> ModuleType:
    sys.argv = [reference.path or reference.location]
    if reference.path is None:
        _put_first_on_path(reference.directory)
        return importlib.import_module(str(reference.module))
    path = Path(reference.path)
    root = _import_root(path)
    _put_first_on_path(str(root), reference.directory)
    if root == path.parent or "." in path.stem:
        return _import_file(path, is_imported=is_imported)
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    module = importlib.import_module(name)
    # A package of the same name that is already imported would have been taken instead.
    return module if _same_file(module, path) else _import_file(path, is_imported=is_imported)


def _import_source(reference: Reference, source: str) -> ModuleType:
    """Import a generated file, which is never written: tracebacks have its lines under the target's name."""
    linecache.cache[reference.location] = (len(source), None, source.splitlines(keepends=True), reference.location)
    module = ModuleType(re.sub(r"\W", "_", reference.location))
    module.__file__ = reference.location
    sys.modules[module.__name__] = module
    _put_first_on_path(reference.directory)
    exec(compile(source, reference.location, "exec"), module.__dict__)  # noqa: S102 - made here, from data
    return module


def _import_file(path: Path, *, is_imported: bool) -> ModuleType:
    """Import the one file, under its own name where that is free, so that what it pickles can be found again."""
    name = path.stem
    if name in sys.modules and not _same_file(sys.modules[name], path):
        name = f"_target_{name}"
    if is_imported and name in sys.modules and _same_file(sys.modules[name], path):
        return sys.modules[name]
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
    """Return the directory from which the file is imported: above the packages that it is in."""
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
    """Return the roots of the user's code: the file's directory, its package, or the file of an installed module."""
    if reference.hub is not None:
        own = str(reference.model) if reference.hub == "lightning" else ""
        return (Path(reference.location), *_roots_of(own.partition(".")[0]))
    if reference.path is not None:
        path = Path(reference.path)
        root = _import_root(path)
        return (path.parent if root == path.parent else root / path.relative_to(root).parts[0],)
    return _roots_of(str(reference.module).partition(".")[0])


def _roots_of(top: str) -> tuple[Path, ...]:
    spec = _find_top(top) if top else None
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
            hint=_syntax_hint(error),
            details=user_traceback(error, own_roots),
        )
    named = f"{reference.module}.".startswith(f"{error.name}.") if isinstance(error, ImportError) else False
    if isinstance(error, ModuleNotFoundError) and named and not raised_in_user_code(error, own_roots):
        parent, _, last = str(reference.module).rpartition(".")
        if parent and hasattr(sys.modules.get(parent), last):
            hint = f"`{last}` is in `{parent}`, not a module of its own: write `{parent}:{last}`"
        else:
            hint = f"modules are looked for in `{reference.directory}` and among those installed for `{sys.executable}`"
        return TargetError(f"there is no module `{error.name}`, which `{reference.location}` names", hint=hint)
    return failure(error, f"importing `{reference.location}`", own_roots, hint=_import_hint(error))


def _syntax_hint(error: SyntaxError) -> str:
    if "null bytes" in str(error.msg):
        return "the file is no Python source, or saved as UTF-16: write it again, or save it as UTF-8"
    if "codec can't decode" in str(error.msg):
        return "save the file as UTF-8, or name its encoding in the first line, such as `# coding: latin-1`"
    return f"correct the line, or run oomdoctor with the Python that it is written for; this is {_PYTHON}"


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
