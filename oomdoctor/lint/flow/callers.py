"""How a function's lines run where other files of the repository call it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from oomdoctor.lint.flow.context import Gradients
from oomdoctor.lint.flow.runs import runs_of

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Module
    from oomdoctor.lint.code.project import Project
    from oomdoctor.lint.flow.events import Event

_MOST_CALLERS: Final = 8

_Place: TypeAlias = tuple[str, int, int]


def gradients_by_callers(event: Event) -> Gradients | None:
    """Whether autograd records at an event where other files call the function that its run began with.

    Args:
        event: Of a run that began with a function of `event.module`.

    Returns:
        OFF where each call that was found switches recording off, ON or UNKNOWN where one does not; None where no
        other file calls the function.
    """
    project = event.module.project
    if project is None or not event.context.frames:
        return None
    entry = event.context.frames[0].function
    seen: set[str] = set()
    for module in project.callers(entry.name, entry.module, _MOST_CALLERS):
        seen |= _recorded(project, module).get(_place(event), set())
    if not seen:
        return None
    return Gradients(seen.pop()) if len(seen) == 1 else Gradients.UNKNOWN


def _recorded(project: Project, module: Module) -> dict[_Place, set[str]]:
    """By place in other files, whether autograd records there in the runs that begin in `module`."""
    found = project.recorded.get(module.path)
    if found is None:
        found = project.recorded[module.path] = {}
        for run in runs_of(module):
            for event in run.events:
                if event.module is not module:
                    found.setdefault(_place(event), set()).add(event.context.gradients)
    return found


def _place(event: Event) -> _Place:
    return str(event.module.path), event.node.lineno, event.node.col_offset
