"""Training scripts, by their source alone, since to import one would be to train.

One that is named as a target is refused. Names are followed to where they are bound, as far as the text shows; through
the one call of a function as well.
"""

from __future__ import annotations

import ast
import builtins
import shlex
import warnings
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import TargetError
from oomdoctor.target.literals import batch_size_literals, batch_size_variables, set_options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oomdoctor.target.literals import LiteralPlace

LARGEST_SOURCE: Final = 4 << 20
"""Characters of a source that is read; a larger one is imported unread."""
_TRAINS: Final = frozenset({"backward", "fit", "train", "launch"})
"""Methods whose call is training, of a loss, a trainer, a model or a launcher."""
_DYNAMIC: Final = frozenset({"globals", "vars", "locals", "exec", "setattr", "__import__"})
"""Functions by which a file may bind names that its source does not show."""
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_DO: Final = {"probe": "probe it as", "prescribe": "ask about", "verify": "verify it as"}
"""Words for what to do with a script instead, by the command of oomdoctor."""
_OPTIONS: Final = frozenset({"add_argument", "option", "Option"})


def refuse_script(path: Path, location: str, builder: str, verb: str = "probe", options: str = "") -> None:
    """See that a file may be a target before it is imported; one that cannot be read is left to the import.

    Args:
        path: The file.
        location: How it was named.
        builder: Name of what builds the model.
        verb: The command of oomdoctor that was to read it, for the hint.
        options: Options that were given to it, as they are typed.

    Raises:
        TargetError: It trains, and binds neither the builder nor `make_batch`.
    """
    try:
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source) if len(source) <= LARGEST_SOURCE else ast.Module([], [])
    except (OSError, ValueError, SyntaxError, MemoryError, RecursionError):
        return
    bound = set(_bound(tree.body))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {name for call in calls if (name := _name(call)) is not None}
    if not bound & {builder, "make_batch", "*", "__getattr__"} and names & _TRAINS and not names & _DYNAMIC:
        raise TargetError(
            f"`{location}` is a script that trains: it has neither `{builder}` nor `make_batch`, and was not run",
            hint=command_hint(path, location, tree, verb, options),
        )


def command_hint(path: Path, location: str, tree: ast.Module, verb: str = "probe", options: str = "") -> str:
    """Return how to probe a script as a command, or to prescribe for it or verify it.

    Args:
        path: The script.
        location: How it was named.
        tree: It, parsed.
        verb: `probe`, `prescribe` or `verify`.
        options: Options to repeat, as they are typed.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    literals = [] if verb == "verify" else batch_size_literals(path)  # which has no `--set`
    own, missing = [*_options(calls)], ""
    if verb == "verify" and not any("accum" in option for option in own):
        own.append("--grad-accum")
        missing = "\n\nand have it read its accumulation steps from such an option"
    asked = f"oomdoctor {verb} {options}".rstrip()
    command = _command(asked, location, own, literals, batch_size_variables(path))
    return f"{_DO[verb]} the command that it is:\n\n    {command}{missing}"


def _bound(statements: list[ast.stmt]) -> Iterator[str]:
    """Yield names that a module's statements bind, those inside of `if`, `try`, `with` and loops included."""
    for statement in statements:
        if isinstance(statement, _DEFINITIONS):
            yield statement.name
            yield from (name for node in ast.walk(statement) if isinstance(node, ast.Global) for name in node.names)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
        else:
            stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
            yield from (node.id for node in stored if isinstance(node.ctx, ast.Store))
            blocks = (child for child in ast.walk(statement) if child is not statement)
            yield from _bound(
                [child for child in blocks if isinstance(child, (*_DEFINITIONS, ast.Import, ast.ImportFrom))]
            )


def _name(call: ast.Call) -> str | None:
    """Return the name of what is called: `f` of `f()` and of `a.b.f()`."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def _options(calls: list[ast.Call]) -> Iterator[str]:
    """Yield the long options that the script reads."""
    for call in calls:
        if _name(call) in _OPTIONS:
            words = (word.value for word in call.args if isinstance(word, ast.Constant))
            yield from (word for word in words if isinstance(word, str) and word.startswith("--"))


def _command(asked: str, location: str, options: list[str], literals: list[LiteralPlace], variables: list[str]) -> str:
    """Return the command to type, with the script's options for its sizes, else its variable or literal; and a note."""
    sizes = [
        option for option in options if "batch" in option and not any(word in option for word in ("accum", "eval"))
    ]
    steps = next((option for option in options if "accum" in option), None)
    words = ["python", shlex.quote(location)]
    if variables and not sizes:
        words, literals = ["env", f"{variables[0]}={{micro_batch}}", *words], []
    chosen = "" if sizes or not literals else f" {set_options(location, literals)[0]}"
    words += [] if chosen or words[0] == "env" else [sizes[0] if sizes else "--batch-size", "{micro_batch}"]
    words += [] if steps is None else [steps, "{accumulation_steps}"]
    return f"{asked}{chosen} -- {' '.join(words)}{_note(sizes or variables, literals)}"


def _note(sizes: list[str], literals: list[LiteralPlace]) -> str:
    """Return what else there is to know about the script's batch size, as a paragraph of its own."""
    if not sizes and not literals:
        return "\n\nand have it read its batch size from such an option, which it has none of"
    if sizes or len(literals) == 1:
        return ""
    others = ", ".join(f"`{each.name} = {each.text}` in line {each.line}" for each in literals)
    return f"\n\nwhere `--set` names the literal that training uses, of {others}"


Scope = ast.FunctionDef | None
"""A function of the module, or the module itself."""
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
