"""Take part in a session: plan each test, and register what runs and measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oomdoctor.errors import UsageError
from oomdoctor.pytest_plugin.options import read_defaults
from oomdoctor.pytest_plugin.plan import PLAN, Plan, Planner, explained
from oomdoctor.pytest_plugin.vocabulary import IN_CHILD

if TYPE_CHECKING:
    from collections.abc import Iterable


def check_options(config: pytest.Config) -> None:
    """Refuse options that mean nothing, before anything is collected.

    Raises:
        pytest.UsageError: The limit is no size, or the card is unknown.
    """
    try:
        read_defaults(config)
    except UsageError as error:
        raise pytest.UsageError(explained(error)) from None


def join(session: pytest.Session) -> None:
    """Plan every test, and have those that are ours run where they belong."""
    if IN_CHILD in session.config.stash:  # the session that started this one has made the plans
        return
    for item, plan in _plans(session):
        item.stash[PLAN] = plan
    plans = [item.stash[PLAN] for item in session.items if PLAN in item.stash]
    manager = session.config.pluginmanager
    if any(plan.card is None and plan.problem is None for plan in plans):
        from oomdoctor.pytest_plugin.measuring import Measuring  # noqa: PLC0415 - only sessions on a GPU need it

        manager.register(Measuring(), "oomdoctor-measuring")
    if any(plan.card is not None or plan.problem is not None for plan in plans):
        from oomdoctor.pytest_plugin.conducting import Conductor  # noqa: PLC0415 - only null GPUs need it

        manager.register(Conductor(session), "oomdoctor-conductor")


def _plans(session: pytest.Session) -> Iterable[tuple[pytest.Item, Plan]]:
    planner = Planner(session.config, read_defaults(session.config))
    for item in session.items:
        try:
            plan = planner.plan(item)
        except UsageError as error:  # of this test alone: others run, and every wrong marker is named in one run
            plan = Plan(None, problem=explained(error))
        if plan is not None:
            yield item, plan
