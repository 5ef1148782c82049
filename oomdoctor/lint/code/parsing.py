"""From text to a module: one parse, and one pass over its statements for functions, classes and imports."""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING

from oomdoctor.lint.code.functions import Class, Function, Module
from oomdoctor.lint.code.names import Names
from oomdoctor.lint.positions import with_line_feeds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oomdoctor.lint.code.project import Project

_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def parse(text: str, path: Path, project: Project | None = None) -> Module:
    """Parse one file.

    Args:
        text: Its source.
        path: Where it lies.
        project: The repository, so that calls can be followed into its other files.

    Raises:
        SyntaxError: It is no Python, or nested deeper than Python parses.
    """
    # To the parser they are the same; what looks into the text knows lines by their line feeds.
    text = with_line_feeds(text)
    tree = _tree(text)
    module = Module(path=path, text=text, tree=tree, names=Names(), project=project)
    imports: list[ast.Import | ast.ImportFrom] = []
    _survey(tree, module, imports)
    module.names = Names(imports)
    for class_ in module.classes.values():
        class_.bases = tuple(_bases(class_, module))
    return module


def _tree(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in the user's strings
            return ast.parse(text)
    except SyntaxError:
        raise
    except (RecursionError, MemoryError):
        message = "nested too deeply"
        raise SyntaxError(message) from None
    except ValueError as error:
        raise SyntaxError(str(error)) from None


def _survey(tree: ast.Module, module: Module, imports: list[ast.Import | ast.ImportFrom]) -> None:
    """Find functions, classes and imports; only statements are looked at, since nothing else can hold them."""
    waiting: list[tuple[ast.AST, Class | None, Function | None]] = [(tree, None, None)]
    while waiting:
        holder, class_, function = waiting.pop()
        for statement in _statements(holder):
            kind = statement.__class__
            if kind is ast.Import or kind is ast.ImportFrom:
                imports.append(statement)  # type: ignore[arg-type]
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                waiting.append((statement, None, _add_function(statement, module, class_, function)))
            elif isinstance(statement, ast.ClassDef):
                waiting.append((statement, _add_class(statement, module), function))
            elif hasattr(statement, "body") or hasattr(statement, "cases"):
                waiting.append((statement, class_, function))
    module.functions.sort(key=lambda function: function.node.lineno)
    imports.sort(key=lambda node: node.lineno)


def _statements(holder: ast.AST) -> Iterator[ast.AST]:
    for name in _BODIES:
        inner = getattr(holder, name, None)
        if inner.__class__ is list:
            yield from inner


def _add_function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, module: Module, class_: Class | None, parent: Function | None
) -> Function:
    function = Function(node, module, class_, parent)
    module.functions.append(function)
    if class_ is not None:
        class_.methods.setdefault(node.name, function)
    elif parent is None:
        module.top[node.name] = function
    return function


def _add_class(node: ast.ClassDef, module: Module) -> Class:
    return module.classes.setdefault(node.name, Class(node, module))


def _bases(class_: Class, module: Module) -> Iterator[str]:
    """Names of the bases: qualified where they are imported, as they stand where they are the file's own."""
    for base in class_.node.bases:
        name = module.qualified(base)
        if name is None and isinstance(base, ast.Name):
            name = base.id
        if name is not None:
            yield name
