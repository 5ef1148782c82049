"""Remedies in the trials of a command: what its agent is told to apply, and what it says that it has applied."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from oomdoctor.errors import NotApplicableError
from oomdoctor.remedies.catalogue import remedy
from oomdoctor.remedies.file_edit import AppliedChange, FileEdit

if TYPE_CHECKING:
    from oomdoctor.agent.messages import RemedyApplied
    from oomdoctor.command.trial_events import TrialEvents
    from oomdoctor.results import Variant


def remedy_settings(variant: Variant) -> dict[str, str]:
    """Return the agent's settings for a variant; none where it changes nothing in the program."""
    if not variant.transformations and variant.precision == "fp32":
        return {}
    of_optimizers = [name for name in variant.transformations if remedy(name).kind == "optimizer"]
    asked = {
        "model": [name for name in variant.transformations if name not in of_optimizers],
        "optimizer": of_optimizers,
        "autocast": None if variant.precision == "fp32" else variant.precision,
    }
    return {"OOMDOCTOR_TRIAL_REMEDIES": json.dumps(asked)}


def applied_changes(variant: Variant, events: TrialEvents) -> tuple[AppliedChange, ...]:
    """Return what the agent has applied in a trial.

    Raises:
        NotApplicableError: A process could not apply it.
    """
    if not remedy_settings(variant):
        return ()
    problem = next((told.problem for told in events.remedies if told.problem is not None), None)
    if problem is not None:
        raise NotApplicableError(problem, hint="leave the remedy out")
    return tuple(map(_change, events.remedies[0].remedies)) if events.remedies else ()


def _change(told: RemedyApplied) -> AppliedChange:
    edit = FileEdit()
    for part in told.edit:
        if isinstance(getattr(edit, part.place, None), tuple):  # a field of lines, and no other word that was sent
            edit = replace(edit, **{part.place: part.lines})  # type: ignore[arg-type]
    return AppliedChange(told.name, told.acts_on, told.count, told.total, edit, told.note)
