"""The codec: dataclasses to plain data and back, by their own type hints.

Plain data is what JSON, TOML and a pipe carry: dicts, lists, strings, numbers, true, false and null. A class needs no
code of its own. Reading is strict about types and about what must be there; `Decoder` reads JSON as documents and
messages have it, and a subclass says what another format does otherwise. Nothing in the data is ever executed.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NoReturn,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from dataclasses import Field

LONGEST_SHOWN: Final = 60
"""Characters of a wrong value that a message shows."""

ADDED_LATER: Final[Mapping[str, bool]] = MappingProxyType({"added later": True})
"""Metadata of a field that data may lack, since the first version of its layout did; it then has its default."""

SCALARS: Final[Mapping[object, tuple[type, ...]]] = MappingProxyType(
    {str: (str,), bool: (bool,), int: (int,), float: (int, float)}
)
"""Python types that a value may have, by its type hint."""

_MAXIMUM_INTEGER: Final = 2**63 - 1
_JSON_NAMES: Final[Mapping[object, str]] = MappingProxyType(
    {
        dict: "an object",
        list: "a list",
        tuple: "a list",
        str: "a string",
        bool: "true or false",
        int: "an integer",
        float: "a number",
    }
)

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes that lead to a value."""

T = TypeVar("T")


class MismatchError(Exception):
    """A value is not what its type hint asks for; `where` is a path such as `result.trials[3].outcome`."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


def encode(value: object) -> object:
    """Return dataclasses, enums, tuples and dicts, nested as they may be, as what `json.dumps` takes."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: encode(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Enum):
        return encode(value.value)
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    message = f"{type(value).__name__} has no form in JSON"
    raise TypeError(message)


def decode(kind: type[T], value: object, where: str = "") -> T:
    """Build `kind`, a dataclass, from plain JSON data; fields that it does not have are passed over.

    Args:
        kind: The dataclass; every field must be there, unless it is marked `ADDED_LATER`.
        value: The data.
        where: Path of the value, for messages.

    Raises:
        MismatchError: A field is missing or does not have its type.
    """
    return Decoder().table(kind, value, (where,) if where else ())


