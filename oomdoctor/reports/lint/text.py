"""What lint found, for the terminal: a finding, its line with carets below it, and what to write instead."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.output import DEFAULT_WIDTH, MAXIMUM_WIDTH
from oomdoctor.reports.lint import wording
from oomdoctor.reports.lint.excerpt import excerpt
from oomdoctor.reports.visible import visible
from oomdoctor.results import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oomdoctor.output import Terminal
    from oomdoctor.results import Finding, LintDocument, Unreadable

_BOLD, _CYAN, _BLUE = "1", "1;36", "1;34"
_COLORS: Final[Mapping[str, str]] = MappingProxyType(
    {Severity.ERROR: "1;31", Severity.WARNING: "1;33", Severity.NOTE: "1;36"}
)


def render(document: LintDocument, terminal: Terminal) -> str:
    """Render what lint found in the form that linters have, with a newline at its end."""
    result = document.result
    blocks = [*(_finding(found, terminal) for found in result.findings)]
    blocks += [_unreadable(found, terminal) for found in result.unreadable]
    return "\n\n".join([*blocks, wording.summary(result)]) + "\n"


def _finding(found: Finding, terminal: Terminal) -> str:
    return "\n".join(_lines(found, terminal))


def _lines(found: Finding, terminal: Terminal) -> Iterator[str]:
    color = _COLORS[found.severity]
    mark = f" {_styled(wording.FIXABLE, _CYAN, terminal)}" if found.fixable else ""
    code = _styled(visible(found.code), color, terminal)
    yield f"{_styled(wording.place(found), _BOLD, terminal)}: {code}{mark} {visible(found.message)}"
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
    """Columns for a line of code; where nobody knows how many there are, such as in a file, as many as code has."""
    unknown = terminal.width == DEFAULT_WIDTH and not terminal.color
    return MAXIMUM_WIDTH if unknown else terminal.width


def _unreadable(found: Unreadable, terminal: Terminal) -> str:
    return f"{_styled(wording.place(found), _BOLD, terminal)}: {wording.unread(found)}"


def _styled(text: str, style: str, terminal: Terminal) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if terminal.color else text
