"""How one entry ended: its answer, what it was asked for, and what the baseline says of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from oomdoctor.checking.baseline.circumstances import common_trials, differences, not_compared
from oomdoctor.checking.baseline.compare import compare
from oomdoctor.checking.baseline.figures import figures_of
from oomdoctor.checking.limits import baseline_limit, broken_first, judge
from oomdoctor.errors import EXIT_NO_ANSWER, OomdoctorError
from oomdoctor.results import CheckedEntry, Problem, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.checking.answers import Answer
    from oomdoctor.checking.baseline.figures import Figures
    from oomdoctor.checking.entry import Entry
    from oomdoctor.probing.found import Probe
    from oomdoctor.results import Limit, Movement

_State: TypeAlias = Literal["none", "missing", "compared", "updated"]

_NOT_WRITTEN = "the baseline was not written, since not every entry has an answer"


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of the baseline.

    Attributes:
        figures: What it had before this check, by entry.
        update: Whether it is to be written.
        is_written: Whether it is, since every entry has an answer.
    """

    figures: Mapping[str, Figures]
    update: bool = False
    is_written: bool = False


def checked_entry(entry: Entry, answer: Answer, standing: Standing, not_kept: str | None = None) -> CheckedEntry:
    """Judge one entry.

    Args:
        entry: What was asked.
        answer: What was found, or why nothing was.
        standing: What is known of the baseline.
        not_kept: Why the answer cannot be used again, where its target is the reason.
    """
    if isinstance(answer, OomdoctorError):
        return _without_answer(entry, answer)
    result, against = answer.result, _Comparison.of(entry, answer, standing)
    limits = broken_first((*judge(entry, result), *against.limits))
    return CheckedEntry(
        name=entry.name,
        target=entry.request.target,
        gpu=entry.request.gpu,
        verdict=Verdict.PASSED if all(limit.holds for limit in limits) else Verdict.FAILED,
        limits=limits,
        movements=against.movements,
        baseline=against.state,
        tolerance=entry.tolerance,
        profiled_micro_batch=result.memory.micro_batch if result.memory else against.size,
        probe=result,
        problem=None,
        warnings=against.warnings,
        not_kept=not_kept,
    )


def _without_answer(entry: Entry, error: OomdoctorError) -> CheckedEntry:
    return CheckedEntry(
        name=entry.name,
        target=entry.request.target,
        gpu=entry.request.gpu,
        verdict=Verdict.NO_ANSWER if error.exit_code == EXIT_NO_ANSWER else Verdict.ERROR,
        limits=(),
        movements=(),
        baseline="none",
        tolerance=entry.tolerance,
        profiled_micro_batch=None,
        probe=None,
        problem=Problem(error.message, error.hint, error.details, error.exit_code),
    )


@dataclass(frozen=True, slots=True)
class _Comparison:
    """What comparing with the baseline gave."""

    state: _State = "none"
    limits: tuple[Limit, ...] = ()
    movements: tuple[Movement, ...] = ()
    warnings: tuple[str, ...] = ()
    size: int | None = None

    @classmethod
    def of(cls, entry: Entry, answer: Probe, standing: Standing) -> _Comparison:
        if not entry.baseline:
            return cls()
        warnings = (_NOT_WRITTEN,) if standing.update and not standing.is_written else ()
        before = standing.figures.get(entry.name)
        after = figures_of(answer.result, answer.versions, entry.request.profile_micro_batch)
        if before is None:
            movements: tuple[Movement, ...] = ()
        else:
            movements = compare(before, after, tolerance=entry.tolerance)
            warnings = (*warnings, *differences(before, after))
        if standing.is_written:
            # What moved is worth seeing once more, and no longer fails anything.
            movements = tuple(replace(movement, is_beyond=False) for movement in movements)
        limit = baseline_limit(
            None if before is None else movements,
            entry.tolerance,
            updated=standing.is_written,
            left_out=None if before is None else not_compared(before, after),
        )
        state: _State = "updated" if standing.is_written else "missing" if before is None else "compared"
        return cls(state, (limit,), movements, warnings, _compared_size(before, after))


def _compared_size(before: Figures | None, after: Figures) -> int | None:
    trials = None if before is None else common_trials(before, after)
    return after.profiled_micro_batch if trials is None else trials[0].micro_batch
