"""The plan of each test: its limit and its card, from markers, options and the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import pytest

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.monitor import has_local_gpu
from oomdoctor.errors import NoAnswerError, OomdoctorError, UsageError
from oomdoctor.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable


MARKER: Final = "gpu_memory"
_EXAMPLE: Final = '`@pytest.mark.gpu_memory("20 GiB", gpu="rtx-4090")`'


@dataclass(frozen=True, slots=True)
class MarkerLimits:
    """Limit and card of a test's markers.

    Attributes:
        limit_bytes: Most bytes that may be allocated at one time; None where no marker says.
        card: Key of the card to run on; None where no marker says.
    """

    limit_bytes: int | None = None
    card: str | None = None


def read_markers(item: pytest.Item) -> MarkerLimits | None:
    """Return the limit and card of a test's markers, the nearest first; None where it has none.

    Raises:
        UsageError: A marker has arguments that it does not take.
    """
    wishes = [_read_marker(mark, item) for mark in item.iter_markers(MARKER)]
    if not wishes:
        return None
    return MarkerLimits(
        next((wish.limit_bytes for wish in wishes if wish.limit_bytes is not None), None),
        next((wish.card for wish in wishes if wish.card is not None), None),
    )


def _read_marker(mark: pytest.Mark, item: pytest.Item) -> MarkerLimits:
    try:
        given = _arguments(mark)
        return MarkerLimits(_limit(given.get("limit")), _card(given.get("gpu")))
    except UsageError as error:
        raise UsageError(f"`{MARKER}` of `{item.nodeid}`: {error.message}", hint=error.hint) from None


def _arguments(mark: pytest.Mark) -> dict[str, object]:
    if len(mark.args) > 1:
        raise UsageError(f"it takes one limit, and not {len(mark.args)}", hint=f"for example {_EXAMPLE}")
    unknown = sorted(mark.kwargs.keys() - {"limit", "gpu"})
    if unknown:
        raise UsageError(f"it takes `limit` and `gpu`, and not `{unknown[0]}`", hint=f"for example {_EXAMPLE}")
    if mark.args and "limit" in mark.kwargs:
        raise UsageError("its limit is given twice", hint=f"for example {_EXAMPLE}")
    return {**mark.kwargs, **({"limit": mark.args[0]} if mark.args else {})}


def _limit(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        return parse_size(value)
    if type(value) is not int or value < 1:
        raise UsageError(
            f"the limit is a size or a positive number of bytes, and not {value!r}", hint=f"for example {_EXAMPLE}"
        )
    return value


def _card(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise UsageError(f"`gpu` is the name of a card, and not {value!r}", hint=f"for example {_EXAMPLE}")
    return find_card(value).key


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults for a test whose marker does not say.

    Attributes:
        limit_bytes: Most bytes that may be allocated at one time.
        card: Key of the card to run on.
    """

    limit_bytes: int | None
    card: str | None


def read_defaults(config: pytest.Config) -> Defaults:
    """Read the defaults from the command line, or from pytest's configuration file.

    Raises:
        UsageError: The limit is no size, or the card is unknown.
    """
    return Defaults(
        _read_option(config, "gpu_memory_limit", parse_size), _read_option(config, "gpu_memory_gpu", _default_card)
    )


def project_card(config: pytest.Config) -> str | None:
    """Return the card that the `[tool.oomdoctor]` of the project names, which `oomdoctor check` runs on too.

    Raises:
        UsageError: The configuration cannot be read, or the card is unknown.
    """
    from oomdoctor.config.files import find_configuration  # noqa: PLC0415 - few sessions need it

    found = find_configuration(config.rootpath)
    return None if found is None or found.values.gpu is None else _default_card(found.values.gpu)


def wants_report(config: pytest.Config) -> bool:
    """Return whether the peaks of all measured tests are to be listed."""
    return bool(config.getoption("gpu_memory_report") or config.getini("gpu_memory_report"))


def _default_card(name: str) -> str:
    return find_card(name).key


def _read_option(config: pytest.Config, name: str, parse: Callable[[str], T]) -> T | None:
    option, setting = config.getoption(name), config.getini(name)
    text, source = (option, f"--{name.replace('_', '-')}") if option is not None else (setting, name)
    if not text:
        return None
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"`{source}`: {error.message}", hint=error.hint) from None


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of one test: where it runs, and its limit.

    Attributes:
        limit_bytes: Most bytes that may be allocated at one time; None for as many as the card has.
        card: Key of the card that a null GPU plays; None for a GPU of this machine.
        marked: Whether the test asked to be measured, and is not merely run while a limit for all holds.
        problem: Why it cannot be measured; None where it can.
    """

    limit_bytes: int | None
    card: str | None = None
    marked: bool = True
    problem: str | None = None


PLAN: Final = pytest.StashKey[Plan]()
_NO_CARD: Final = NoAnswerError(
    "this machine has no GPU to measure on, and no card is named",
    hint='name one: `@pytest.mark.gpu_memory(gpu="rtx-4090")`, `--gpu-memory-gpu rtx-4090`, or `gpu_memory_gpu` in\n'
    "pytest's configuration; `oomdoctor gpus --known` lists the cards",
)


class Planner:
    """Makes plans, and looks but once for what they share.

    Args:
        config: The session's.
        defaults: What holds where no marker says it.
    """

    def __init__(self, config: pytest.Config, defaults: Defaults) -> None:
        self._config = config
        self._defaults = defaults
        self._project_card: str | None = None
        self._has_gpu: bool | None = None

    def plan(self, item: pytest.Item) -> Plan | None:
        """Return the plan of a test; None where it is none of ours.

        Raises:
            UsageError: A marker or the project's configuration is wrong.
        """
        wish = read_markers(item)
        if wish is not None:
            return self._of_marked(wish)
        if self._defaults.limit_bytes is not None and self._sees_gpu():
            return Plan(self._defaults.limit_bytes, marked=False)
        return None

    def _of_marked(self, wish: MarkerLimits) -> Plan:
        limit = wish.limit_bytes if wish.limit_bytes is not None else self._defaults.limit_bytes
        card = wish.card or self._defaults.card or self._card_of_project()
        if card is None and not self._sees_gpu():
            return Plan(limit, problem=explained(_NO_CARD))
        return Plan(limit, card)

    def _card_of_project(self) -> str | None:
        if self._project_card is None:
            self._project_card = project_card(self._config) or ""
        return self._project_card or None

    def _sees_gpu(self) -> bool:
        if self._has_gpu is None:
            self._has_gpu = has_local_gpu()
        return self._has_gpu


def explained(error: OomdoctorError) -> str:
    """Return an error with its hint and its details, as the text of a report."""
    hint = "" if error.hint is None else "\nhint: " + error.hint.replace("\n", "\n      ")
    return f"{error.message}{hint}" + (f"\n{error.details}" if error.details else "")
