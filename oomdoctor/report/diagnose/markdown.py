"""A diagnosis as GitHub-flavoured Markdown, for issues, comments and job summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.report.diagnose import memory, sentences
from oomdoctor.report.diagnose import memory as card
from oomdoctor.report.markdown import code, code_block, folded, prose, table
from oomdoctor.report.plain_text import CATEGORY_WORDS, first_line, optional_size, sentence, share, shortened
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.results import (
        DiagnosisDocument,
        DiagnosisResult,
        Facts,
        Remedy,
        SnapshotComparison,
        SnapshotSummary,
        SourceLine,
    )


def snapshot_blocks(found: SnapshotSummary) -> Iterator[str]:
    """Yield one snapshot's blocks; its long tables are folded."""
    yield f"#### Memory snapshot of GPU {found.device_index}: {code(found.source)}"
    yield " ".join([sentence(sentences.history(found)), sentence(sentences.fragmentation(found.fragmentation))])
    yield table(("", ""), sentences.totals(found))
    if rows := memory.category_rows(found):
        yield _categories(found, rows)
    if lines := memory.line_rows(found):
        yield folded("Memory by line of code", _lines(found, lines))
    if found.largest:
        yield folded("The largest live blocks", _largest(found))
    if found.growing:
        yield folded("Lines whose memory grew step after step", _growing(found))


def comparison_blocks(found: SnapshotComparison) -> Iterator[str]:
    """Yield two snapshots side by side, at their peaks."""
    yield "#### Two snapshots compared"
    names = [("before", code(found.before)), ("after", code(found.after))]
    yield table(("", ""), names)
    rows = [
        _change(CATEGORY_WORDS[row.category], row.before_bytes, row.after_bytes) for row in memory.change_rows(found)
    ]
    rows.append(_change("in all", found.before_bytes, found.after_bytes))
    yield table(("at the peak", ">before", ">after", ">difference"), rows)
    if found.lines:
        by_line = [_change(_place(line.place), line.before_bytes, line.after_bytes) for line in found.lines]
        yield folded("Lines that differ", table(("line", ">before", ">after", ">difference"), by_line))


def _change(name: str, before_bytes: int, after_bytes: int) -> tuple[str, str, str, str]:
    before, after = format_size(before_bytes), format_size(after_bytes)
    return name, before, after, sentences.difference(before_bytes, after_bytes)


def _categories(found: SnapshotSummary, rows: list[memory.CategoryRow]) -> str:
    has_end, whole = memory.has_two_moments(found), sum(row.peak_bytes for row in rows)
    cells = [
        (
            CATEGORY_WORDS[row.category],
            format_size(row.peak_bytes),
            share(row.peak_bytes, whole),
            *((format_size(row.end_bytes),) if has_end else ()),
        )
        for row in rows
    ]
    first = ">at the peak" if found.has_history else ">size"
    return table(("category", first, ">share", *((">when taken",) if has_end else ())), cells)


def _lines(found: SnapshotSummary, rows: list[memory.LineRow]) -> str:
    has_end = memory.has_two_moments(found)
    cells = [
        (
            optional_size(row.peak_bytes),
            *((optional_size(row.end_bytes),) if has_end else ()),
            str(row.blocks),
            CATEGORY_WORDS[row.category],
            _place(row.place),
        )
        for row in rows
    ]
    first = ">at the peak" if found.has_history else ">size"
    return table((first, *((">when taken",) if has_end else ()), ">blocks", "category", "line"), cells)


def _largest(found: SnapshotSummary) -> str:
    rows = [
        (
            sentences.blocks(block),
            CATEGORY_WORDS[block.category],
            _place(block.place),
            code(block.innermost or ""),
        )
        for block in found.largest
    ]
    return table((">size", "category", "line", "innermost"), rows)


def _growing(found: SnapshotSummary) -> str:
    rows = [(_place(line.place), CATEGORY_WORDS[line.category], sentences.growth(line)) for line in found.growing]
    return table(("line", "category", "growth"), rows)


def _place(line: SourceLine | None) -> str:
    if line is None:
        return sentences.UNRECORDED
    return "<br>".join(filter(None, (code(sentences.place(line)), code(sentences.code(line)))))


def render(document: DiagnosisDocument) -> str:
    """Render a diagnosis as GitHub-flavoured Markdown, with a newline at its end."""
    return "\n\n".join(_blocks(document)) + "\n"


def _blocks(document: DiagnosisDocument) -> Iterator[str]:
    result = document.result
    yield f"### {sentences.headline(document)}"
    if (summary := sentences.summary(result)) is not None:
        yield summary
    yield from _error(result)
    yield from _causes(result)
    yield from _remedies(result)
    yield from _facts(result.facts)
    if result.trend is not None:
        yield sentence(sentences.trend(result.trend))
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
        yield f"**Your line, {code(sentences.place(line))}**"
        if text := sentences.code(line):
            yield code_block(text)
    if result.occurrences:
        first = result.occurrences[0]
        if message := first_line(first.message):
            yield f"**The error, {code(sentences.origin(first))}**"
            yield code_block(message)


def _causes(result: DiagnosisResult) -> Iterator[str]:
    if result.causes:
        yield "#### Why"
        yield "\n".join(
            f"- **{sentences.cause(cause)}**{_rest(prose(sentence(cause.evidence)))}" for cause in result.causes
        )


def _remedies(result: DiagnosisResult) -> Iterator[str]:
    if result.remedies:
        yield "#### What to change"
        yield "\n".join(f"{number}. {_remedy(remedy)}" for number, remedy in enumerate(result.remedies, start=1))


def _remedy(remedy: Remedy) -> str:
    how = code(remedy.how or "")
    cost = prose(remedy.cost)
    parts = [prose(sentence(remedy.change)), how, sentences.frees(remedy), f"costs: {cost}" if cost else ""]
    # A break within the line keeps an item whole, whatever its parts are.
    return "<br>".join(filter(None, parts))


def _rest(text: str) -> str:
    return f": {text}" if text else ""


def _facts(facts: Facts) -> Iterator[str]:
    memory = card.device_memory(facts)
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
                code(sentences.origin(found)),
                sentences.occurrence(found),
                "" if found.is_oom else code(shortened(first_line(found.message))),
            )
            for found in others
        ]
        yield folded("Other errors", table(("where", "what", "message"), rows))
