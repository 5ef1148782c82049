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
    """What is to be linted, and how.

    Attributes:
        paths: As they were given.
        settings: What holds.
        stdin: What standard input held, where it is linted.
        verbose: Whether to tell on stderr what was done.
    """

    paths: Sequence[str]
    settings: Settings
    stdin: bytes | None = None
    verbose: bool = False

    def answer(self, overlay: Overlay) -> LintRun:
        """Lint, with other contents for some files than they have."""
        from oomdoctor.lint.engine import lint

        stdin = overlay.get(None, self.stdin)
        files = {path: data for path, data in overlay.items() if path is not None}
        return lint(self.paths, self.settings, None if stdin is None else BytesIO(stdin), overlay=files)


def ask(
    paths: Sequence[str], configuration: LintConfiguration, stdin_filename: str | None, *, verbose: bool
) -> Question:
    """Put the question together, saying which settings hold where that is wanted.

    Raises:
        UsageError: A word of the configuration names no rule, or none is on without that being asked for.
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
    """What there is to find."""
    result = question.answer({}).result
    _tell(question, result)
    return result


def fixed(question: Question, *, told: bool) -> LintResult:
    """What is left to find once all is put right that can be; files are written, standard input is printed.

    Args:
        question: What to lint.
        told: Whether the report on standard output will say how much was fixed.
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
    """Print what `--fix` would change; whether that is anything, or files could not be read."""
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
    """Print the report on stderr, where standard output has what standard input was made into."""
    from oomdoctor.output import Terminal, deliver
    from oomdoctor.report import render

    deliver(render(document, form, Terminal.of(sys.stderr)), stdout=sys.stderr)


def show_statistics(result: LintResult, output: Path | None, *, aside: bool) -> None:
    """Print how many findings each rule has; on stderr where standard output is taken."""
    from oomdoctor.output import deliver
    from oomdoctor.report.lint.text import render_statistics

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
        say([f"warning: there is no Python file in {', '.join(f'`{path}`' for path in question.paths)}"])
    if not result.rules:
        say(["warning: no rule is on"])
    if question.verbose:
        say(
            [
                f"rules: {', '.join(result.rules) or 'none'}",
                f"files: {result.files}, with {result.lines} lines; {result.skipped_files} more have no torch in them",
                f"suppressed: {result.suppressed}",
            ]
        )
