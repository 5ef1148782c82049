"""The result of a lint run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Severity of a finding, mildest first."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Concern(StrEnum):
    """Kind of harm that a mistake does."""

    MEMORY = "memory"
    CORRECTNESS = "correctness"
    SPEED = "speed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake in the code.

    Attributes:
        code: The rule, such as `OOM101`.
        name: The rule's name, such as `evaluation-keeps-graph`.
        path: The file, relative to the working directory where it lies below it, with `/`.
        line: From 1; in a notebook, from 1 in its cell.
        column: From 1, in characters.
        end_line: Where it ends.
        end_column: First column after it.
        severity: How bad it is.
        concern: What it costs.
        message: What is wrong there.
        help: What to write instead.
        function: The function that it is in, such as `Trainer.train`; None at the top level.
        source: The text of the line.
        cell: For a notebook, the number of the cell among all cells, from 1; else None.
        fixable: Whether fixable with `--fix`.
    """

    code: str
    name: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    severity: Severity
    concern: Concern
    message: str
    help: str
    function: str | None
    source: str
    cell: int | None = None
    fixable: bool = False


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that could not be linted.

    Attributes:
        path: As for a finding.
        line: Where parsing stopped, from 1; None where it is about the whole file.
        column: From 1.
        problem: Why, lower case.
        cell: For a notebook, the cell, from 1.
    """

    path: str
    line: int | None
    column: int | None
    problem: str
    cell: int | None = None


@dataclass(frozen=True, slots=True)
class LintResult:
    """Findings of one run of lint.

    Attributes:
        findings: Ordered by path, cell, line, column and code.
        unreadable: Files that were not linted, ordered by path.
        files: Files that were looked at, those without torch not counted.
        skipped_files: Files that were passed over since nothing in them stands on torch.
        lines: Lines in `files`.
        suppressed: Findings that `# noqa` or the configuration silenced.
        fixed: Findings that `--fix` has put right; they are not in `findings`.
        rules: Codes of the rules that were on.
    """

    findings: tuple[Finding, ...]
    unreadable: tuple[Unreadable, ...]
    files: int
    skipped_files: int
    lines: int
    suppressed: int
    fixed: int
    rules: tuple[str, ...]
