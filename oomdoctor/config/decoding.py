"""Values from a file or the environment, checked against the schema: an unknown key or a wrong type is a UsageError."""

from __future__ import annotations

import difflib
import json
import shlex
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache, reduce
from operator import or_
from types import MappingProxyType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from oomdoctor.config.schema import EXAMPLE, WORDS
from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping
    from dataclasses import Field


def dotted(keys: tuple[str | int, ...]) -> str:
    """Keys from table to table, bare where TOML allows that and quoted elsewhere; indexes stand in brackets."""
    parts = [f"[{key}]" if isinstance(key, int) else f".{_key(key)}" for key in keys]
    return "".join(parts).removeprefix(".")


def toml_value(value: object) -> str:
    """A value on one line; a tuple is a list and a dict an inline table."""
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


SCALARS: Mapping[object, tuple[type, ...]] = MappingProxyType(
    {str: (str,), bool: (bool,), int: (int,), float: (int, float), str | float: (str, int, float)}
)
"""Python types that a value may have, by what the schema says of it."""

_NAMES: Mapping[object, tuple[str, str]] = MappingProxyType(
    {
        str: ("a string", "strings"),
        bool: ("true or false", "booleans"),
        int: ("an integer", "integers"),
        float: ("a number", "numbers"),
        str | float: ("a number or a string", "numbers or strings"),
    }
)
_TABLE: Final = ("a table", "tables")


def key_of(field: Field[Any]) -> str:
    """The name of a field in a file."""
    return field.name.replace("_", "-")


def fields_by_key(table: object) -> dict[str, Field[Any]]:
    """Fields of a table by the names that they have in a file."""
    return {key_of(each): each for each in fields(cast("Any", table))}


@cache
def type_hints(table: Hashable) -> dict[str, object]:
    """Types of a table's fields, by the fields' names; `X | None` is X, since TOML has no null."""
    return {name: _without_none(hint) for name, hint in get_type_hints(table).items()}


def item_type(hint: object) -> object | None:
    """X where a type is `tuple[X, ...]`, else None."""
    return get_args(hint)[0] if get_origin(hint) is tuple else None


def mapped_type(hint: object) -> object | None:
    """X where a type is `dict[str, X]`, else None."""
    return get_args(hint)[1] if get_origin(hint) is dict else None


def choices(hint: object) -> tuple[str, ...]:
    """What a `Literal` allows; nothing for any other type."""
    return get_args(hint) if get_origin(hint) is Literal else ()


def inner_tables(table: type) -> Iterator[tuple[str, type, bool]]:
    """Tables that may stand below a table, each with its key and whether there may be many of it."""
    for key, field in fields_by_key(table).items():
        hint = type_hints(cast("Hashable", table))[field.name]
        inner = item_type(hint) or hint
        if is_dataclass(inner):
            yield key, cast("type", inner), inner is not hint


def headers(table: type, key: str, above: str = "") -> list[str]:
    """Headers of the tables below a table in which a key is known, such as `[lint]` or `[[check]]`.

    Args:
        table: Where to look.
        key: The key.
        above: The dotted path of the table itself.
    """
    found: list[str] = []
    for name, inner, is_many in inner_tables(table):
        path = f"{above}.{name}".removeprefix(".")
        if key in fields_by_key(inner):
            found.append(f"[[{path}]]" if is_many else f"[{path}]")
        found += headers(inner, key, path)
    return found


def description(hint: object) -> str:
    """What a type takes, in words: `a list of strings`."""
    allowed = choices(hint)
    if allowed:
        return "one of " + ", ".join(f"`{choice}`" for choice in allowed)
    inner = item_type(hint)
    return _names(hint)[0] if inner is None else f"a list of {_names(inner)[1]}"


def _names(hint: object) -> tuple[str, str]:
    return _NAMES.get(hint, _TABLE)


def _without_none(hint: object) -> object:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    return reduce(or_, (argument for argument in get_args(hint) if argument is not NoneType))


T = TypeVar("T")

_GIVEN: Mapping[type, str] = MappingProxyType({list: "a list", dict: "a table"})
_LONGEST_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class KeyPath:
    """Where a value stands.

    Attributes:
        source: What to call the file in messages, such as "`pyproject.toml`".
        schema: The dataclass of oomdoctor's whole part of the file.
        keys: Keys and indexes from the top of the file to the value, such as `("tool", "oomdoctor", "lint")`.
        depth: How many of them lead to oomdoctor's part.
    """

    source: str
    schema: type
    keys: tuple[str | int, ...] = ()
    depth: int = 0

    def below(self, key: str | int) -> KeyPath:
        """The place of a key, or of an item, in this one."""
        return replace(self, keys=(*self.keys, key))

    def __str__(self) -> str:
        return f"`[{dotted(self.keys)}]` of {self.source}" if self.keys else self.source


