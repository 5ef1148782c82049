"""A diagnosis as one HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oomdoctor.report.charts.timeline import timeline
from oomdoctor.report.diagnose import memory, sentences
from oomdoctor.report.html import render_page
from oomdoctor.results import Confidence

if TYPE_CHECKING:
    from oomdoctor.results import DiagnosisDocument, SnapshotComparison, SnapshotSummary


_STATUS_WORDS: Final = {
    "oom": "out of memory",
    "not_oom": "not an out-of-memory error",
    "nothing_found": "nothing found",
}
_STRENGTHS: Final = {Confidence.CERTAIN: 3, Confidence.LIKELY: 2, Confidence.POSSIBLE: 1}


def render(document: DiagnosisDocument) -> str:
    """Render a diagnosis as one self-contained HTML page."""
    result = document.result
    values: dict[str, Any] = {
        "document": document,
        "result": result,
        "status": _STATUS_WORDS[document.status],
        "headline": sentences.headline(document),
        "summary": sentences.summary(result),
        "memory": memory.device_memory(result.facts),
        "numbers": memory.other_numbers(result.facts),
        "snapshots": [_snapshot(found) for found in result.snapshots],
        "comparison": None if result.comparison is None else _comparison(result.comparison),
        "strengths": _STRENGTHS,
        "wording": sentences,
    }
    return render_page("diagnosis.html", values)


def _snapshot(found: SnapshotSummary) -> dict[str, Any]:
    rows = memory.category_rows(found)
    return {
        "found": found,
        "moment": "at the peak" if found.has_history else "when taken",
        "has_two_moments": memory.has_two_moments(found),
        "categories": rows,
        "whole_bytes": sum(row.peak_bytes for row in rows),
        "lines": memory.line_rows(found),
        "chart": timeline(found.timeline, found.total_bytes) if found.timeline else None,
    }


def _comparison(found: SnapshotComparison) -> dict[str, Any]:
    rows = memory.change_rows(found)
    return {
        "found": found,
        "rows": rows,
        "largest_bytes": max((max(row.before_bytes, row.after_bytes) for row in rows), default=1),
    }
