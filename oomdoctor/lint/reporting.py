"""From where rules fire to findings: what is shown of each, what is silenced, and none twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.extents import enclosing, extent
from oomdoctor.lint.positions import Lines
from oomdoctor.lint.source import Script
from oomdoctor.lint.suppression import Suppressions
from oomdoctor.results.lint import Finding, Severity

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Module
    from oomdoctor.lint.discovery import File
    from oomdoctor.lint.documents import Document
    from oomdoctor.lint.rule import Edit, Hit, Rule

LONGEST_SOURCE: Final = 2000
"""Characters of an endless line that are kept for each finding in it."""

_RANKS: Final = {severity: rank for rank, severity in enumerate(Severity)}


@dataclass(frozen=True, slots=True)
class View:
    """One file that findings lie in.

    Attributes:
        file: The file.
        module: Its code.
        document: What places in it are called.
        lines: Its text by lines, as it is parsed.
        shown: The same as people see it.
        suppressions: What its comments silence.
        ignored: Codes of the rules that the configuration silences in it.
    """

    file: File
    module: Module
    document: Document
    lines: Lines
    shown: Lines
    suppressions: Suppressions
    ignored: frozenset[str] = frozenset()

    @classmethod
    def of(cls, file: File, module: Module, document: Document | None, ignored: frozenset[str]) -> View:
        """A view of a file; `document` is None for one that was parsed on the way from another."""
        document = document or Script(module.text)
        return cls(
            file, module, document, Lines(module.text), Lines(document.shown()), Suppressions(module.text), ignored
        )

    def finding(self, rule: Rule, hit: Hit) -> Finding:
        """What is said of a place."""
        start, end = extent(hit.node)
        cell, line = self.document.place(start[0])
        return Finding(
            code=rule.code,
            name=rule.name,
            path=self.file.shown,
            line=line,
            column=self.lines.column(*start) + 1,
            end_line=self.document.place(end[0])[1],
            end_column=self.lines.column(*end) + 1,
            severity=hit.severity or rule.severity,
            concern=rule.concern,
            message=hit.message,
            help=hit.help,
            function=enclosing(self.module, hit.node),
            source=_source(self.shown.line(start[0]), self.lines.column(*start)),
            cell=cell,
            fixable=bool(hit.edits),
        )

    def silences(self, rule: Rule, hit: Hit) -> bool:
        """Whether the configuration or a comment silences a rule there."""
        start, end = extent(hit.node)
        return rule.code in self.ignored or self.suppressions.silences(rule, start[0], end[0])


Key = tuple[str, int, int, int, str]


@dataclass(slots=True)
class Collected:
    """What was found so far.

    Attributes:
        findings: Each with its edits, by place and rule: the worst of those that several runs lead to.
        silenced: The places where a finding was silenced.
    """

    findings: dict[Key, tuple[Finding, tuple[Edit, ...]]] = field(default_factory=dict)
    silenced: set[Key] = field(default_factory=set)

    def add(self, view: View, rule: Rule, hit: Hit) -> None:
        """Note a place where a rule fires."""
        finding = view.finding(rule, hit)
        key = (finding.path, finding.cell or 0, finding.line, finding.column, finding.code)
        if view.silences(rule, hit):
            self.silenced.add(key)
        elif key not in self.findings or _is_worse(finding, self.findings[key][0]):
            self.findings[key] = (finding, hit.edits)

    def ordered(self) -> tuple[Finding, ...]:
        """Findings by path, cell, line, column and code."""
        return tuple(self.findings[key][0] for key in sorted(self.findings))


def _is_worse(finding: Finding, other: Finding) -> bool:
    return _RANKS[finding.severity] > _RANKS[other.severity]


def _source(line: str, column: int) -> str:
    """What is kept of a line: its beginning, from which columns count; nothing where the finding lies behind that."""
    return line[:LONGEST_SOURCE] if column < LONGEST_SOURCE else ""