def decode(table: type[T], value: object, place: KeyPath) -> T:
    """Build a table of the schema.

    Raises:
        UsageError: A key is unknown, missing or of a wrong type; the message names the file and the key.
    """
    if not isinstance(value, dict):
        _refuse(value, place, "a table")
    known, hints = fields_by_key(table), type_hints(cast("Hashable", table))
    given = {}
    for key, each in value.items():
        if key not in known:
            raise UsageError(f"unknown key `{dotted((key,))}` in {place}", hint=_advice(known, key, place))
        given[known[key].name] = decode_value(hints[known[key].name], each, place.below(key), known[key])
    for field in known.values():
        if field.name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise UsageError(f"`{key_of(field)}` is missing in {place}", hint=_example(field))
    return table(**given)


def decode_value(hint: object, value: object, place: KeyPath, field: Field[Any]) -> object:
    """One value as its type in the schema asks.

    Raises:
        UsageError: It is of another type.
    """
    if is_dataclass(hint):
        return decode(cast("type[object]", hint), value, place)
    inner, mapped = item_type(hint), mapped_type(hint)
    if inner is not None and isinstance(value, list):
        places = (place.below(_name_or_index(item, index)) for index, item in enumerate(value))
        return tuple(decode_value(inner, item, each, field) for item, each in zip(value, places, strict=True))
    if mapped is not None and isinstance(value, dict):
        return {key: decode_value(mapped, item, place.below(key), field) for key, item in value.items()}
    if is_dataclass(inner) and isinstance(value, dict):
        _refuse(value, place, description(hint), f"write `[[{dotted(place.keys)}]]`, with two brackets")
    if not _is_scalar_of(hint, value):
        _refuse(value, place, description(hint), _as_words(field, value) or _example(field))
    return float(cast("float", value)) if hint is float else value


def _name_or_index(item: object, index: int) -> str | int:
    """What to call one of several in a message: a table that has a name by that, since nobody counts tables."""
    name = item.get("name") if isinstance(item, dict) else None
    if isinstance(name, str) and name.isprintable() and 0 < len(name) <= _LONGEST_SHOWN:
        return name
    return index


def _is_scalar_of(hint: object, value: object) -> bool:
    allowed = choices(hint)
    if allowed:
        return isinstance(value, str) and value in allowed
    # In Python true is an integer, in TOML it is not.
    return isinstance(value, SCALARS.get(hint, ())) and isinstance(value, bool) == (hint is bool)


def _refuse(value: object, place: KeyPath, wanted: str, hint: str | None = None) -> NoReturn:
    given = _GIVEN.get(type(value), "a date or a time")
    if isinstance(value, str | int | float):
        shown = toml_value(value)
        given = f"`{shown}`" if len(shown) <= _LONGEST_SHOWN else f"`{shown[:_LONGEST_SHOWN]}...`"
    raise UsageError(f"`{dotted(place.keys)}` in {place.source} is {given}, not {wanted}", hint=hint)


def _advice(known: Mapping[str, Field[Any]], key: str, place: KeyPath) -> str:
    """The nearest known key, or the table in which this one is known, or all keys of the table."""
    near = difflib.get_close_matches(key, known, 1)
    elsewhere = headers(place.schema, key, dotted(place.keys[: place.depth]))
    if elsewhere:
        return f"`{key}` belongs in `{elsewhere[0]}`"
    if near:
        return f"did you mean `{near[0]}`?"
    if key == "tool" and not place.keys:
        return "tables stand at the top level of this file: `[lint]`, not `[tool.oomdoctor.lint]`"
    return "known are " + ", ".join(f"`{name}`" for name in known)


def _as_words(field: Field[Any], value: object) -> str | None:
    """The list of words to write where a command was given in one string."""
    try:
        words = shlex.split(value) if WORDS in field.metadata and isinstance(value, str) else []
    except ValueError:  # a quote that nothing closes
        return None
    return (
        f"no shell takes it apart, so give its words: `{key_of(field)} = {toml_value(tuple(words))}`" if words else None
    )


def _example(field: Field[Any]) -> str | None:
    return f"for example `{key_of(field)} = {field.metadata[EXAMPLE]}`" if EXAMPLE in field.metadata else None
