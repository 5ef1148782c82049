"""Lint's findings as one HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oomdoctor.report.html import render_page
from oomdoctor.report.lint import sentences
from oomdoctor.report.lint.sentences import excerpt
from oomdoctor.report.plain_text import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.output import Terminal
    from oomdoctor.results import Finding, LintDocument


MOST_FINDINGS: Final = 1000
"""Findings that a page shows; a browser shows more only slowly."""

_STATUS_WORDS: Final = {"clean": "clean", "findings": "findings", "unreadable": "not all could be read"}
_EXCERPT_COLUMNS: Final = 160


def render(document: LintDocument, terminal: Terminal) -> str:
    """Render what lint found as one self-contained HTML page."""
    del terminal
    result = document.result
    values: dict[str, Any] = {
        "document": document,
        "result": result,
        "status": _STATUS_WORDS[document.status],
        "headline": sentences.headline(result),
        "remarks": list(sentences.remarks(result)),
        "files": [_file(path, found) for path, found in sentences.by_file(result.findings[:MOST_FINDINGS])],
        "more": max(len(result.findings) - MOST_FINDINGS, 0),
        "unreadable": result.unreadable[:MOST_FINDINGS],
        "wording": sentences,
        "visible": visible,
    }
    return render_page("lint.html", values)


def _file(path: str, findings: Sequence[Finding]) -> dict[str, Any]:
    shown = [{"found": finding, "excerpt": excerpt(finding, _EXCERPT_COLUMNS)} for finding in findings]
    return {"path": visible(path), "counts": sentences.severities(findings), "findings": shown}
