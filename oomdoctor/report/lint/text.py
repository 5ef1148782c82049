"""Lint's findings on the terminal, and their number by rule."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.output import DEFAULT_WIDTH, MAXIMUM_WIDTH
from oomdoctor.report.lint import sentences
from oomdoctor.report.lint.sentences import excerpt
from oomdoctor.report.plain_text import visible
from oomdoctor.report.rule import FIXABLE
from oomdoctor.results import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oomdoctor.output import Terminal
    from oomdoctor.results import Finding, LintDocument, LintResult, Unreadable


_BOLD, _CYAN, _BLUE = "1", "1;36", "1;34"
_COLORS: Final[Mapping[str, str]] = MappingProxyType(
    {Severity.ERROR: "1;31", Severity.WARNING: "1;33", Severity.NOTE: "1;36"}
)


def render(document: LintDocument, terminal: Terminal) -> str:
    """Render what lint found in the form that linters have, with a newline at its end."""
    result = document.result
    blocks = [*(_finding(found, terminal) for found in result.findings)]
    blocks += [_unreadable(found, terminal) for found in result.unreadable]
    return "\n\n".join([*blocks, sentences.summary(result)]) + "\n"


def _finding(found: Finding, terminal: Terminal) -> str:
    return "\n".join(_lines(found, terminal))


def _lines(found: Finding, terminal: Terminal) -> Iterator[str]:
    color = _COLORS[found.severity]
    mark = f" {_styled(sentences.FIXABLE, _CYAN, terminal)}" if found.fixable else ""
    code = _styled(visible(found.code), color, terminal)
    yield f"{_styled(sentences.place(found), _BOLD, terminal)}: {code}{mark} {visible(found.message)}"
    number = str(found.line)
    shown = excerpt(found, _width(terminal) - len(number) - len(" | "), ascii_only=not terminal.unicode)
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


def _unreadable(found: Unreadable, terminal: Terminal) -> str:
    return f"{_styled(sentences.place(found), _BOLD, terminal)}: {sentences.unread(found)}"


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
