"""The plan of each test: its limit and its card, from markers, options and the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.monitor import has_local_gpu
from oomdoctor.errors import NoAnswerError, OomdoctorError, UsageError
from oomdoctor.results import LoneRank
from oomdoctor.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


MARKER: Final = "gpu_memory"
_EXAMPLE: Final = '`@pytest.mark.gpu_memory("20 GiB", gpu="rtx-4090")`'


@dataclass(frozen=True, slots=True)
class Limits:
    """Limit and card that a test's markers ask for, or the options for all tests.

    Attributes:
        limit_bytes: Most bytes that may be allocated at one time; None where nobody says.
        card: Key of the card to run on; None where nobody says.
        rank: The rank of a world that the test plays alone; None where nobody says.
    """

    limit_bytes: int | None = None
    card: str | None = None
    rank: LoneRank | None = None


def read_markers(item: pytest.Item) -> Limits | None:
    """Return the limit and card of a test's markers, the nearest first; None where it has none.

    Raises:
        UsageError: A marker has arguments that it does not take.
    """
    wishes = [_read_marker(mark, item) for mark in item.iter_markers(MARKER)]
    if not wishes:
        return None
    return Limits(
        next((wish.limit_bytes for wish in wishes if wish.limit_bytes is not None), None),
        next((wish.card for wish in wishes if wish.card is not None), None),
        next((wish.rank for wish in wishes if wish.rank is not None), None),
    )


def _read_marker(mark: pytest.Mark, item: pytest.Item) -> Limits:
    unknown = sorted(mark.kwargs.keys() - {"limit", "gpu", "world_size", "rank"})
    limit, gpu = mark.args[0] if mark.args else mark.kwargs.get("limit"), mark.kwargs.get("gpu")
    problem = ""
    if len(mark.args) > 1:
        problem = f"it takes one limit, and not {len(mark.args)}"
    elif unknown:
        problem = f"it takes `limit`, `gpu`, `world_size` and `rank`, and not `{unknown[0]}`"
    elif mark.args and "limit" in mark.kwargs:
        problem = "its limit is given twice"
    elif not isinstance(limit, str | None) and (type(limit) is not int or limit < 1):
        problem = f"the limit is a size or a positive number of bytes, and not {limit!r}"
    elif not isinstance(gpu, str | None):
        problem = f"`gpu` is the name of a card, and not {gpu!r}"
    problem = problem or _problem_of_rank(mark.kwargs)
    if problem:
        raise UsageError(f"`{MARKER}` of `{item.nodeid}`: {problem}", hint=f"for example {_EXAMPLE}")
    try:
        return Limits(
            parse_size(limit) if isinstance(limit, str) else limit,
            None if gpu is None else find_card(gpu).key,
            LoneRank(mark.kwargs.get("rank", 0), mark.kwargs["world_size"]) if "world_size" in mark.kwargs else None,
        )
    except UsageError as error:
        raise UsageError(f"`{MARKER}` of `{item.nodeid}`: {error.message}", hint=error.hint) from None


def _problem_of_rank(named: Mapping[str, Any]) -> str:
    """Return what is wrong with a marker's rank and its world; empty where nothing is."""
    if "world_size" not in named:
        return "`rank` is one of a world, and `world_size` is not given" if "rank" in named else ""
    world_size, rank = named["world_size"], named.get("rank", 0)
    if type(world_size) is not int or world_size < 1:
        return f"`world_size` is a positive number of ranks, and not {world_size!r}"
    if type(rank) is not int or not 0 <= rank < world_size:
        return f"`rank` is a number below the world size of {world_size}, and not {rank!r}"
    return ""


T = TypeVar("T")


def read_defaults(config: pytest.Config) -> Limits:
    """Read the defaults from the command line, or from pytest's configuration file.

    Raises:
        UsageError: The limit is no size, or the card is unknown.
    """
    limit = _read_option(config, "gpu_memory_limit", parse_size)
    return Limits(limit, _read_option(config, "gpu_memory_gpu", lambda name: find_card(name).key))


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
class MarkerPlan:
    """Plan of one test: where it runs, and its limit.

    Attributes:
        limit_bytes: Most bytes that may be allocated at one time; None for as many as the card has.
        card: Key of the card that a null GPU plays; None for a GPU of this machine.
        marked: Whether the test asked to be measured, and is not merely run while a limit for all holds.
        problem: Why it cannot be measured; None where it can.
        rank: The rank of a world that it plays alone; None for a test of one process.
    """

    limit_bytes: int | None
    card: str | None = None
    marked: bool = True
    problem: str | None = None
    rank: LoneRank | None = None

    @property
    def process(self) -> str | None:
        """Name of the process that runs it, which tests of one card and one rank share; None for this one."""
        if self.card is None or self.rank is None:
            return self.card
        return f"{self.card}-rank-{self.rank.rank}-of-{self.rank.world_size}"


PLAN: Final = pytest.StashKey[MarkerPlan]()
_NO_CARD: Final = NoAnswerError(
    "this machine has no GPU to measure on, and no card is named",
    hint='name one: `@pytest.mark.gpu_memory(gpu="rtx-4090")`, `--gpu-memory-gpu rtx-4090`, or `gpu_memory_gpu` in\n'
    "pytest's configuration; `oomdoctor gpus --known` lists the cards",
)
_RANK_WITHOUT_CARD: Final = NoAnswerError(
    "a rank runs alone on a null GPU only, and no card is named",
    hint='name one: `@pytest.mark.gpu_memory(gpu="h100-sxm", world_size=64)`',
)


class MarkerPlanner:
    """Makes plans, and looks but once for what they share.

    Args:
        config: The session's.
        defaults: What holds where no marker says it.
    """

    def __init__(self, config: pytest.Config, defaults: Limits) -> None:
        self._config = config
        self._defaults = defaults

    def plan(self, item: pytest.Item) -> MarkerPlan | None:
        """Return the plan of a test; None where it is none of ours.

        Raises:
            UsageError: A marker or the project's configuration is wrong.
        """
        wish = read_markers(item)
        if wish is None:
            measured = self._defaults.limit_bytes is not None and self._has_gpu
            return MarkerPlan(self._defaults.limit_bytes, marked=False) if measured else None
        limit = wish.limit_bytes if wish.limit_bytes is not None else self._defaults.limit_bytes
        card = wish.card or self._defaults.card or self._project_card
        if card is None and not self._has_gpu:
            return MarkerPlan(limit, problem=explained(_NO_CARD))
        if card is None and wish.rank is not None:
            return MarkerPlan(limit, problem=explained(_RANK_WITHOUT_CARD))
        return MarkerPlan(limit, card, rank=wish.rank)

    @cached_property
    def _project_card(self) -> str | None:
        """The card that the `[tool.oomdoctor]` of the project names, which `oomdoctor check` runs on too."""
        from oomdoctor.config.files import find_configuration  # noqa: PLC0415 - few sessions need it

        found = find_configuration(self._config.rootpath)
        return None if found is None or found.values.gpu is None else find_card(found.values.gpu).key

    @cached_property
    def _has_gpu(self) -> bool:
        return has_local_gpu()


def explained(error: OomdoctorError) -> str:
    """Return an error with its hint and its details, as the text of a report."""
    hint = "" if error.hint is None else "\nhint: " + error.hint.replace("\n", "\n      ")
    return f"{error.message}{hint}" + (f"\n{error.details}" if error.details else "")
