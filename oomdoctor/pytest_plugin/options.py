"""The plugin's options, and their twins in pytest's configuration file; the command line comes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from oomdoctor.devices.catalogue import find_card
from oomdoctor.errors import UsageError
from oomdoctor.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds for a test that does not say it itself.

    Attributes:
        limit_bytes: Most bytes that may be allocated at one time.
        card: Key of the card to run on.
    """

    limit_bytes: int | None
    card: str | None


def read_defaults(config: pytest.Config) -> Defaults:
    """What the command line says, or pytest's configuration file.

    Raises:
        UsageError: The limit is no size, or the card is unknown.
    """
    return Defaults(_read(config, "gpu_memory_limit", parse_size), _read(config, "gpu_memory_gpu", _card))


def project_card(config: pytest.Config) -> str | None:
    """The card that the `[tool.oomdoctor]` of the project names, which `oomdoctor check` runs on too.

    Raises:
        UsageError: The configuration cannot be read, or the card is unknown.
    """
    from oomdoctor.configuration.files import find_configuration  # noqa: PLC0415 - few sessions need it

    found = find_configuration(config.rootpath)
    return None if found is None or found.values.gpu is None else _card(found.values.gpu)


def wants_report(config: pytest.Config) -> bool:
    """Whether the peaks of all measured tests are to be listed."""
    return bool(config.getoption("gpu_memory_report") or config.getini("gpu_memory_report"))


def _card(name: str) -> str:
    return find_card(name).key


def _read(config: pytest.Config, name: str, parse: Callable[[str], T]) -> T | None:
    option, setting = config.getoption(name), config.getini(name)
    text, source = (option, f"--{name.replace('_', '-')}") if option is not None else (setting, name)
    if not text:
        return None
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"`{source}`: {error.message}", hint=error.hint) from None
