"""Training scripts that are named as a target, told by their source alone: to import one would be to train."""

from __future__ import annotations

import ast
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


def refuse_script(path: Path, location: str, builder: str, verb: str = "probe") -> None:
    """See that a file may be a target before it is imported; one that cannot be read is left to the import.

    Args:
        path: The file.
        location: How it was named.
        builder: Name of what builds the model.
        verb: The command of oomdoctor that was to read it, for the hint.

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
            hint=command_hint(path, location, tree, verb),
        )


def command_hint(path: Path, location: str, tree: ast.Module, verb: str = "probe") -> str:
    """Return how to probe a script as a command, or to prescribe for it or verify it.

    Args:
        path: The script.
        location: How it was named.
        tree: It, parsed.
        verb: `probe`, `prescribe` or `verify`.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    literals = [] if verb == "verify" else batch_size_literals(path)  # which has no `--set`
    return _hint(verb, location, [*_options(calls)], literals, batch_size_variables(path))


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


def _hint(verb: str, location: str, options: list[str], literals: list[LiteralPlace], variables: list[str]) -> str:
    """Return the command to type, with the script's own options for its sizes, else its variable or its literal."""
    sizes = [
        option for option in options if "batch" in option and not any(word in option for word in ("accum", "eval"))
    ]
    steps = next((option for option in options if "accum" in option), None)
    words = ["python", shlex.quote(location)]
    if variables and not sizes:
        words, literals = ["env", f"{variables[0]}={{micro_batch}}", *words], []
    chosen = "" if sizes or not literals else f"{set_options(location, literals)[0]} "
    words += [] if chosen or words[0] == "env" else [sizes[0] if sizes else "--batch-size", "{micro_batch}"]
    needs_steps = steps is None and verb == "verify"
    words += [steps or "--grad-accum", "{accumulation_steps}"] if steps is not None or needs_steps else []
    line = f"oomdoctor {verb} {chosen}-- {' '.join(words)}"
    missing = "\n\nand have it read its accumulation steps from such an option" if needs_steps else ""
    return f"{_DO[verb]} the command that it is:\n\n    {line}{_note(sizes or variables, literals)}{missing}"


def _note(sizes: list[str], literals: list[LiteralPlace]) -> str:
    """Return what else there is to know about the script's batch size, as a paragraph of its own."""
    if not sizes and not literals:
        return "\n\nand have it read its batch size from such an option, which it has none of"
    if sizes or len(literals) == 1:
        return ""
    others = ", ".join(f"`{each.name} = {each.text}` in line {each.line}" for each in literals)
    return f"\n\nwhere `--set` names the literal that training uses, of {others}"
