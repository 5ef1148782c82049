"""The schema's types, as reading goes by them: what a table's keys are called, and what each of them takes."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache, reduce
from operator import or_
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping
    from dataclasses import Field

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
