"""A check as GitHub-flavoured Markdown, for issues, comments and job summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.report.check import sentences
from oomdoctor.report.markdown import code, code_lines, fitting, folded, prose, table, warning_block
from oomdoctor.report.plain_text import capitalised, sentence, visible
from oomdoctor.results import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.results import CheckDocument, CheckedEntry, CheckResult, Movement, Problem


# A comment on GitHub holds 65,536 characters, and nobody reads on; each part has its share of them.
_ROOM_FOR_TABLE: Final = 15_000
_ROOM_FOR_SECTIONS: Final = 25_000
_ROOM_FOR_MOVED: Final = 8_000
_ROOM_FOR_WARNINGS: Final = 5_000
_MOST_MOVEMENTS: Final = 20
_MOST_LINES: Final = 20
_LONGEST_CELL: Final = 300


def render(document: CheckDocument) -> str:
    """Render what a check found as GitHub-flavoured Markdown, with a newline at its end."""
    return "\n\n".join(_blocks(document)) + "\n"


def _blocks(document: CheckDocument) -> Iterator[str]:
    result = document.result
    headline = sentences.headline(result)
    yield f"### {headline[:1].upper()}{headline[1:]}"
    found = [(entry, text) for entry in sentences.ordered(result) for text in sentences.warnings(entry)]
    yield from warning_block([f"{_cell(entry.name)}: {_words(text)}" for entry, text in found], _ROOM_FOR_WARNINGS)
    yield from _table(result)
    yield from _sections(result)
    yield from _moved_elsewhere(result)
    said = [*filter(None, (sentences.updated(result),)), *sentences.advice(result)]
    if said:
        yield "\n".join(f"- {prose(sentence(text))}" for text in said)
    versions = (code(visible(f"{name} {version}", _LONGEST_CELL)) for name, version in document.versions.items())
    yield ", ".join(filter(None, (_cell(result.configuration), *versions)))


def _table(result: CheckResult) -> Iterator[str]:
    entries = sentences.ordered(result)
    rows = list(fitting(map(_row, entries), _ROOM_FOR_TABLE))
    if rows:
        yield table(("entry", "card", ">largest micro-batch", ">accumulation steps", "verdict"), rows)
    if more := len(entries) - len(rows):
        yield f"... and {more} more."


def _row(entry: CheckedEntry) -> tuple[str, ...]:
    word = sentences.VERDICT_WORDS[entry.verdict]
    verdict = word if entry.verdict is Verdict.PASSED else f"**{word}**"
    card = sentences.card(entry) if entry.gpu is None else _cell(entry.gpu)
    return _cell(entry.name), card, sentences.largest(entry), sentences.steps(entry), verdict


# --- entries ---------------------------------------------------------------------------------------------------------


def _sections(result: CheckResult) -> Iterator[str]:
    entries = [entry for entry in sentences.ordered(result) if entry.verdict is not Verdict.PASSED]
    room = _ROOM_FOR_SECTIONS
    for number, entry in enumerate(entries):
        section = "\n\n".join(_section(entry))
        room -= len(section)
        if room < 0:
            yield f"... and {len(entries) - number} more that did not pass."
            return
        yield section


def _section(entry: CheckedEntry) -> Iterator[str]:
    yield f"#### {_cell(entry.name) or '-'}"
    if entry.problem is not None:
        yield from _problem(entry.problem)
    if limits := list(sentences.broken(entry)):
        yield "\n".join(f"- **{limit.name.value}**: {_words(limit.text)}" for limit in limits[:_MOST_LINES])
    yield from _figures(sentences.beyond(entry))
    if others := "\n\n".join(_figures(sentences.within(entry))):
        yield folded(capitalised(sentences.within_title(entry)), others)


def _figures(movements: Sequence[Movement]) -> Iterator[str]:
    rows = list(fitting(map(_moved, movements[:_MOST_MOVEMENTS]), _ROOM_FOR_MOVED))
    if rows:
        yield table(("changed", ">baseline", ">now"), rows)
    if more := len(movements) - len(rows):
        yield f"... and {more} more."


def _problem(problem: Problem) -> Iterator[str]:
    yield _words(problem.message)
    if problem.details:
        yield code_lines(_lines(problem.details)[-_MOST_LINES:])
    if problem.hint:
        first, *rest = _lines(problem.hint)
        yield f"hint: {_words(first)}"
        # Lines to add have empty ones around them.
        if block := "\n".join(rest[:_MOST_LINES]).strip("\n"):
            yield code_lines(block.split("\n"))


def _moved(movement: Movement) -> tuple[str, str, str]:
    text = _words(movement.text)
    shown = f"**{text}**" if movement.is_beyond and text else text
    return shown, sentences.figure(movement, movement.before), sentences.figure(movement, movement.after)


def _moved_elsewhere(result: CheckResult) -> Iterator[str]:
    """Yield the figures that changed in entries that passed, folded."""
    passed = [entry for entry in result.entries if entry.verdict is Verdict.PASSED]
    found = [(entry, movement) for entry in passed for movement in entry.movements]
    rows = ((_cell(entry.name), *_moved(movement)) for entry, movement in found)
    shown = list(fitting(rows, _ROOM_FOR_MOVED))
    if shown:
        more = f"\n\n... and {len(found) - len(shown)} more." if len(shown) < len(found) else ""
        body = table(("entry", "changed", ">baseline", ">now"), shown) + more
        yield folded("What changed in entries that passed", body)


# --- text ------------------------------------------------------------------------------------------------------------


def _cell(text: str) -> str:
    return code(visible(text, _LONGEST_CELL))


def _words(text: str) -> str:
    return prose(visible(text, _LONGEST_CELL))


def _lines(text: str) -> Sequence[str]:
    return [visible(line, _LONGEST_CELL) for line in text.splitlines()] or [""]
