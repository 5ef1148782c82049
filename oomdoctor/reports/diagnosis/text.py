"""What a diagnosis says in a terminal: what happened, why, what to change, then the numbers behind it.

Colour only repeats what the words and the characters say already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.padding import Padding
from rich.text import Text

from oomdoctor.reports.diagnosis import card, wording
from oomdoctor.reports.diagnosis.text_snapshot import comparison_parts, snapshot_parts
from oomdoctor.reports.terminal import (
    aligned,
    answer,
    cells,
    pairs,
    printed,
    readable_width,
    section,
    table,
)
from oomdoctor.reports.wording import clean, first_line, sentence, share
from oomdoctor.results import Confidence
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from oomdoctor.output import Terminal
    from oomdoctor.reports.diagnosis.card import Memory, Use
    from oomdoctor.results import DiagnosisDocument, DiagnosisResult, Remedy

_LONGEST_BAR: Final = 72
_CONFIDENCE_STYLES: Final = {Confidence.CERTAIN: "bold red", Confidence.LIKELY: "bold yellow", Confidence.POSSIBLE: ""}
_CHARACTERS: Final[dict[Use, tuple[str, str]]] = {
    "allocated": ("\u2588", "#"),
    "unallocated": ("\u2593", "="),
    "outside": ("\u2592", "+"),
    "others": ("\u2591", "x"),
    "untold": ("\u254c", "?"),
    "free": ("\u00b7", "."),
}
_STYLES: Final[dict[Use, str]] = {
    "allocated": "cyan",
    "unallocated": "magenta",
    "outside": "blue",
    "others": "yellow",
    "untold": "dim",
    "free": "dim",
}


def render(document: DiagnosisDocument, terminal: Terminal) -> str:
    """Render a diagnosis for a terminal: lines, each with a newline."""
    width = readable_width(terminal)
    return printed(_parts(document, width, unicode=terminal.unicode), terminal)


def _parts(document: DiagnosisDocument, width: int, *, unicode: bool) -> Iterator[RenderableType]:
    result = document.result
    yield _answer(document, unicode=unicode)
    yield from _error(result)
    yield from _causes(result)
    yield from _remedies(result)
    yield from _numbers(result, width, unicode=unicode)
    if result.trend is not None:
        yield section("Memory over steps", Text(sentence(wording.trend(result.trend))))
    for found in result.snapshots:
        yield from snapshot_parts(found, width, unicode=unicode)
    if result.comparison is not None:
        yield from comparison_parts(result.comparison)
    if result.notes:
        yield section("Good to know", *(Text(sentence(note)) for note in result.notes))
    yield from _next_steps(result)
    yield from _other_errors(result)
    yield _origin(document)


def _answer(document: DiagnosisDocument, *, unicode: bool) -> RenderableType:
    style = {"oom": "bold red", "not_oom": "bold yellow", "nothing_found": "bold"}[document.status]
    lines = [Text(wording.headline(document), style)]
    if (summary := wording.summary(document.result)) is not None:
        lines.append(Text(summary))
    return answer(lines, style, unicode=unicode)


def _error(result: DiagnosisResult) -> Iterator[RenderableType]:
    line = result.facts.user_line
    if line is not None:
        code = [Text(text, "bold") for text in [wording.code(line)] if text]
        yield section(f"Your line, {wording.place(line)}", *code)
    if result.occurrences:
        first = result.occurrences[0]
        if message := first_line(first.message):
            yield section(f"The error, {wording.origin(first)}", Text(message))


# --- why and what to do ----------------------------------------------------------------------------------------------


def _causes(result: DiagnosisResult) -> Iterator[RenderableType]:
    if not result.causes:
        return
    grid = aligned(1)
    for cause in result.causes:
        title = Text(wording.CAUSE_WORDS[cause.id], "bold")
        grid.add_row(
            Text(wording.confidence(cause), _CONFIDENCE_STYLES[cause.confidence]),
            Text("\n").join([title, Text(sentence(cause.evidence))]),
        )
    yield section("Why", grid)


def _remedies(result: DiagnosisResult) -> Iterator[RenderableType]:
    if not result.remedies:
        return
    grid = aligned(1)
    for number, remedy in enumerate(result.remedies, start=1):
        grid.add_row(Text(f"{number}.", "dim"), Text("\n").join(_remedy(remedy)))
    yield section("What to change", grid)


def _remedy(remedy: Remedy) -> list[Text]:
    how = clean(remedy.how or "")
    effect = [wording.frees(remedy), f"costs: {clean(remedy.cost)}" if clean(remedy.cost) else ""]
    lines = [
        Text(sentence(remedy.change)),
        Text(how, "bold cyan"),
        Text("; ".join(filter(None, effect)), "dim"),
    ]
    return [line for line in lines if line]


def _next_steps(result: DiagnosisResult) -> Iterator[RenderableType]:
    if not result.next_steps:
        return
    lines: list[Text] = []
    for step in result.next_steps:
        lines += [Text(sentence(step.what)), Text(f"$ {clean(step.command)}", "bold cyan")]
    yield section("To learn more", *lines)


# --- the numbers -----------------------------------------------------------------------------------------------------


def _numbers(result: DiagnosisResult, width: int, *, unicode: bool) -> Iterator[RenderableType]:
    memory = card.memory(result.facts)
    if memory.parts:
        yield section(memory.title, *_memory(memory, width, unicode=unicode))
    if rows := card.other_numbers(result.facts):
        yield section("Also in the error" if memory.parts else "What the error tells", pairs(rows))


def _memory(memory: Memory, width: int, *, unicode: bool) -> Iterator[RenderableType]:
    sizes = [part.size_bytes for part in memory.parts]
    characters = {use: both[not unicode] for use, both in _CHARACTERS.items()}
    bar = Text()
    for part, length in zip(memory.parts, cells(sizes, min(_LONGEST_BAR, width - 2)), strict=True):
        bar.append(characters[part.use] * length, _STYLES[part.use])
    yield bar
    grid = table("", "", ">", ">", sizes=())
    grid.show_header = False
    for part in memory.parts:
        grid.add_row(
            Text(characters[part.use], _STYLES[part.use]),
            Text(part.name),
            Text(format_size(part.size_bytes)),
            Text(share(part.size_bytes, memory.total_bytes)),
        )
    yield grid


# --- where it comes from ---------------------------------------------------------------------------------------------


def _other_errors(result: DiagnosisResult) -> Iterator[RenderableType]:
    if len(result.occurrences) < 2:  # noqa: PLR2004 - the first is shown above
        return
    parts: list[RenderableType] = []
    for found in result.occurrences[1:]:
        # The message of another rank's OOM says again what its numbers say.
        message = [] if found.is_oom else [Text(first_line(found.message), "dim")]
        what = Text("\n").join([Text(wording.occurrence(found)), *message])
        parts += [Text(wording.origin(found)), Padding(what, (0, 0, 0, 2))]
    yield section("Other errors", *parts)


def _origin(document: DiagnosisDocument) -> RenderableType:
    versions = ", ".join(f"{clean(name)} {clean(version)}" for name, version in document.versions.items())
    lines = [f"read {wording.sources(document.result)}" if document.result.sources else "", versions]
    return Text("\n".join(filter(None, lines)), "dim")