class Decoder:
    """Builds dataclasses from plain data; the methods from `key_of` on say what is special to JSON documents."""

    def table(self, kind: type[T], value: object, path: Path, field: Field[Any] | None = None) -> T:
        """Build a dataclass from a dict.

        Raises:
            MismatchError: A field is missing or does not have its type.
        """
        if not isinstance(value, dict):
            self.refuse(kind, value, path, field)
        hints, known = type_hints(kind), {self.key_of(each): each for each in class_fields(kind)}
        given = {}
        for key, item in value.items():
            if key in known:
                name = known[key].name
                given[name] = self.value(hints[name], item, (*path, key), known[key])
            else:
                self.unknown(key, known, path)
        for each in known.values():
            if each.name not in given and self.is_required(each):
                self.missing(each, path)
        return kind(**given)

    def value(self, hint: object, value: object, path: Path, field: Field[Any] | None = None) -> object:
        """Return one value as its type hint asks.

        Raises:
            MismatchError: It has another type.
        """
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            return None if value is None else self._of_union(hint, value, path, field)
        if is_dataclass(hint):
            return self.table(cast("type[object]", hint), value, path, field)
        if origin is tuple and isinstance(value, list):
            places = (self.below(path, item, index) for index, item in enumerate(value))
            return tuple(self.value(arguments[0], item, at, field) for item, at in zip(value, places, strict=True))
        if origin is dict and isinstance(value, dict):
            return {key: self.value(arguments[1], item, (*path, key), field) for key, item in value.items()}
        if isinstance(hint, type) and issubclass(hint, Enum):
            return hint(self._choice(hint, value, path, field))
        return self._choice(hint, value, path, field) if choices(hint) else self._scalar(hint, value, path, field)

    def _of_union(self, hint: object, value: object, path: Path, field: Field[Any] | None) -> object:
        """Return a value as a union's one type beside None, or, as it is, as one of its scalars."""
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        if len(kinds) == 1:
            return self.value(kinds[0], value, path, field)
        if not any(is_scalar(kind, value) for kind in kinds):
            self.refuse(hint, value, path, field)
        self.check_range(type(value), value, path)
        return value

    def _choice(self, hint: object, value: object, path: Path, field: Field[Any] | None) -> object:
        # `in` alone would take true for 1.
        for choice in choices(hint):
            if type(choice) is type(value) and choice == value:
                return choice
        return self.refuse(hint, value, path, field)

    def _scalar(self, hint: object, value: object, path: Path, field: Field[Any] | None) -> object:
        if not is_scalar(hint, value):
            self.refuse(hint, value, path, field)
        self.check_range(hint, value, path)
        return float(cast("float", value)) if hint is float else value

    def key_of(self, field: Field[Any]) -> str:
        """Return the key of a field."""
        return field.name

    def below(self, path: Path, _item: object, index: int) -> Path:
        """Return the path of an item of a list."""
        return (*path, index)

    def unknown(self, key: str, known: Mapping[str, Field[Any]], path: Path) -> None:
        """Pass over a key that no field has."""

    def is_required(self, field: Field[Any]) -> bool:
        """Return whether a field has to be there; a default alone does not make it optional."""
        return not is_added_later(field)

    def missing(self, field: Field[Any], path: Path) -> NoReturn:
        """Raise for a required field that is not there."""
        raise MismatchError(dotted((*path, self.key_of(field))), "is missing")

    def check_range(self, hint: object, value: object, path: Path) -> None:
        """Raise for a number that no count, size or time can be."""
        if hint is int and not 0 <= cast("int", value) <= _MAXIMUM_INTEGER:
            self.refuse_as("between 0 and 2**63 - 1", value, path)
        if hint is float and not 0 <= cast("float", value) <= _MAXIMUM_INTEGER:
            self.refuse_as("a number of at least 0", value, path)

    def refuse(self, hint: object, value: object, path: Path, _field: Field[Any] | None) -> NoReturn:
        """Raise for a value of another type than its hint says."""
        if found := choices(hint):
            self.refuse_as("one of " + ", ".join(f"`{choice}`" for choice in found), value, path)
        self.refuse_as(_json_name(hint), value, path)

    def refuse_as(self, wanted: str, value: object, path: Path) -> NoReturn:
        """Raise for a value that is not what is wanted, in words."""
        raise MismatchError(dotted(path), f"is {shown(value)}, not {wanted}")


def type_hints(kind: object) -> dict[str, object]:
    """Return the types of a dataclass's fields by the fields' names."""
    return _type_hints(kind)


@cache
def _type_hints(kind: Hashable) -> dict[str, object]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in class_fields(kind)}


def class_fields(kind: object) -> tuple[Field[Any], ...]:
    """Return the fields of a dataclass."""
    return fields(cast("Any", kind))


def is_added_later(field: Field[Any]) -> bool:
    """Return whether data may lack a field."""
    return ADDED_LATER.items() <= field.metadata.items()


def choices(hint: object) -> tuple[object, ...]:
    """Return the values that a `Literal` or an enum allows; nothing for any other type."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return tuple(member.value for member in hint)
    return get_args(hint) if get_origin(hint) is Literal else ()


def is_scalar(hint: object, value: object) -> bool:
    """Return whether a value is a string, a number or a truth value as its hint asks; true is no integer."""
    return isinstance(value, SCALARS.get(hint, ())) and isinstance(value, bool) == (hint is bool)


def dotted(path: Path) -> str:
    """Return a path as messages show it, such as `result.trials[3].outcome`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def shown(value: object) -> str:
    """Return a wrong JSON value as messages show it."""
    return _JSON_NAMES[type(value)] if isinstance(value, dict | list) else f"`{cut(json.dumps(value))}`"


def cut(text: str) -> str:
    """Return a text as messages show it, cut where it is long."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _json_name(hint: object) -> str:
    """Return what JSON calls the values of a type; of a union its first."""
    if is_dataclass(hint):
        return _JSON_NAMES[dict]
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _json_name(next(kind for kind in get_args(hint) if kind is not NoneType))
    return _JSON_NAMES[hint if origin is None else origin]
