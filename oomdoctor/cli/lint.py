"""`oomdoctor lint`: parse, lint, fix, render, exit code."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args

import typer

from oomdoctor.cli.probe_options import QuietFlag
from oomdoctor.cli.report import (
    Format,
    Help,
    HtmlFlag,
    JsonFlag,
    MarkdownFlag,
    Output,
    format_name,
    metavar,
    one_of,
    own_versions,
    render,
    say,
)
from oomdoctor.errors import EXIT_GATE, EXIT_OK, UsageError
from oomdoctor.output import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.config.lint import LintConfiguration
    from oomdoctor.lint.engine import LintRun
    from oomdoctor.lint.fixing import FileChange, Overlay
    from oomdoctor.lint.settings import LintSettings
    from oomdoctor.results import LintDocument, LintResult


Paths: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH",
        help="Files and folders; `-` for standard input [default: the working directory].",
        show_default=False,
    ),
]
Words: TypeAlias = list[str] | None
"""Values of an option that is repeated, or of one with commas between them."""

Select: TypeAlias = Annotated[
    Words,
    typer.Option(
        "--select",
        metavar="RULES",
        help="Rules to use instead of the default ones: codes, beginnings of codes such as OOM2, names, or ALL.",
        show_default=False,
    ),
]
Ignore: TypeAlias = Annotated[
    Words, typer.Option("--ignore", metavar="RULES", help="Rules not to use.", show_default=False)
]
ExtendSelect: TypeAlias = Annotated[
    Words, typer.Option("--extend-select", metavar="RULES", help="Rules to use in addition.", show_default=False)
]
PerFileIgnores: TypeAlias = Annotated[
    Words,
    typer.Option(
        "--per-file-ignores",
        metavar="GLOB:RULE",
        help="Rules not to use in some files, such as 'tests/**:OOM101'.",
        show_default=False,
    ),
]
Exclude: TypeAlias = Annotated[
    Words,
    typer.Option(
        "--exclude",
        metavar="GLOBS",
        help="Files and folders to skip, besides those in .gitignore.",
        show_default=False,
    ),
]
Least: TypeAlias = Literal["note", "warning", "error"]
FailOn: TypeAlias = Annotated[
    Least | None,
    typer.Option(
        "--fail-on",
        parser=one_of(*get_args(Least)),
        metavar=metavar(*get_args(Least)),
        help="Least severe finding that makes the exit code 1 [default: warning].",
        show_default=False,
    ),
]
ExitZero: TypeAlias = Annotated[bool, typer.Option("--exit-zero", help="Exit with 0 even where there are findings.")]
FixFlag: TypeAlias = Annotated[bool, typer.Option("--fix", help="Fix what can be fixed safely.")]
DiffFlag: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--diff", help="Show the changes that --fix would make, and write nothing; exit with 1 if there are any."
    ),
]
StatisticsFlag: TypeAlias = Annotated[
    bool, typer.Option("--statistics", help="Count findings by rule instead of showing them.")
]
StdinFilename: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Name for standard input; .ipynb makes it a notebook.", show_default=False),
]
ConfigFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Configuration to read, instead of the nearest oomdoctor.toml or pyproject.toml.",
        show_default=False,
    ),
]
IsolatedFlag: TypeAlias = Annotated[bool, typer.Option("--isolated", help="Read no configuration file.")]
VerboseFlag: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print on stderr the settings that apply, and where each comes from.")
]


def lint(  # noqa: PLR0913 - one parameter an option
    paths: Paths = None,
    *,
    select: Select = None,
    ignore: Ignore = None,
    extend_select: ExtendSelect = None,
    per_file_ignores: PerFileIgnores = None,
    exclude: Exclude = None,
    fail_on: FailOn = None,
    exit_zero: ExitZero = False,
    fix: FixFlag = False,
    diff: DiffFlag = False,
    statistics: StatisticsFlag = False,
    stdin_filename: StdinFilename = None,
    config: ConfigFile = None,
    isolated: IsolatedFlag = False,
    verbose: VerboseFlag = False,
    form: Format = None,
    json: JsonFlag = False,
    markdown: MarkdownFlag = False,
    html: HtmlFlag = False,
    output: Output = None,
    _quiet: QuietFlag = False,
    _help: Help = False,
) -> None:
    """Find code in training scripts that will run out of memory or silently train wrongly, without running it.

    Folders such as .git, build, dist and venv are skipped, and so are files that .gitignore names.

    Exit code: 0 clean, 1 findings from --fail-on up or files that could not be read, 2 usage.
    """
    import os

    from oomdoctor.config.lint import configure_lint
    from oomdoctor.config.schema import LintTable

    _check_output(output)
    is_plain = diff or statistics  # whatever the file is called
    chosen = format_name(form, json=json, markdown=markdown, html=html, output=None if is_plain else output)
    _check_plain(chosen, diff=diff, statistics=statistics)
    _check_stdin(paths or [], stdin_filename, chosen if fix and not diff and output is None else "text")
    given = LintTable(
        select=_rules(select, "--select"),
        ignore=_words(ignore),
        extend_select=_rules(extend_select, "--extend-select"),
        per_file_ignores=_ignores(per_file_ignores),
        exclude=_words(exclude),
        fail_on=fail_on,
    )
    configuration = configure_lint(given, os.environ, config=config, isolated=isolated)
    question = _ask(paths or ["."], configuration, stdin_filename, verbose=verbose)
    if diff:
        would_change = _show_difference(question, output)
        raise typer.Exit(EXIT_GATE if would_change and not exit_zero else EXIT_OK)
    is_report = chosen == "text" and output is None and not statistics
    result = _fixed(question, told=is_report) if fix else _found(question)
    document = document_of(result, configuration.settled.values.fail_on, exit_zero=exit_zero)
    is_taken = fix and question.stdin is not None
    if statistics:
        from oomdoctor.output import deliver
        from oomdoctor.report.lint import render_statistics

        deliver(render_statistics(result), output, stdout=sys.stderr if is_taken else None)
        say(_unread(result))  # which the statistics only count
    elif is_taken and output is None:
        from oomdoctor import report
        from oomdoctor.output import Terminal, deliver

        # Standard output has the fixed text.
        deliver(report.render(document, chosen, Terminal.of(sys.stderr)), stdout=sys.stderr)
    else:
        render(document, chosen, output)
    raise typer.Exit(document.exit_code)


def document_of(result: LintResult, fail_on: str | None, *, exit_zero: bool = False) -> LintDocument:
    """Return the document of a result with its status and exit code.

    Args:
        result: The findings.
        fail_on: The least severity that makes the exit code 1; a file that could not be read always does.
        exit_zero: Whether the exit code is 0 in every case.
    """
    from oomdoctor.results import LintDocument, Severity

    order = list(Severity)
    least = order.index(Severity(fail_on or Severity.WARNING))
    fails = bool(result.unreadable) or any(order.index(finding.severity) >= least for finding in result.findings)
    return LintDocument(
        command="lint",
        status="findings" if result.findings else "unreadable" if result.unreadable else "clean",
        exit_code=EXIT_GATE if fails and not exit_zero else EXIT_OK,
        versions=own_versions(),
        result=result,
    )


def _words(given: Words) -> tuple[str, ...] | None:
    """Return the values of an option that may be repeated, each with commas in it."""
    from oomdoctor.config.layers import items

    return None if given is None else tuple(word for text in given for word in items(text))


def _rules(given: Words, option: str) -> tuple[str, ...] | None:
    """Return the values of an option that has to name rules.

    Raises:
        UsageError: It names none, as where a variable of the shell is not set.
    """
    words = _words(given)
    if words == ():
        raise UsageError(f"`{option}` names no rule", hint="leave it out for the default rules, or write `ALL`")
    return words


def _ignores(given: Words) -> dict[str, tuple[str, ...]] | None:
    from oomdoctor.config.layers import pairs

    if given is None:
        return None
    return {glob: tuple(codes) for glob, codes in pairs(",".join(given), "--per-file-ignores").items()}


def _check_plain(form: str, *, diff: bool, statistics: bool) -> None:
    """Check that no other format is asked for with an output that is plain text.

    Raises:
        UsageError: Another format is, or two such outputs are.
    """
    asked = [flag for flag, is_asked in (("--diff", diff), ("--statistics", statistics)) if is_asked]
    if len(asked) > 1:
        raise UsageError("`--diff` and `--statistics` exclude each other", hint="give one of them")
    if asked and form != "text":
        raise UsageError(f"`{asked[0]}` prints plain text", hint=f"drop what asks for {form}")


def _check_stdin(paths: Sequence[str], stdin_filename: str | None, form: str) -> None:
    """Check that standard input is read if it is named, and that only one thing goes to standard output.

    Args:
        paths: The arguments.
        stdin_filename: Name of standard input.
        form: Format of the report that would go to standard output beside the fixed text.

    Raises:
        UsageError: It is named and not read, or two things would go to standard output.
    """
    from oomdoctor.lint.discovery import STANDARD_INPUT

    if STANDARD_INPUT in paths:
        if form != "text":
            hint = "write the report to a file with `-o`, or drop `--fix`"
            raise UsageError(f"the {form} report and the fixed standard input cannot both go to stdout", hint=hint)
    elif stdin_filename is not None:
        raise UsageError("`--stdin-filename` is given, but standard input is not read", hint="give `-` as a path")


def _check_output(output: Path | None) -> None:
    """Check that the report can be written, and that its name is not a script's.

    Raises:
        UsageError: It cannot, or the name is that of a script.
    """
    from oomdoctor.lint.discovery import ENDINGS
    from oomdoctor.output import check_writable

    if output is None:
        return
    if output.suffix in ENDINGS:
        raise UsageError(
            f"`{output}` is the name of a script, not of a report",
            hint=f"name a report, such as `{output.with_suffix('.json')}`",
        )
    check_writable(output)


# --- actions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Question:
    """Everything that one run of lint depends on.

    Attributes:
        paths: The arguments.
        settings: The settings of the run.
        stdin: Bytes of standard input, where it is linted.
        verbose: Whether to report the run's numbers on stderr.
    """

    paths: Sequence[str]
    settings: LintSettings
    stdin: bytes | None = None
    verbose: bool = False

    def answer(self, overlay: Overlay) -> LintRun:
        """Lint, with the contents in `overlay` instead of those of some files."""
        from oomdoctor.lint.engine import lint

        stdin = overlay.get(None, self.stdin)
        files = {path: data for path, data in overlay.items() if path is not None}
        return lint(self.paths, self.settings, None if stdin is None else BytesIO(stdin), overlay=files)


def _ask(
    paths: Sequence[str], configuration: LintConfiguration, stdin_filename: str | None, *, verbose: bool
) -> _Question:
    """Make the question from arguments and configuration, and show the settings where `verbose` is set.

    Raises:
        UsageError: A word of the configuration names no rule, or all rules are off by accident.
    """
    from oomdoctor.lint.discovery import STANDARD_INPUT
    from oomdoctor.lint.notebooks import MOST_NOTEBOOK_BYTES
    from oomdoctor.lint.rules import ALL
    from oomdoctor.lint.settings import LintSettings, check_selection, with_rules

    if verbose:
        say([*configuration.notes, *configuration.settled.lines()])
    holds = configuration.settled.values
    settings = LintSettings(
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
    return _Question(paths, settings, stdin, verbose)


def _found(question: _Question) -> LintResult:
    """Lint, and return the result."""
    result = question.answer({}).result
    _tell(question, result)
    return result


def _fixed(question: _Question, *, told: bool) -> LintResult:
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


def _show_difference(question: _Question, output: Path | None) -> bool:
    """Print the changes of `--fix`; return whether there are any, or files could not be read."""
    from oomdoctor.lint.fixing import fix
    from oomdoctor.output import deliver, is_terminal

    fixing = fix(question.answer)
    text = "".join(map(_difference, fixing.changes.values()))
    # In a file and in a pipe the bytes have to be the right ones; a terminal would obey some of them.
    deliver(printable(text) if output is None and is_terminal(sys.stdout) else text, output)
    result = fixing.linted.result
    _tell(question, result)
    unread = _unread(result)
    say([*unread, *fixing.notes, f"{fixing.fixed} would be fixed, {len(result.findings)} left"])
    return bool(fixing.changes or unread)


def _unread(result: LintResult) -> list[str]:
    """Return a line for each file that was not linted, with the place where that is known."""
    from oomdoctor.report.findings import place, unread

    return [f"{place(each)}: {unread(each)}" for each in result.unreadable]


def _difference(change: FileChange) -> str:
    from oomdoctor.lint.fixing import program, unified

    return unified(change.shown, program(change.old, change.name), program(change.new, change.name))


def _tell(question: _Question, result: LintResult) -> None:
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
