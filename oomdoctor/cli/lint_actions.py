"""The actions of `oomdoctor lint`: find, fix, and show the report, the difference or the statistics."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from io import BytesIO
from typing import TYPE_CHECKING

import typer

from oomdoctor.output import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from oomdoctor.config.lint import LintConfiguration
    from oomdoctor.lint.engine import LintRun
    from oomdoctor.lint.fixing import Change, Overlay
    from oomdoctor.lint.settings import Settings
    from oomdoctor.results import LintDocument, LintResult


@dataclass(frozen=True, slots=True)
class Question:
    """Everything that one run of lint depends on.

    Attributes:
        paths: The arguments.
        settings: The settings of the run.
        stdin: Bytes of standard input, where it is linted.
        verbose: Whether to report the run's numbers on stderr.
    """

    paths: Sequence[str]
    settings: Settings
    stdin: bytes | None = None
    verbose: bool = False

    def answer(self, overlay: Overlay) -> LintRun:
        """Lint, with the contents in `overlay` instead of those of some files."""
        from oomdoctor.lint.engine import lint

        stdin = overlay.get(None, self.stdin)
        files = {path: data for path, data in overlay.items() if path is not None}
        return lint(self.paths, self.settings, None if stdin is None else BytesIO(stdin), overlay=files)


def ask(
    paths: Sequence[str], configuration: LintConfiguration, stdin_filename: str | None, *, verbose: bool
) -> Question:
    """Make the question from arguments and configuration, and show the settings where `verbose` is set.

    Raises:
        UsageError: A word of the configuration names no rule, or all rules are off by accident.
    """
    from oomdoctor.lint.discovery import STANDARD_INPUT
    from oomdoctor.lint.notebooks import MOST_NOTEBOOK_BYTES
    from oomdoctor.lint.rules import ALL
    from oomdoctor.lint.settings import Settings, check_selection, with_rules

    if verbose:
        say([*configuration.notes, *configuration.settled.lines()])
    holds = configuration.settled.values
    settings = Settings(
        per_file_ignores=holds.per_file_ignores or {},
        exclude=holds.exclude or (),
        stdin_filename=stdin_filename,
        root=configuration.root,
    )
    settings = with_rules(settings, ALL, configuration.layers)
    check_selection(settings, configuration.layers)
    # Where it is named twice the engine says so, without waiting for it.
    reads_stdin = paths.count(STANDARD_INPUT) == 1
    stdin = sys.stdin.buffer.read(MOST_NOTEBOOK_BYTES + 1) if reads_stdin else None
    return Question(paths, settings, stdin, verbose)


def found(question: Question) -> LintResult:
    """Lint, and return the result."""
    result = question.answer({}).result
    _tell(question, result)
    return result


def fixed(question: Question, *, told: bool) -> LintResult:
    """Apply all fixes and return what is left; files are written, standard input is printed.

    Args:
        question: What to lint.
        told: Whether the report on standard output will show the number of fixes.
    """
    from oomdoctor.lint.fixing import fix, write

    fixing = fix(question.answer)
    write(fixing, question.answer)
    if question.stdin is not None:
        sys.stdout.flush()
        sys.stdout.buffer.write(fixing.overlay().get(None, question.stdin))
        sys.stdout.buffer.flush()
    result = replace(fixing.linted.result, fixed=fixing.fixed)
    _tell(question, result)
    say([*fixing.notes, *([] if told else [f"{fixing.fixed} fixed, {len(result.findings)} left"])])
    return result


def show_difference(question: Question, output: Path | None) -> bool:
    """Print the changes of `--fix`; return whether there are any, or files could not be read."""
    from oomdoctor.lint.fixing import fix
    from oomdoctor.output import deliver, is_terminal

    fixing = fix(question.answer)
    text = "".join(map(_difference, fixing.changes.values()))
    # In a file and in a pipe the bytes have to be the right ones; a terminal would obey some of them.
    deliver(printable(text) if output is None and is_terminal(sys.stdout) else text, output)
    result = fixing.linted.result
    _tell(question, result)
    unread = [f"`{each.path}` was not linted: {each.problem}" for each in result.unreadable]
    say([*unread, *fixing.notes, f"{fixing.fixed} would be fixed, {len(result.findings)} left"])
    return bool(fixing.changes or unread)


def show_report(document: LintDocument, form: str) -> None:
    """Print the report on stderr, where standard output has the fixed text."""
    from oomdoctor.output import Terminal, deliver
    from oomdoctor.report import render

    deliver(render(document, form, Terminal.of(sys.stderr)), stdout=sys.stderr)


def show_statistics(result: LintResult, output: Path | None, *, aside: bool) -> None:
    """Print the number of findings by rule; on stderr where standard output is taken."""
    from oomdoctor.output import deliver
    from oomdoctor.report.lint import render_statistics

    deliver(render_statistics(result), output, stdout=sys.stderr if aside else None)


def say(lines: Iterable[str]) -> None:
    """Print lines on stderr."""
    for line in lines:
        typer.echo(printable(line), err=True)


def _difference(change: Change) -> str:
    from oomdoctor.lint.fixing import program, unified

    return unified(change.shown, program(change.old, change.name), program(change.new, change.name))


def _tell(question: Question, result: LintResult) -> None:
    if not (result.files or result.skipped_files or result.unreadable):
        say([f"warning: no Python file in {', '.join(f'`{path}`' for path in question.paths)}"])
    if not result.rules:
        say(["warning: no rule is selected"])
    if question.verbose:
        say(
            [
                f"rules: {', '.join(result.rules) or 'none'}",
                f"files: {result.files}, with {result.lines} lines; {result.skipped_files} without torch skipped",
                f"suppressed: {result.suppressed}",
            ]
        )
