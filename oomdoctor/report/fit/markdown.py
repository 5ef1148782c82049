"""A table of cards as GitHub-flavoured Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.report.fit import sentences
from oomdoctor.report.markdown import code, fitting, prose, table
from oomdoctor.report.plain_text import capitalised, sentence, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.output import Terminal
    from oomdoctor.results import FitDocument, FitResult, FittedCard

# A comment on GitHub holds 65,536 characters; each part has its share of them.
_ROOM_FOR_TABLE: Final = 30_000
_ROOM_FOR_WARNINGS: Final = 10_000
_LONGEST_CELL: Final = 300
_HEADINGS: Final = ("card", ">memory", ">largest", ">recommended", ">steps", "limited by")


def render(document: FitDocument, terminal: Terminal) -> str:
    """Render what fits each card as GitHub-flavoured Markdown, with a newline at its end."""
    del terminal
    return "\n\n".join(_blocks(document)) + "\n"


def _blocks(document: FitDocument) -> Iterator[str]:
    result = document.result
    yield f"### {prose(capitalised(_cut(sentences.headline(result))))}"
    yield from _warnings(result)
    rows = list(fitting(map(_row, result.cards), _ROOM_FOR_TABLE))
    yield table(_HEADINGS, rows)
    if more := len(result.cards) - len(rows):
        yield f"... and {more} more."
    yield "\n".join(f"- {prose(sentence(_cut(text)))}" for text in sentences.legend(result))
    yield ", ".join(code(_cut(f"{name} {version}")) for name, version in document.versions.items())


def _warnings(result: FitResult) -> Iterator[str]:
    found = [(prose(sentence(_cut(text))),) for text in sentences.warnings(result)]
    shown = [text for (text,) in fitting(found, _ROOM_FOR_WARNINGS)]
    if found:
        more = [f"... and {len(found) - len(shown)} more."] if len(shown) < len(found) else []
        yield "\n".join(["> [!WARNING]", *(f"> - {text}" for text in [*shown, *more])])


def _row(card: FittedCard) -> tuple[str, ...]:
    gpu, *cells = sentences.row(card)
    return code(_cut(gpu)), *cells


def _cut(text: str) -> str:
    return visible(text, _LONGEST_CELL)
