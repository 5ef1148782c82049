"""A check on the terminal.

Colour only repeats what the words say already.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.padding import Padding
from rich.text import Text

from oomdoctor.report.check import sentences
from oomdoctor.report.plain_text import sentence, visible
from oomdoctor.report.terminal import aligned, printed
from oomdoctor.results import LimitName, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from oomdoctor.output import Terminal
    from oomdoctor.results import CheckDocument, CheckedEntry, Movement, Problem


_MOST_BEYOND: Final = 12
_MOST_WITHIN: Final = 8
_FEWEST: Final = 3  # beside figures that fail, others are worth little
_MOST_DETAILS: Final = 30
_WIDEST_CELL: Final = 32
_HEADINGS: Final = ("verdict", "entry", "card", "micro-batch", "steps")
_NUMBERS: Final = ("micro-batch", "steps")
_GAP: Final = "  "
_INDENT: Final = 4
_STYLES: Final[Mapping[Verdict, str]] = MappingProxyType(
    {
        Verdict.PASSED: "green",
        Verdict.FAILED: "bold red",
        Verdict.ERROR: "bold red",
        Verdict.NO_ANSWER: "bold yellow",
    }
)


def render(document: CheckDocument, terminal: Terminal) -> str:
    """Render a check's document for a terminal: lines, each with a newline."""
    return printed(_parts(document), terminal)


def _parts(document: CheckDocument) -> Iterator[RenderableType]:
    result = document.result
    entries = sentences.ordered(result)
    if entries:
        yield from _table(entries)
        yield Text()
    yield Text(sentence(sentences.headline(result)), _STYLES[Verdict(document.status)])
    if (written := sentences.updated(result)) is not None:
        yield Text(sentence(written))
    hints = aligned(1)
    for advice in sentences.advice(result):
        hints.add_row(Text("hint:", "bold cyan"), Text(advice))
    yield from [hints] if hints.row_count else []


# --- entries ---------------------------------------------------------------------------------------------------------


def _table(entries: Sequence[CheckedEntry]) -> Iterator[RenderableType]:
    rows = [_cells(entry) for entry in entries]
    widths = [min(max(map(cell_len, column)), _WIDEST_CELL) for column in zip(_HEADINGS, *rows, strict=True)]
    yield Text(_row(_HEADINGS, widths), "dim")
    for entry, row in zip(entries, rows, strict=True):
        line = Text(_row(row, widths))
        line.stylize(_STYLES[entry.verdict], 0, len(row[0]))
        yield line
        yield from _below(entry)


def _cells(entry: CheckedEntry) -> tuple[str, ...]:
    verdict = sentences.VERDICT_WORDS[entry.verdict]
    return verdict, sentences.name(entry), sentences.card(entry), sentences.largest(entry), sentences.steps(entry)


def _row(cells: Iterable[str], widths: Iterable[int]) -> str:
    padded = []
    for heading, cell, width in zip(_HEADINGS, cells, widths, strict=True):
        space = " " * (width - cell_len(cell))
        padded.append(f"{space}{cell}" if heading in _NUMBERS else f"{cell}{space}")
    return _GAP.join(padded).rstrip()


def _below(entry: CheckedEntry) -> Iterator[RenderableType]:
    """Yield the parts below an entry's line; none for one that passed and did not change."""
    if entry.problem is not None:
        yield from _problem(entry.problem)
    # The baseline comes last of those that broke, so that what moved stands below it.
    for limit in sorted(sentences.broken(entry), key=lambda limit: limit.name is LimitName.BASELINE):
        yield _indented(Text.assemble((limit.name.value, "bold red"), f": {visible(limit.text)}"))
    beyond = sentences.beyond(entry)
    yield from _moved(sentences.beyond_title(entry), beyond, _MOST_BEYOND)
    yield from _moved(sentences.within_title(entry), sentences.within(entry), _FEWEST if beyond else _MOST_WITHIN)
    for text in sentences.warnings(entry):
        yield _indented(Text.assemble(("warning", "bold yellow"), f": {visible(text)}"))
    if (reason := sentences.asked_anew(entry)) is not None:
        yield _indented(Text(reason, "dim"))


def _problem(problem: Problem) -> Iterator[RenderableType]:
    yield from (_indented(Text(line, "bold")) for line in _lines(problem.message))
    if problem.details:
        lines = _lines(problem.details)
        # Of a traceback the end says the most.
        if len(lines) > _MOST_DETAILS:
            yield _indented(Text(f"({len(lines) - _MOST_DETAILS} lines before these)", "dim"))
        yield from (_indented(Text(f"| {line}", "dim")) for line in lines[-_MOST_DETAILS:])
    if problem.hint:
        first, *rest = _lines(problem.hint)
        yield _indented(Text.assemble(("hint: ", "bold cyan"), first))
        yield from (_indented(Text(line)) for line in rest)


def _moved(title: str, movements: Sequence[Movement], most: int) -> Iterator[RenderableType]:
    if not movements:
        return
    if title:
        yield _indented(Text(f"{title}:", "dim"))
    shown, more = sentences.first(movements, most)
    for movement in shown:
        yield _indented(Text(visible(movement.text), "bold" if movement.is_beyond else ""), 2 * _INDENT - 2)
    if more:
        yield _indented(Text(more, "dim"), 2 * _INDENT - 2)


def _lines(text: str) -> list[str]:
    return [visible(line) for line in text.splitlines()] or [""]


def _indented(text: Text, by: int = _INDENT) -> RenderableType:
    return Padding(text, (0, 0, 0, by))
