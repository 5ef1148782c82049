"""A table of cards on the terminal, one card a line, and below it what the columns say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.report.fit import sentences
from oomdoctor.report.gpus import Column, table
from oomdoctor.report.plain_text import visible

if TYPE_CHECKING:
    from oomdoctor.output import Terminal
    from oomdoctor.results import FitDocument

_NUMBERS: Final = ("memory", "largest", "recommended", "steps")


def render(document: FitDocument, terminal: Terminal) -> str:
    """Render what fits each card for a terminal, with a newline at its end."""
    result = document.result
    rows = [sentences.row(card) for card in result.cards]
    columns = [
        Column(heading, [row[place] for row in rows], right=heading in _NUMBERS)
        for place, heading in enumerate(sentences.COLUMNS)
    ]
    lines = [*sentences.legend(result), *sentences.warnings(result)]
    return "\n".join([*table(columns, terminal), "", *map(visible, lines), ""])
