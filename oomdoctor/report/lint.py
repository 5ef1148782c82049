"""The report of `oomdoctor lint`: the findings in every format, and their number by rule on the terminal.

The words that the formats share are in `oomdoctor.report.findings`.
"""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.output import DEFAULT_WIDTH, MAXIMUM_WIDTH
from oomdoctor.report import findings as words
from oomdoctor.report.issues import Case, Group, Issue, IssueKind, Issues, Location, repository_path
from oomdoctor.report.markdown import code, fitting, prose, row_size, table
from oomdoctor.report.plain_text import sentence, visible
from oomdoctor.report.rule import FIXABLE
from oomdoctor.results import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from oomdoctor.output import Terminal
    from oomdoctor.report.issues import Level
    from oomdoctor.results import Finding, LintDocument, LintResult, Unreadable


_BOLD, _CYAN, _BLUE = "1", "1;36", "1;34"
_COLORS: Final[Mapping[str, str]] = MappingProxyType(
    {Severity.ERROR: "1;31", Severity.WARNING: "1;33", Severity.NOTE: "1;36"}
)


def text(document: LintDocument, terminal: Terminal) -> str:
    """Render what lint found in the form that linters have, with a newline at its end."""
    result = document.result
    blocks = [*("\n".join(_text_lines(found, terminal)) for found in result.findings)]
    blocks += [f"{_styled(words.place(each), _BOLD, terminal)}: {words.unread(each)}" for each in result.unreadable]
    return "\n\n".join([*blocks, words.summary(result)]) + "\n"


def _text_lines(found: Finding, terminal: Terminal) -> Iterator[str]:
    color = _COLORS[found.severity]
    mark = f" {_styled(words.FIXABLE, _CYAN, terminal)}" if found.fixable else ""
    code = _styled(visible(found.code), color, terminal)
    yield f"{_styled(words.place(found), _BOLD, terminal)}: {code}{mark} {visible(found.message)}"
    number = str(found.line)
    shown = words.excerpt(found, _width(terminal) - len(number) - len(" | "), ascii_only=not terminal.unicode)
    if shown is not None:
        bar, blank = _styled("|", _BLUE, terminal), " " * len(number)
        yield f"{blank} {bar}"
        yield f"{_styled(number, _BLUE, terminal)} {bar} {shown.before}{shown.marked}{shown.after}"
        yield f"{blank} {bar} {' ' * shown.offset}{_styled('^' * shown.length, color, terminal)}"
    if found.help:
        yield f"{_styled('help:', _CYAN, terminal)} {visible(found.help)}"


def _width(terminal: Terminal) -> int:
    """Return the columns for a line of code; where the width is unknown, as in a file, those that code has."""
    unknown = terminal.width == DEFAULT_WIDTH and not terminal.color
    return MAXIMUM_WIDTH if unknown else terminal.width


def _styled(text: str, style: str, terminal: Terminal) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if terminal.color else text


_UNFIXABLE = "[ ]"


def render_statistics(result: LintResult) -> str:
    """Render one line a rule, the most frequent first; `[*]` where at least one of its findings has a fix."""
    counts = Counter((finding.code, finding.name) for finding in result.findings)
    fixable = {finding.code for finding in result.findings if finding.fixable}
    rows = [
        (str(count), code, name) for (code, name), count in sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    ]
    if result.unreadable:
        rows.append((str(len(result.unreadable)), "", "unreadable"))
    width, widest = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    lines = [f"{count:>{width}}  {code:<{widest}}  {_mark(code, fixable)}{name}" for count, code, name in rows]
    return "".join(f"{line}\n" for line in lines) or "no findings\n"


def _mark(code: str, fixable: set[str]) -> str:
    """Return the mark of a rule; empty where no finding of any rule has a fix."""
    if not fixable:
        return ""
    return f"{FIXABLE if code in fixable else _UNFIXABLE} "


# --- Markdown ---------------------------------------------------------------------------------------------------------

_MOST_UNREADABLE: Final = 10

MOST_IN_COMMENT: Final = 200
"""Findings that are listed: a comment on GitHub holds 65,536 characters, and nobody reads on."""

_LONGEST_CELL: Final = 300
_MOST_CHARACTERS: Final = 50_000
_HEADING_CHARACTERS: Final = 2 * _LONGEST_CELL


def markdown(document: LintDocument) -> str:
    """Render what lint found as GitHub-flavoured Markdown, with a newline at its end."""
    return "\n\n".join(_blocks(document)) + "\n"


def _blocks(document: LintDocument) -> Iterator[str]:
    result = document.result
    headline = words.headline(result)
    yield f"### {headline[:1].upper()}{headline[1:]}"
    if remarks := " ".join(f"{remark}." for remark in words.remarks(result)):
        yield remarks
    yield from _files(result)
    if result.unreadable:
        yield "#### Not linted"
        unread = result.unreadable[:_MOST_UNREADABLE]
        rows = [(_cell(found.path), words.in_file(found), _prose(found.problem)) for found in unread]
        yield table(("file", "where", "why"), rows)
    versions = (code(visible(f"{name} {version}")) for name, version in document.versions.items())
    yield ", ".join(filter(None, (sentence(words.read(result)).rstrip("."), *versions)))


