"""Names of a script: where each is bound, as far as its text shows; through the one call of a function as well."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

Scope = ast.FunctionDef | None
"""A function of the module, or the module itself."""
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS: Final = (ast.For, ast.While, ast.AsyncFor)


class UnclearScriptError(Exception):
    """The text does not show something; the message says what."""


def names_in(node: ast.AST) -> set[str]:
    """Return the names that a node reads from around it."""
    own = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    inner = {
        name.id
        for one in ast.walk(node)
        if isinstance(one, ast.comprehension)
        for name in ast.walk(one.target)
        if isinstance(name, ast.Name)
    }
    read = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    if isinstance(node, _DEFINITIONS):
        stored = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        stored |= {one.name for one in ast.walk(node) if isinstance(one, _DEFINITIONS)}
        return read - own - inner - stored
    return read - own - inner


def root(node: ast.AST) -> str | None:
    """Return the name that an attribute, a subscript or a call begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


class ScriptText:
    """A script as text.

    Args:
        tree: It, parsed.
        source: The text.
    """

    def __init__(self, tree: ast.Module, source: str) -> None:
        self._tree = tree
        self._source = source
        self._functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
        self.scopes: list[Scope] = [None, *self._functions.values()]

    def statements(self, scope: Scope) -> list[ast.stmt]:
        """Return the statements of a scope, those under `if __name__ == "__main__"` included, in order."""
        found: list[ast.stmt] = []
        for one in (self._tree if scope is None else scope).body:
            found += one.body if isinstance(one, ast.If) and "__name__" in ast.unparse(one.test) else [one]
        return found

    def text(self, statement: ast.stmt) -> str:
        """Return a statement's text: as it stands where it stands alone, and without a command line to read."""
        is_whole = statement in self._tree.body and not getattr(statement, "decorator_list", ())
        text = ast.get_source_segment(self._source, statement) if is_whole else None
        if text is None or "parse_args" in text or "parse_known_args" in text:
            text = ast.unparse(_WithoutArguments().visit(ast.parse(ast.unparse(statement))))
        return text

    def bound(self, statement: ast.stmt) -> Iterator[str]:
        """Yield the names that a statement binds."""
        if isinstance(statement, _DEFINITIONS):
            yield statement.name
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
        else:
            names = (one for one in ast.walk(statement) if isinstance(one, ast.Name))
            yield from (one.id for one in names if isinstance(one.ctx, ast.Store))

    def definitions(self, name: str, scope: Scope) -> list[ast.stmt]:
        """Return the statements of a scope that bind a name."""
        return [one for one in self.statements(scope) if name in self.bound(one)]

    def changes(self, name: str, scope: Scope) -> list[ast.stmt]:
        """Return the statements of a scope that change what a name stands for: `name.x = ...`, `name.method(...)`."""
        found: list[ast.stmt] = []
        for one in self.statements(scope):
            match one:
                case ast.Assign(targets=[ast.Attribute() | ast.Subscript() as target]) if root(target) == name:
                    found.append(one)
                case ast.Expr(value=ast.Call(func=ast.Attribute()) as call) if root(call) == name:
                    found.append(one)
        return found

    def resolved(self, name: str, scope: Scope) -> tuple[str, Scope]:
        """Return the name and scope that a name stands for, through parameters that are given a name."""
        argument = self._argument(name, scope)
        if isinstance(argument, tuple) and isinstance(argument[0], ast.Name):
            return self.resolved(argument[0].id, argument[1])
        return name, scope if self.definitions(name, scope) or argument is not None else None

    def value(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, Scope]:
        """Return the expression that a name is given, and its scope.

        Raises:
            UnreadableError: It is given several, or in an unusual way.
        """
        if not isinstance(node, ast.Name):
            return node, scope
        name, at = self.resolved(node.id, scope)
        found = self.definitions(name, at)
        if len(found) != 1 or not isinstance(found[0], ast.Assign) or not isinstance(found[0].targets[0], ast.Name):
            raise UnclearScriptError(f"`{node.id}` is not given one value in one place")
        return self.value(found[0].value, at)

    def needed(self, name: str, scope: Scope) -> list[tuple[ast.stmt, Scope]]:
        """Return the statements that make a name, with their scopes; none for one of Python itself.

        Raises:
            UnreadableError: The text does not show where it is from.
        """
        own, at = self.resolved(name, scope)
        found = self.definitions(own, at)
        if not found and (argument := self._argument(own, at)) is not None:
            raise UnclearScriptError(f"`{name}` is a parameter, given `{ast.unparse(argument[0])}`")
        if not found and not hasattr(builtins, own) and own not in ("__file__", "__name__"):
            raise UnclearScriptError(f"where `{name}` is from cannot be seen")
        if own != name:
            raise UnclearScriptError(f"`{name}` is called `{own}` where it is made")
        if not found:
            return []
        if any(isinstance(one, _LOOPS) for one in found):
            raise UnclearScriptError(f"`{name}` is set in a loop")
        if any(isinstance(one, (*_DEFINITIONS, ast.Import, ast.ImportFrom)) for one in found):
            return [(one, at) for one in found]
        return [(one, at) for one in (*found, *self.changes(own, at))]

    def _argument(self, name: str, scope: Scope) -> tuple[ast.expr, Scope] | None:
        """Return what a parameter of a function is given, where that is called once; None for no parameter."""
        if scope is None or self.definitions(name, scope):
            return None
        parameters = [one.arg for one in (*scope.args.posonlyargs, *scope.args.args)]
        if name not in [*parameters, *(one.arg for one in scope.args.kwonlyargs)]:
            return None
        calls = [
            (call, at)
            for at in self.scopes
            for statement in self.statements(at)
            if not isinstance(statement, _DEFINITIONS)
            for call in ast.walk(statement)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == scope.name
        ]
        if len(calls) != 1:
            raise UnclearScriptError(f"`{scope.name}` is called in {len(calls)} places, so that `{name}` is unknown")
        (call, at), position = calls[0], parameters.index(name) if name in parameters else len(parameters)
        given = {one.arg: one.value for one in call.keywords}
        if name in given or position < len(call.args):
            return given.get(name) or call.args[position], at
        defaults = dict(zip(parameters[::-1], scope.args.defaults[::-1], strict=False))
        if name not in defaults:
            raise UnclearScriptError(f"what `{scope.name}` is given as `{name}` cannot be seen")
        return defaults[name], None


class _WithoutArguments(ast.NodeTransformer):
    """Has parsers of a command line read an empty one, so that each option has its default."""

    def visit_Call(self, call: ast.Call) -> ast.AST:
        self.generic_visit(call)
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("parse_args", "parse_known_args"):
            call.args = call.args or [ast.List([], ast.Load())]
        return call
