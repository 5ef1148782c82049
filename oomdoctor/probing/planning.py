"""A plan whose every micro-batch was run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.probing.accumulation import plan_accumulation

if TYPE_CHECKING:
    from oomdoctor.probing.session import Session
    from oomdoctor.results import Accumulation


def checked_plan(
    session: Session, target_batch: int, world_size: int, *, maximum: int, recommended: int
) -> Accumulation | None:
    """A plan whose every micro-batch was run.

    Near the maximum fitting is not monotone: a size may fit because its blocks happen to be whole pages, and the one
    below it not. Then the next plan is that of the recommended size, which fits without any luck.
    """
    limit = maximum
    while limit > 0:
        plan = plan_accumulation(target_batch, limit, world_size)
        if session.check_plan(plan):
            return plan
        limit = recommended if recommended < limit else limit * 9 // 10
    return None
