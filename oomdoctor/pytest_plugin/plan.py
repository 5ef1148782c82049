"""Where a test is to run and what it may allocate, decided once when tests have been collected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from oomdoctor.devices.monitor import has_local_gpu
from oomdoctor.errors import NoAnswerError, OomdoctorError
from oomdoctor.pytest_plugin.marker import read_markers
from oomdoctor.pytest_plugin.options import Defaults, project_card

if TYPE_CHECKING:
    from oomdoctor.pytest_plugin.marker import Wish


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done with one test.

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
        """What is to be done with a test; None where it is none of ours.

        Raises:
            UsageError: A marker or the project's configuration is wrong.
        """
        wish = read_markers(item)
        if wish is not None:
            return self._of_marked(wish)
        if self._defaults.limit_bytes is not None and self._sees_gpu():
            return Plan(self._defaults.limit_bytes, marked=False)
        return None

    def _of_marked(self, wish: Wish) -> Plan:
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
    """An error with its hint and its details, as the text of a report."""
    hint = "" if error.hint is None else "\nhint: " + error.hint.replace("\n", "\n      ")
    return f"{error.message}{hint}" + (f"\n{error.details}" if error.details else "")
