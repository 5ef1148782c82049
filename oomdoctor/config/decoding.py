"""Values from a file or the environment, checked against the schema: an unknown key or a wrong type is a UsageError."""

from __future__ import annotations

import difflib
import json
import shlex
from dataclasses import MISSING, dataclass, is_dataclass
from functools import reduce
from operator import or_
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Union, get_args, get_origin

from oomdoctor.codec import LONGEST_SHOWN, Decoder, choices, class_fields, cut, type_hints
from oomdoctor.config.schema import EXAMPLE, WORDS
from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from dataclasses import Field

    from oomdoctor.codec import Path

_GIVEN: Final[Mapping[type, str]] = MappingProxyType({list: "a list", dict: "a table"})
_NAMES: Final[Mapping[object, tuple[str, str]]] = MappingProxyType(
    {
        str: ("a string", "strings"),
        bool: ("true or false", "booleans"),
        int: ("an integer", "integers"),
        float: ("a number", "numbers"),
        str | float: ("a number or a string", "numbers or strings"),
    }
)
_TABLE: Final = ("a table", "tables")


# --- keys and values as TOML writes them -----------------------------------------------------------------------------


def dotted(keys: Path) -> str:
    """Return keys from table to table, bare where TOML allows that and quoted elsewhere; indexes are in brackets."""
    parts = [f"[{key}]" if isinstance(key, int) else f".{_key(key)}" for key in keys]
    return "".join(parts).removeprefix(".")


def toml_value(value: object) -> str:
    """Return a value on one line; a tuple is a list and a dict an inline table."""
    if isinstance(value, tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    # JSON leaves the one control character as it is that TOML does not take.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    is_bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if is_bare else toml_value(key)


def key_of(field: Field[Any]) -> str:
    """Return the key of a field in a file: its name with `-` for `_`."""
    return field.name.replace("_", "-")


def fields_by_key(table: object) -> dict[str, Field[Any]]:
    """Return the fields of a table by their keys in a file."""
    return {key_of(each): each for each in class_fields(table)}


# --- types of the schema ---------------------------------------------------------------------------------------------


def type_of(table: type, field: Field[Any]) -> object:
    """Return the type of a table's field; `X | None` is X, since TOML has no null."""
    return _without_none(type_hints(table)[field.name])


def _without_none(hint: object) -> object:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    return reduce(or_, (argument for argument in get_args(hint) if argument is not NoneType))


def item_type(hint: object) -> object | None:
    """Return X where a type is `tuple[X, ...]`, else None."""
    return get_args(hint)[0] if get_origin(hint) is tuple else None


def mapped_type(hint: object) -> object | None:
    """Return X where a type is `dict[str, X]`, else None."""
    return get_args(hint)[1] if get_origin(hint) is dict else None


def _description(hint: object) -> str:
    """Return the values that a type takes, in words: `a list of strings`."""
    if allowed := choices(hint):
        return "one of " + ", ".join(f"`{choice}`" for choice in allowed)
    inner = item_type(hint)
    return _names(hint)[0] if inner is None else f"a list of {_names(inner)[1]}"


def _names(hint: object) -> tuple[str, str]:
    return _NAMES.get(hint, _TABLE)


def _headers(table: type, key: str, above: str = "") -> Iterator[str]:
    """Return the headers of the tables below a table in which a key is known, such as `[lint]` or `[[check]]`."""
    for name, field in fields_by_key(table).items():
        hint = type_of(table, field)
        inner, path = item_type(hint) or hint, f"{above}.{name}".removeprefix(".")
        if is_dataclass(inner) and isinstance(inner, type):
            if key in fields_by_key(inner):
                yield f"[{path}]" if inner is hint else f"[[{path}]]"
            yield from _headers(inner, key, path)


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TomlDecoder(Decoder):
    """Builds the tables of a schema; unlike a document's, a key that no field has is refused, and defaults hold.

    Attributes:
        source: The file as messages call it, such as "`pyproject.toml`".
        schema: The dataclass of oomdoctor's whole part of the file.
        top: Keys from the top of the file to that part, such as `("tool", "oomdoctor")`.
    """

    source: str
    schema: type
    top: Path = ()

    def key_of(self, field: Field[Any]) -> str:
        """Return the key of a field."""
        return key_of(field)

    def below(self, path: Path, item: object, index: int) -> Path:
        """Return the path of an item; a table that has a name is called by it, since nobody counts tables."""
        name = item.get("name") if isinstance(item, dict) else None
        if isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_SHOWN:
            return (*path, name)
        return (*path, index)

    def unknown(self, key: str, known: Mapping[str, Field[Any]], path: Path) -> None:
        """Raise for a key that no field has, with the key that may have been meant."""
        raise UsageError(f"unknown key `{dotted((key,))}` in {self._table(path)}", hint=self._advice(key, known, path))

    def is_required(self, field: Field[Any]) -> bool:
        """Return whether a field has no default."""
        return field.default is MISSING and field.default_factory is MISSING

    def missing(self, field: Field[Any], path: Path) -> NoReturn:
        """Raise for a required key that is not there."""
        raise UsageError(f"`{key_of(field)}` is missing in {self._table(path)}", hint=_example(field))

    def check_range(self, hint: object, value: object, path: Path) -> None:
        """Take any number; the command that uses it knows its bounds."""

    def refuse(self, hint: object, value: object, path: Path, field: Field[Any] | None) -> NoReturn:
        """Raise for a value of a wrong type, with an example."""
        hint = _without_none(hint)
        given = _GIVEN.get(type(value), "a date or a time")
        if isinstance(value, str | int | float):
            given = f"`{cut(toml_value(value))}`"
        message = f"`{dotted(path)}` in {self.source} is {given}, not {_description(hint)}"
        raise UsageError(message, hint=_correction(hint, value, path, field))

    def _table(self, path: Path) -> str:
        return f"`[{dotted(path)}]` of {self.source}" if path else self.source

    def _advice(self, key: str, known: Mapping[str, Field[Any]], path: Path) -> str:
        """Return the nearest known key, or the table in which this one is known, or all keys of the table."""
        if elsewhere := list(_headers(self.schema, key, dotted(self.top))):
            return f"`{key}` belongs in `{elsewhere[0]}`"
        if near := difflib.get_close_matches(key, known, 1, cutoff=0.7):
            return f"did you mean `{near[0]}`?"
        if key == "tool" and not path:
            return "tables stand at the top level of this file: `[lint]`, not `[tool.oomdoctor.lint]`"
        return "known are " + ", ".join(f"`{name}`" for name in known)


def _correction(hint: object, value: object, path: Path, field: Field[Any] | None) -> str | None:
    if is_dataclass(item_type(hint)) and isinstance(value, dict):
        return f"write `[[{dotted(path)}]]`, with two brackets"
    if is_dataclass(hint) or field is None:
        return None
    return _as_words(field, value) or _example(field)


def _as_words(field: Field[Any], value: object) -> str | None:
    """Return the list of words to write where a command was given in one string."""
    try:
        words = shlex.split(value) if WORDS in field.metadata and isinstance(value, str) else []
    except ValueError:  # a quote that nothing closes
        return None
    return (
        f"no shell takes it apart, so give its words: `{key_of(field)} = {toml_value(tuple(words))}`" if words else None
    )


def _example(field: Field[Any]) -> str | None:
    return f"for example `{key_of(field)} = {field.metadata[EXAMPLE]}`" if EXAMPLE in field.metadata else None
