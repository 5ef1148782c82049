"""What a diagnosis says as GitHub-flavoured Markdown, for issues, comments and job summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.reports.diagnosis import card, wording
from oomdoctor.reports.diagnosis.markdown_snapshot import comparison_blocks, snapshot_blocks
from oomdoctor.reports.markdown import code, code_block, folded, prose, table
from oomdoctor.reports.wording import first_line, sentence, share, shortened
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.output import Terminal
    from oomdoctor.results import DiagnosisDocument, DiagnosisResult, Facts, Remedy


def render(document: DiagnosisDocument, terminal: Terminal) -> str:
    """Render a diagnosis as GitHub-flavoured Markdown, with a newline at its end."""
    del terminal
    return "\n\n".join(_blocks(document)) + "\n"


def _blocks(document: DiagnosisDocument) -> Iterator[str]:
    result = document.result
    yield f"### {wording.headline(document)}"
    if (summary := wording.summary(result)) is not None:
        yield summary
    yield from _error(result)
    yield from _causes(result)
    yield from _remedies(result)
    yield from _facts(result.facts)
    if result.trend is not None:
        yield sentence(wording.trend(result.trend))
    for found in result.snapshots:
        yield from snapshot_blocks(found)
    if result.comparison is not None:
        yield from comparison_blocks(result.comparison)
    if result.notes:
        yield "\n".join(["> [!NOTE]", *(f"> - {prose(sentence(note))}" for note in result.notes)])
    yield from _next_steps(result)
    yield from _other_errors(result)
    read = ", ".join(filter(None, (code(source) for source in result.sources)))
    versions = ", ".join(filter(None, (code(f"{name} {version}") for name, version in document.versions.items())))
    yield from filter(None, (f"Read {read}" if read else "", versions))


def _error(result: DiagnosisResult) -> Iterator[str]:
    line = result.facts.user_line
    if line is not None:
        yield f"**Your line, {code(wording.place(line))}**"
        if text := wording.code(line):
            yield code_block(text)
    if result.occurrences:
        first = result.occurrences[0]
        if message := first_line(first.message):
            yield f"**The error, {code(wording.origin(first))}**"
            yield code_block(message)


def _causes(result: DiagnosisResult) -> Iterator[str]:
    if result.causes:
        yield "#### Why"
        yield "\n".join(
            f"- **{wording.cause(cause)}**{_rest(prose(sentence(cause.evidence)))}" for cause in result.causes
        )


def _remedies(result: DiagnosisResult) -> Iterator[str]:
    if result.remedies:
        yield "#### What to change"
        yield "\n".join(f"{number}. {_remedy(remedy)}" for number, remedy in enumerate(result.remedies, start=1))


def _remedy(remedy: Remedy) -> str:
    how = code(remedy.how or "")
    cost = prose(remedy.cost)
    parts = [prose(sentence(remedy.change)), how, wording.frees(remedy), f"costs: {cost}" if cost else ""]
    # A break within the line keeps an item whole, whatever its parts are.
    return "<br>".join(filter(None, parts))


def _rest(text: str) -> str:
    return f": {text}" if text else ""


def _facts(facts: Facts) -> Iterator[str]:
    memory = card.memory(facts)
    if memory.parts:
        rows = [
            (part.name, format_size(part.size_bytes), share(part.size_bytes, memory.total_bytes))
            for part in memory.parts
        ]
        yield table((memory.title, ">size", ">share"), rows)
    if rows_besides := card.other_numbers(facts):
        yield folded("Other numbers of the error", table(("", ""), rows_besides))


def _next_steps(result: DiagnosisResult) -> Iterator[str]:
    if result.next_steps:
        yield "#### To learn more"
        yield "\n".join(
            f"- {'<br>'.join(filter(None, (prose(sentence(step.what)), code(step.command))))}"
            for step in result.next_steps
        )


def _other_errors(result: DiagnosisResult) -> Iterator[str]:
    others = result.occurrences[1:]
    if others:
        rows = [
            (
                code(wording.origin(found)),
                wording.occurrence(found),
                "" if found.is_oom else code(shortened(first_line(found.message))),
            )
            for found in others
        ]
        yield folded("Other errors", table(("where", "what", "message"), rows))
