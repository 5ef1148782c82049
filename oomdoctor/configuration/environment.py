"""Settings from environment variables: `OOMDOCTOR_LINT_FAIL_ON` for `fail-on` in the table `[lint]`."""

from __future__ import annotations

import difflib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

from oomdoctor.configuration.decoding import Place, decode_value
from oomdoctor.configuration.layers import Layer
from oomdoctor.configuration.shapes import fields_by_key, item_type, mapped_type, type_hints
from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from dataclasses import Field

T = TypeVar("T")

PREFIX: Final = "OOMDOCTOR_"
_NEARLY: Final = 0.85
"""How alike a name has to be to one of ours to be taken for a slip; `CONFIG`, `NULL_NAME` and others are not."""

_BOOLEANS: Mapping[str, bool] = MappingProxyType(
    {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off"), False)}
)


def read_environment(table: type[T], name: str, environment: Mapping[str, str]) -> Layer[T]:
    """What the environment says of one table; an empty variable says nothing.

    Args:
        table: The table's dataclass, all of whose fields have None for what is not given.
        name: The table's key in the schema, such as `lint`.
        environment: Variables by name.

    Raises:
        UsageError: A variable with the table's prefix belongs to none of its keys, or its value has a wrong form.
    """
    prefix = f"{PREFIX}{name.upper()}_"
    given = _given(environment, prefix)
    for variable in given:
        if variable not in _fields(table, prefix):
            _refuse_variable(variable, prefix, table)
    return _layer(table, prefix, given)


def read_top(table: type[T], environment: Mapping[str, str]) -> Layer[T]:
    """What the environment says of keys at the top of a configuration: `OOMDOCTOR_GPU` for `gpu`.

    Other variables may begin with the same letters; only what is all but one of these is refused.

    Args:
        table: As for `read_environment`.
        environment: Variables by name.

    Raises:
        UsageError: A variable is nearly one of the table's keys, or its value has a wrong form.
    """
    given, fields = _given(environment, PREFIX), _fields(table, PREFIX)
    for variable in given:
        if variable not in fields and difflib.get_close_matches(
            variable.removeprefix(PREFIX), [each.removeprefix(PREFIX) for each in fields], 1, _NEARLY
        ):
            _refuse_variable(variable, PREFIX, table)
    return _layer(table, PREFIX, {variable: text for variable, text in given.items() if variable in fields})


def _given(environment: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        name: environment[name] for name in sorted(environment) if name.startswith(prefix) and environment[name].strip()
    }


def _fields(table: type, prefix: str) -> dict[str, Field[Any]]:
    return {f"{prefix}{field.name.upper()}": field for field in fields_by_key(table).values()}


def _layer(table: type[T], prefix: str, given: Mapping[str, str]) -> Layer[T]:
    fields, hints = _fields(table, prefix), type_hints(cast("Hashable", table))
    values, origins = {}, {}
    for variable, text in given.items():
        field = fields[variable]
        place = Place("the environment", table, (variable,))
        values[field.name] = decode_value(hints[field.name], _parsed(hints[field.name], text, variable), place, field)
        origins[field.name] = variable
    return Layer(table(**values), origins)


def pairs(text: str, option: str) -> dict[str, list[str]]:
    """What `PATTERN:CODE,PATTERN:CODE` says, codes by pattern.

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
    """Parts between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _parsed(hint: object, text: str, variable: str) -> object:
    """The text as the value that a file would have there; what has another form stays text, to be refused as such."""
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
