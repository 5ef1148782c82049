"""What a file or the environment gave, checked against a schema: an unknown key or a wrong type is a UsageError."""

from __future__ import annotations

import difflib
import shlex
from dataclasses import MISSING, dataclass, is_dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

from oomdoctor.configuration.schema import EXAMPLE, WORDS
from oomdoctor.configuration.shapes import (
    SCALARS,
    choices,
    description,
    fields_by_key,
    headers,
    item_type,
    key_of,
    mapped_type,
    type_hints,
)
from oomdoctor.configuration.writing import dotted, toml_value
from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from dataclasses import Field

T = TypeVar("T")

_GIVEN: Mapping[type, str] = MappingProxyType({list: "a list", dict: "a table"})
_LONGEST_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Place:
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

    def below(self, key: str | int) -> Place:
        """The place of a key, or of an item, in this one."""
        return replace(self, keys=(*self.keys, key))

    def __str__(self) -> str:
        return f"`[{dotted(self.keys)}]` of {self.source}" if self.keys else self.source


def decode(table: type[T], value: object, place: Place) -> T:
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


def decode_value(hint: object, value: object, place: Place, field: Field[Any]) -> object:
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


def _refuse(value: object, place: Place, wanted: str, hint: str | None = None) -> NoReturn:
    given = _GIVEN.get(type(value), "a date or a time")
    if isinstance(value, str | int | float):
        shown = toml_value(value)
        given = f"`{shown}`" if len(shown) <= _LONGEST_SHOWN else f"`{shown[:_LONGEST_SHOWN]}...`"
    raise UsageError(f"`{dotted(place.keys)}` in {place.source} is {given}, not {wanted}", hint=hint)


def _advice(known: Mapping[str, Field[Any]], key: str, place: Place) -> str:
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
