"""Lint's findings as GitHub-flavoured Markdown, for comments on pull requests and job summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.report.lint import sentences
from oomdoctor.report.markdown import code, fitting, prose, row_size, table
from oomdoctor.report.plain_text import sentence, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.output import Terminal
    from oomdoctor.results import Finding, LintDocument, LintResult, Unreadable


_MOST_UNREADABLE: Final = 10

MOST_FINDINGS: Final = 200
"""Findings that are listed: a comment on GitHub holds 65,536 characters, and nobody reads on."""

_LONGEST_CELL: Final = 300
_MOST_CHARACTERS: Final = 50_000
_HEADING_CHARACTERS: Final = 2 * _LONGEST_CELL


def render(document: LintDocument, terminal: Terminal) -> str:
    """Render what lint found as GitHub-flavoured Markdown, with a newline at its end."""
    del terminal
    return "\n\n".join(_blocks(document)) + "\n"


def _blocks(document: LintDocument) -> Iterator[str]:
    result = document.result
    headline = sentences.headline(result)
    yield f"### {headline[:1].upper()}{headline[1:]}"
    if remarks := " ".join(f"{remark}." for remark in sentences.remarks(result)):
        yield remarks
    yield from _files(result)
    if result.unreadable:
        yield "#### Not linted"
        yield table(("file", "where", "why"), map(_unreadable, result.unreadable[:_MOST_UNREADABLE]))
    versions = (code(visible(f"{name} {version}")) for name, version in document.versions.items())
    yield ", ".join(filter(None, (sentence(sentences.read(result)).rstrip("."), *versions)))


def _files(result: LintResult) -> Iterator[str]:
    shown, room = 0, _MOST_CHARACTERS
    for path, findings in sentences.by_file(result.findings[:MOST_FINDINGS]):
        rows = list(fitting(map(_row, findings), room))
        if not rows:
            break
        yield f"#### {_cell(path)}"
        yield table(("line", "rule", "what", "instead"), rows)
        shown += len(rows)
        room -= sum(map(row_size, rows)) + _HEADING_CHARACTERS
    if more := len(result.findings) - shown:
        yield f"... and {more} more."


def _row(found: Finding) -> tuple[str, ...]:
    rule = " ".join(filter(None, (found.severity.value, code(visible(found.code, _LONGEST_CELL)))))
    return sentences.in_file(found), rule, _words(found.message), _words(found.help)


def _unreadable(found: Unreadable) -> tuple[str, str, str]:
    return _cell(found.path), sentences.in_file(found), _words(found.problem)


def _cell(text: str) -> str:
    return code(visible(text, _LONGEST_CELL))


def _words(text: str) -> str:
    return prose(sentence(visible(text, _LONGEST_CELL)))
