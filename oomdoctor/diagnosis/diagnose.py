"""From files to a diagnosis: read, judge, prescribe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis import advice
from oomdoctor.diagnosis.causes.judge import judge
from oomdoctor.diagnosis.events import occurrences, the_one_that_counts
from oomdoctor.diagnosis.gathering import gather
from oomdoctor.diagnosis.remedies.prescribe import prescribe
from oomdoctor.diagnosis.situation import Situation
from oomdoctor.diagnosis.snapshot.comparison import compare
from oomdoctor.results import DiagnosisResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.diagnosis.inputs import Source
    from oomdoctor.results import SnapshotComparison, SnapshotSummary

_A_PAIR: Final = 2


def diagnose(sources: Sequence[Source]) -> DiagnosisResult:
    """Read all sources and say what happened.

    Raises:
        UsageError: One cannot be read, or is a snapshot or a run's report and broken.
    """
    case = gather(sources)
    situation = Situation(case, the_one_that_counts(case.events))
    causes = judge(situation) if case.events or case.snapshots else ()
    return DiagnosisResult(
        sources=case.sources,
        is_oom=situation.is_oom,
        device=situation.device if situation.is_oom else "none",
        facts=situation.facts,
        causes=causes,
        remedies=prescribe(situation, causes),
        notes=tuple(advice.notes(situation)),
        next_steps=tuple(advice.next_steps(situation, causes)),
        occurrences=occurrences(case.events),
        trend=case.trend,
        snapshots=case.snapshots,
        comparison=None if case.has_reports else _comparison(case.snapshots),
    )


def _comparison(snapshots: Sequence[SnapshotSummary]) -> SnapshotComparison | None:
    """Compare where two files hold one device each; several devices of one file are no pair."""
    if len(snapshots) != _A_PAIR or snapshots[0].source == snapshots[1].source:
        return None
    return compare(*snapshots)
