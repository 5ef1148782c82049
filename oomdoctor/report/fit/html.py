"""A table of cards as one HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oomdoctor.report.fit import sentences
from oomdoctor.report.html import render_page

if TYPE_CHECKING:
    from oomdoctor.output import Terminal
    from oomdoctor.results import FitDocument

_MOST_ROWS: Final = 1000


def render(document: FitDocument, terminal: Terminal) -> str:
    """Render what fits each card as one self-contained HTML page."""
    del terminal
    result = document.result
    values: dict[str, Any] = {
        "document": document,
        "headline": sentences.headline(result),
        "warnings": list(sentences.warnings(result))[:_MOST_ROWS],
        "columns": sentences.COLUMNS,
        "rows": [sentences.row(card) for card in result.cards[:_MOST_ROWS]],
        "more": max(0, len(result.cards) - _MOST_ROWS),
        "legend": list(sentences.legend(result)),
    }
    return render_page("fit.html", values)
