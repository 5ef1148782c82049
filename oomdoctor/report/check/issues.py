"""The issues that a check found: path and words of each, for annotations, code scanning and test reports."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from oomdoctor.report.check import sentences
from oomdoctor.report.issues import target_file
from oomdoctor.report.plain_text import sentence
from oomdoctor.results import LimitName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.results import CheckedEntry, CheckResult, Limit, Movement


_MOST_MOVEMENTS: Final = 10


def path(result: CheckResult, entry: CheckedEntry) -> str | None:
    """The target's file from the working directory; the configuration where a module or an example is checked."""
    file = target_file(entry.target)
    if file is None:
        return result.configuration or None
    # Targets are given from the folder of the configuration.
    return str(PurePath(result.configuration).parent / file)


def limit_lines(entry: CheckedEntry, limit: Limit) -> tuple[str, ...]:
    """What a broken limit says: itself, what moved where it is the baseline, else what the probe found."""
    if limit.name is LimitName.BASELINE:
        moved = list(_listed(sentences.beyond(entry)))
        hint = f"help: `{sentences.UPDATE}` makes it the baseline, if it is meant" if moved else ""
        return (sentence(limit.text), *moved, hint)
    found = sentences.answer(entry)
    return (sentence(limit.text), f"{sentence(found)}" if found else "")


def problem_lines(entry: CheckedEntry) -> tuple[str, ...]:
    """Why an entry has no answer, and what to do about it; nothing where it has one."""
    if entry.problem is None:
        return ()
    help_lines = (entry.problem.hint or "").splitlines()
    hint = [f"help: {help_lines[0]}", *help_lines[1:]] if help_lines else []
    return (sentence(entry.problem.message), *hint)


def within_lines(entry: CheckedEntry) -> tuple[str, ...]:
    """What moved and fails nothing."""
    return tuple(_listed(sentences.within(entry)))


def _listed(movements: Sequence[Movement]) -> Iterator[str]:
    shown, more = sentences.first(movements, _MOST_MOVEMENTS)
    yield from (movement.text for movement in shown)
    if more:
        yield more
