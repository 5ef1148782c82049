"""Literals of a script, such as `BATCH = 16`: where they stand, by the source alone, and which to set in a trial."""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from dataclasses import dataclass
from importlib.util import decode_source
from typing import TYPE_CHECKING, Final, NamedTuple

from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from oomdoctor.request import LiteralOverride


_LARGEST_SOURCE: Final = 4 << 20
"""Bytes of a source that is read."""
_CONSTANT: Final = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.List, ast.operator, ast.unaryop, ast.Load)
_SIZE_NAME: Final = re.compile(r"(\w+_)?(batch|bs|bsz|mbs|batch_?size)(_size|_per_(gpu|device))?", re.IGNORECASE)
_OTHER_SIZE: Final = re.compile(r"(?i)val|eval|test|valid|infer|gen")
_MOST_NAMED: Final = 6


class LiteralPlace(NamedTuple):
    """A place where a source gives a name a value that is written out.

    Attributes:
        name: The name: of a variable, an attribute, a parameter, a keyword argument, or a key.
        line: Line of the value, from 1; `column`, `end_line` and `end_column` as in `ast`, columns in bytes of UTF-8.
        text: The value as it is written.
    """

    name: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str


def literal_places(data: bytes) -> list[LiteralPlace]:
    """Return every literal of a source, in order.

    Raises:
        SyntaxError: It is no Python, or of another version.
        ValueError: It has a null character, or is not encoded as it says.
    """
    source = decode_source(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    lines = source.encode().split(b"\n")
    found = [
        LiteralPlace(
            name,
            value.lineno,
            value.col_offset,
            value.end_lineno or value.lineno,
            value.end_col_offset or 0,
            _text(lines, value),
        )
        for node in ast.walk(tree)
        for name, value in _bindings(node)
        if all(isinstance(part, _CONSTANT) for part in ast.walk(value))
    ]
    return sorted(set(found), key=lambda place: (place.line, place.column))


def _text(lines: list[bytes], value: ast.expr) -> str:
    first, last = value.lineno - 1, (value.end_lineno or value.lineno) - 1
    rows = lines[first : last + 1]
    rows[-1] = rows[-1][: value.end_col_offset]
    rows[0] = rows[0][value.col_offset :]
    return b"\n".join(rows).decode()


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield names that a node gives values, with the values."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _assigned(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _assigned(target, value)
        case ast.keyword(arg=str(name), value=value):
            yield name, value
        case ast.arguments():
            positional = [*node.posonlyargs, *node.args]
            yield from ((each.arg, value) for each, value in zip(positional[::-1], node.defaults[::-1], strict=False))
            named = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            yield from ((each.arg, value) for each, value in named if value is not None)
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            yield from ((key.value, value) for key, value in pairs if _is_text(key))  # type: ignore[union-attr]


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case ast.Attribute(attr=name), _:
            yield name, value
        case ast.Subscript(slice=ast.Constant(value=str(name))), _:
            yield name, value
        case (ast.Tuple() | ast.List(), ast.Tuple() | ast.List()) if len(target.elts) == len(value.elts):
            for one, its in zip(target.elts, value.elts, strict=True):
                yield from _assigned(one, its)


def _is_text(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str)


def batch_size_literals(path: Path) -> list[LiteralPlace]:
    """Return the literals of a file that look like the batch size of training; none of one that cannot be read."""
    try:
        data = path.read_bytes()
        places = literal_places(data) if len(data) <= _LARGEST_SOURCE else []
    except (OSError, ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return [place for place in places if is_batch_size(place.name) and place.text.isdecimal()]


def is_batch_size(name: str) -> bool:
    """Return whether a name is one for the batch size of training."""
    return _SIZE_NAME.fullmatch(name) is not None and not _OTHER_SIZE.search(name)


def batch_size_variables(path: Path) -> list[str]:
    """Return the variables of the environment that a file reads and that are called as a batch size of training."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    found = [name for node in ast.walk(tree) for name in _variables(node)]
    return [name for name in dict.fromkeys(found) if is_batch_size(name)]


def _variables(node: ast.AST) -> Iterator[str]:
    """Yield the name of a variable that a node reads: `os.environ["N"]`, `os.environ.get("N")` or `os.getenv("N")`."""
    match node:
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))):
            yield name
        case ast.Call(func=called, args=[ast.Constant(value=str(name)), *_]):
            match called:
                case ast.Attribute(attr="getenv") | ast.Name(id="getenv"):
                    yield name
                case ast.Attribute(attr="get", value=ast.Attribute(attr="environ")):
                    yield name


def set_options(location: str, places: Iterable[LiteralPlace]) -> list[str]:
    """Return the `--set` for each literal, with its line where the name alone does not tell.

    Args:
        location: The file, as a user writes it.
        places: Literals of it.
    """
    places = list(places)
    names = [place.name for place in places]
    lines = [f"{place.line}:" if names.count(place.name) > 1 else "" for place in places]
    return [
        f"--set {shlex.quote(f'{location}:{line}{place.name}={{micro_batch}}')}"
        for line, place in zip(lines, places, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class FoundLiteral:
    """A literal that is set in each trial, and where it stands.

    Attributes:
        override: What was asked for.
        path: The file, without links.
        place: The literal.
    """

    override: LiteralOverride
    path: Path
    place: LiteralPlace


def find_literals(overrides: Iterable[LiteralOverride], directory: Path) -> tuple[FoundLiteral, ...]:
    """Find the literal that each override sets.

    Args:
        overrides: What was asked for.
        directory: Where files that are not absolute start.

    Raises:
        UsageError: A file cannot be read, or has no such literal, or more than one.
    """
    found = tuple(_find(override, directory / override.file) for override in overrides)
    places = [(each.path, each.place) for each in found]
    for each in found:
        if places.count((each.path, each.place)) > 1:
            at = f"`{each.override.name}` of `{each.override.file}`, line {each.place.line},"
            raise UsageError(f"{at} is set twice", hint="give each value once")
    return found


def _find(override: LiteralOverride, path: Path) -> FoundLiteral:
    try:
        places = literal_places(path.read_bytes())
    except OSError as error:
        hint = "the file stands before the first colon, as in `train.py:BATCH={micro_batch}`, and is relative to where "
        raise UsageError(
            f"`{override.file}` cannot be read: {error.strerror}", hint=f"{hint}the command runs"
        ) from error
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        hint = "only names in Python files can be set; give the command its own option for what another file holds"
        raise UsageError(f"`{override.file}` cannot be read as Python: {error}", hint=hint) from error
    named = [place for place in places if place.name == override.name]
    here = [place for place in named if override.line in (None, place.line)]
    if len(here) != 1:
        raise _not_one(override, named, places)
    return FoundLiteral(override, path.resolve(), here[0])


def _not_one(override: LiteralOverride, named: list[LiteralPlace], places: list[LiteralPlace]) -> UsageError:
    """Return the error for a name that has no literal, or several."""
    if named:
        where = f"in {len(named)} places" if override.line is None else "in other lines"
        lines = ", ".join(f"line {place.line} (`{place.text}`)" for place in named[:_MOST_NAMED])
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        option = f"--set {shlex.quote(f'{override.file}:{named[0].line}:{override.name}={override.value}')}"
        return UsageError(
            f"`{override.file}` gives `{override.name}` a literal {where}: {lines}{more}",
            hint=f"name the line, as in `{option}`; `--set` may be given several times",
        )
    sizes = [place for place in places if _SIZE_NAME.fullmatch(place.name)]
    known = ", ".join(f"`{place.name} = {place.text}` in line {place.line}" for place in sizes[:_MOST_NAMED])
    hint = f"there is {known}" if known else "set it in the file that does, or give the command an option for it"
    return UsageError(f"`{override.file}` gives `{override.name}` no literal, such as `16`", hint=hint)