def _files(result: LintResult) -> Iterator[str]:
    shown, room = 0, _MOST_CHARACTERS
    for path, findings in words.by_file(result.findings[:MOST_IN_COMMENT]):
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
    return words.in_file(found), rule, _prose(found.message), _prose(found.help)


def _cell(text: str) -> str:
    return code(visible(text, _LONGEST_CELL))


def _prose(text: str) -> str:
    return prose(sentence(visible(text, _LONGEST_CELL)))


# --- the page ---------------------------------------------------------------------------------------------------------

MOST_ON_PAGE: Final = 1000
"""Findings that a page shows; a browser shows more only slowly."""

_STATUS_WORDS: Final = {"clean": "clean", "findings": "findings", "unreadable": "not all could be read"}
_EXCERPT_COLUMNS: Final = 160


def html(document: LintDocument) -> str:
    """Render what lint found as one self-contained HTML page."""
    from oomdoctor.report.html import render_page

    result = document.result
    values: dict[str, Any] = {
        "document": document,
        "result": result,
        "status": _STATUS_WORDS[document.status],
        "headline": words.headline(result),
        "remarks": list(words.remarks(result)),
        "files": [_file(path, found) for path, found in words.by_file(result.findings[:MOST_ON_PAGE])],
        "more": max(len(result.findings) - MOST_ON_PAGE, 0),
        "unreadable": result.unreadable[:MOST_ON_PAGE],
        "wording": words,
        "visible": visible,
    }
    return render_page("lint.html", values)


def _file(path: str, findings: Sequence[Finding]) -> dict[str, Any]:
    shown = [{"found": finding, "excerpt": words.excerpt(finding, _EXCERPT_COLUMNS)} for finding in findings]
    return {"path": visible(path), "counts": words.severities(findings), "findings": shown}


# --- issues -----------------------------------------------------------------------------------------------------------

_LEVELS: Final[Mapping[Severity, Level]] = MappingProxyType(
    {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
)
_LONGEST_IDENTITY: Final = 1000


def issues(document: LintDocument) -> Issues:
    """Return each finding and each file that was not linted."""
    result = document.result
    return Issues(
        headline=words.summary(result),
        groups=list(_groups(document, result)),
        rules=_rules(result.findings),
        properties={**_numbers(result), "rules": [visible(code) for code in result.rules]},
    )


def _groups(document: LintDocument, result: LintResult) -> Iterator[Group]:
    for path, findings in words.by_file(result.findings):
        yield Group(path, [_issue(finding) for finding in findings])
    if result.unreadable:
        yield Group("not linted", [_unreadable_issue(found) for found in result.unreadable])
    whole = Issue("passed", case=Case("all files", "oomdoctor.lint", message=words.summary(result)))
    about = {"status": document.status, **_numbers(result), "fixed": result.fixed, "rules": " ".join(result.rules)}
    yield Group("oomdoctor lint", [whole], {**about, **document.versions})


def _numbers(result: LintResult) -> dict[str, int]:
    return {"files": result.files, "lines": result.lines, "suppressed": result.suppressed}


def _rules(findings: Iterable[Finding]) -> list[IssueKind]:
    """Return the rules that fired, each by its worst finding."""
    worst: dict[str, Finding] = {}
    for finding in findings:
        held = worst.get(finding.code)
        if held is None or words.WORST_FIRST.index(finding.severity) < words.WORST_FIRST.index(held.severity):
            worst[finding.code] = finding
    return [
        IssueKind(
            code,
            finding.name,
            f"`oomdoctor rule {code}` says what it looks for and why.",
            _LEVELS[finding.severity],
            ("pytorch", finding.concern.value),
        )
        for code, finding in sorted(worst.items())
    ]


def _issue(finding: Finding) -> Issue:
    where, source = words.place(finding), visible(finding.source.strip())
    return Issue(
        level=_LEVELS[finding.severity],
        title=f"{finding.code} {finding.name}",
        lines=(finding.message, f"help: {finding.help}" if finding.help else ""),
        location=Location(
            path=finding.path,
            line=finding.line,
            column=finding.column,
            end_line=finding.end_line,
            end_column=finding.end_column,
            snippet=finding.source,
            name=finding.function,
            cell=_notebook_cell(finding),
        ),
        rule=finding.code,
        identity=(repository_path(finding.path), finding.function or "", _spaced_once(finding.source)),
        case=Case(
            name=f"{finding.code} {finding.name} at {words.in_file(finding)}",
            group=finding.path,
            kind=finding.code,
            message=finding.message,
            body="\n".join(filter(None, (where, source, f"help: {visible(finding.help)}"))),
        ),
    )


def _notebook_cell(found: Finding | Unreadable) -> str | None:
    return None if found.cell is None else words.in_file(found)


def _spaced_once(line: str) -> str:
    """Return a line of code however it is indented, and no more of an endless one than tells it from others."""
    return " ".join(line[:_LONGEST_IDENTITY].split())


def _unreadable_issue(found: Unreadable) -> Issue:
    return Issue(
        level="error",
        title=words.NOT_LINTED,
        subject=words.NOT_LINTED,
        lines=(found.problem,),
        location=Location(found.path, found.line, found.column, cell=_notebook_cell(found)),
        case=Case(words.place(found), found.path, "unreadable", found.problem),
    )
