"""A check as one HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oomdoctor.report.check import sentences
from oomdoctor.report.html import render_page
from oomdoctor.report.plain_text import CATEGORY_WORDS
from oomdoctor.report.probe.html import sections
from oomdoctor.results import FigureKind
from oomdoctor.units import format_signed_size

if TYPE_CHECKING:
    from oomdoctor.results import CheckDocument, CheckedEntry, Movement


_MOST_LISTED: Final = 1000
_MOST_IN_FULL: Final = 60
"""Entries with their charts; a browser shows more only slowly."""

_MOST_ROWS: Final = 40


def render(document: CheckDocument) -> str:
    """Render what a check found as one self-contained HTML page."""
    result = document.result
    entries = sentences.ordered(result)
    values: dict[str, Any] = {
        "document": document,
        "result": result,
        "status": sentences.VERDICT_WORDS[entries[0].verdict] if entries else "nothing to check",
        "headline": sentences.headline(result),
        "updated": sentences.updated(result),
        "advice": list(sentences.advice(result, is_page=True)),
        "listed": entries[:_MOST_LISTED],
        "unlisted": max(0, len(entries) - _MOST_LISTED),
        "entries": [_entry(entry) for entry in entries[:_MOST_IN_FULL]],
        "in_table_alone": max(0, len(entries) - _MOST_IN_FULL),
        "wording": sentences,
    }
    return render_page("check.html", values)


def _entry(entry: CheckedEntry) -> dict[str, Any]:
    sizes = [size for found in entry.movements if _is_size(found) for size in (found.before, found.after) if size]
    return {
        "found": entry,
        "warnings": sentences.warnings(entry),
        "limits": sorted(entry.limits, key=lambda limit: limit.holds)[:_MOST_ROWS],
        "more_limits": max(0, len(entry.limits) - _MOST_ROWS),
        "movements": [_movement(found) for found in entry.movements[:_MOST_ROWS]],
        "more_movements": max(0, len(entry.movements) - _MOST_ROWS),
        "largest_bytes": max(sizes, default=1),
        "probe": None if entry.probe is None else sections(entry.probe),
    }


def _movement(found: Movement) -> dict[str, Any]:
    return {
        "found": found,
        "is_size": _is_size(found),
        "category": _category(found),
        "before": sentences.figure(found, found.before),
        "after": sentences.figure(found, found.after),
        "difference": _difference(found),
    }


def _is_size(found: Movement) -> bool:
    return found.kind is not FigureKind.MICRO_BATCH


def _category(found: Movement) -> str | None:
    """Return the category whose colour a figure has, which its name is or ends with; None for a peak and a phase."""
    return next((category for category, words in CATEGORY_WORDS.items() if found.name.endswith(words)), None)


def _difference(found: Movement) -> str:
    if found.before is None or found.after is None:
        return ""
    difference = found.after - found.before
    return format_signed_size(difference) if _is_size(found) else f"{difference:+}"
