"""Layers of settings: the command line over the environment variables over the file over the defaults."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, cast

from oomdoctor.config.decoding import (
    TomlDecoder,
    fields_by_key,
    item_type,
    mapped_type,
    toml_value,
    type_of,
)
from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from dataclasses import Field


T = TypeVar("T")

DEFAULT: Final = "default"
COMMAND_LINE: Final = "the command line"


@dataclass(frozen=True, slots=True)
class Layer(Generic[T]):
    """Settings of one source.

    Attributes:
        values: A table; None in a field stands for silence.
        origins: Where each value came from, by the field's name, in words for the reader.
    """

    values: T
    origins: Mapping[str, str]

    @classmethod
    def of(cls, values: T, origin: str) -> Layer[T]:
        """Return a layer all of whose values come from one place."""
        return cls(values, {name: origin for name, value in _given(values).items()})


@dataclass(frozen=True, slots=True)
class Settled(Generic[T]):
    """Settings of all layers, the first one that has a value winning.

    Attributes:
        values: A table; None where not even a default says anything.
        origins: Where each value came from, by the field's name.
    """

    values: T
    origins: Mapping[str, str]

    def lines(self) -> list[str]:
        """Yield each setting that has a value as TOML, as `fail-on = "error"  (from pyproject.toml)`."""
        return [
            f"{key} = {toml_value(getattr(self.values, field.name))}  ({_from(self.origins[field.name])})"
            for key, field in fields_by_key(self.values).items()
            if field.name in self.origins
        ]


def settle(layers: Sequence[Layer[T]], defaults: T) -> Settled[T]:
    """Return for each field the value of the first layer that has one.

    Args:
        layers: The strongest first.
        defaults: A table with what holds where no layer says anything.
    """
    ordered = [
        *layers,
        Layer(defaults, dict.fromkeys((field.name for field in fields(cast("Any", defaults))), DEFAULT)),
    ]
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for layer in ordered:
        for name, value in _given(layer.values).items():
            if name not in values:
                values[name], origins[name] = value, layer.origins[name]
    return Settled(type(defaults)(**values), origins)


def _given(table: object) -> dict[str, object]:
    pairs = ((field.name, getattr(table, field.name)) for field in fields(cast("Any", table)))
    return {name: value for name, value in pairs if value is not None}


def _from(origin: str) -> str:
    return origin if origin == DEFAULT else f"from {origin}"


PREFIX: Final = "OOMDOCTOR_"
_NEARLY: Final = 0.85
"""How alike a name has to be to one of ours to be taken for a slip; `CONFIG`, `NULL_NAME` and others are not."""

_BOOLEANS: Mapping[str, bool] = MappingProxyType(
    {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off"), False)}
)


def read_environment(table: type[T], name: str, environment: Mapping[str, str]) -> Layer[T]:
    """Read one table from the environment; an empty variable counts as not given.

    Args:
        table: The table's dataclass, all of whose fields have None for what is not given.
        name: The table's key in the schema, such as `lint`.
        environment: Variables by name.

    Raises:
        UsageError: A variable with the table's prefix belongs to none of its keys, or its value has a wrong form.
    """
    prefix = f"{PREFIX}{name.upper()}_"
    given = _variables(environment, prefix)
    for variable in given:
        if variable not in _fields(table, prefix):
            _refuse_variable(variable, prefix, table)
    return _layer(table, prefix, given)


def read_top(table: type[T], environment: Mapping[str, str]) -> Layer[T]:
    """Read the keys at the top of a configuration from the environment: `OOMDOCTOR_GPU` for `gpu`.

    Other variables may begin with the same letters; only what is all but one of these is refused.

    Args:
        table: As for `read_environment`.
        environment: Variables by name.

    Raises:
        UsageError: A variable is nearly one of the table's keys, or its value has a wrong form.
    """
    given, fields = _variables(environment, PREFIX), _fields(table, PREFIX)
    for variable in given:
        if variable not in fields and difflib.get_close_matches(
            variable.removeprefix(PREFIX), [each.removeprefix(PREFIX) for each in fields], 1, _NEARLY
        ):
            _refuse_variable(variable, PREFIX, table)
    return _layer(table, PREFIX, {variable: text for variable, text in given.items() if variable in fields})


def _variables(environment: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        name: environment[name] for name in sorted(environment) if name.startswith(prefix) and environment[name].strip()
    }


def _fields(table: type, prefix: str) -> dict[str, Field[Any]]:
    return {f"{prefix}{field.name.upper()}": field for field in fields_by_key(table).values()}


def _layer(table: type[T], prefix: str, given: Mapping[str, str]) -> Layer[T]:
    fields, decoder = _fields(table, prefix), TomlDecoder("the environment", table)
    values, origins = {}, {}
    for variable, text in given.items():
        field = fields[variable]
        hint = type_of(table, field)
        values[field.name] = decoder.value(hint, _parsed(hint, text, variable), (variable,), field)
        origins[field.name] = variable
    return Layer(table(**values), origins)


def pairs(text: str, option: str) -> dict[str, list[str]]:
    """Parse `PATTERN:CODE,PATTERN:CODE` into codes by pattern.

    Raises:
        UsageError: A pair has no colon, or nothing on one side of it.
    """
    found: dict[str, list[str]] = {}
    for part in items(text):
        pattern, _, code = (each.strip() for each in part.rpartition(":"))
        if not pattern or not code:
            raise UsageError(
                f"`{option}` takes pairs of a pattern and a code, and not `{part}`",
                hint='for example `"tests/**:OOM101"`',
            )
        found.setdefault(pattern, []).append(code)
    return found


def items(text: str) -> list[str]:
    """Return parts between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _parsed(hint: object, text: str, variable: str) -> object:
    """Return the text as the value that a file would have; text of another form stays text, to be refused."""
    if item_type(hint) is not None:
        return items(text)
    if mapped_type(hint) is not None:
        return pairs(text, variable)
    try:
        return _CONVERTERS.get(hint, str)(text.strip())
    except (ValueError, KeyError):
        return text


def _boolean(text: str) -> bool:
    return _BOOLEANS[text.lower()]


_CONVERTERS: Mapping[object, Callable[[str], object]] = MappingProxyType({int: int, float: float, bool: _boolean})


def _refuse_variable(variable: str, prefix: str, table: type) -> NoReturn:
    names = [field.name.upper() for field in fields_by_key(table).values()]
    # The prefix alone would make every name look near.
    near = difflib.get_close_matches(variable.removeprefix(prefix), names, 1)
    hint = f"did you mean `{prefix}{near[0]}`?" if near else f"known are `{prefix}` and one of {', '.join(names)}"
    raise UsageError(f"unknown variable `{variable}` in the environment", hint=hint)
