"""Settings laid over each other: what comes first wins, and where each value came from is kept."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from oomdoctor.configuration.shapes import fields_by_key
from oomdoctor.configuration.writing import toml_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")

DEFAULT: Final = "default"
COMMAND_LINE: Final = "the command line"


@dataclass(frozen=True, slots=True)
class Layer(Generic[T]):
    """What one source says.

    Attributes:
        values: A table; None in a field stands for silence.
        origins: Where each value came from, by the field's name, in words for the reader.
    """

    values: T
    origins: Mapping[str, str]

    @classmethod
    def of(cls, values: T, origin: str) -> Layer[T]:
        """A layer all of whose values come from one place."""
        return cls(values, {name: origin for name, value in _given(values).items()})


@dataclass(frozen=True, slots=True)
class Settled(Generic[T]):
    """What holds.

    Attributes:
        values: A table; None where not even a default says anything.
        origins: Where each value came from, by the field's name.
    """

    values: T
    origins: Mapping[str, str]

    def lines(self) -> list[str]:
        """Each setting that has a value, as TOML, with its origin: `fail-on = "error"  (from pyproject.toml)`."""
        return [
            f"{key} = {toml_value(getattr(self.values, field.name))}  ({_from(self.origins[field.name])})"
            for key, field in fields_by_key(self.values).items()
            if field.name in self.origins
        ]


def settle(layers: Sequence[Layer[T]], defaults: T) -> Settled[T]:
    """For each field the value of the first layer that has one.

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
