"""`oomdoctor lint`: parse, lint, render, exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args

import typer

from oomdoctor import __version__
from oomdoctor.cli.options import Format, Help, HtmlFlag, JsonFlag, MarkdownFlag, Output, metavar, one_of
from oomdoctor.errors import EXIT_GATE, EXIT_OK, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    _help: Help = False,
) -> None:
    """Find code in training scripts that will run out of memory or silently train wrongly, without running it.

    Folders such as .git, build, dist and venv are skipped, and so are files that .gitignore names.

    Exit code: 0 clean, 1 findings from --fail-on up or files that could not be read, 2 usage.
    """
    import os

    from oomdoctor.cli import lint_actions
    from oomdoctor.cli.report import format_name, render
    from oomdoctor.config.lint import configure_lint
    from oomdoctor.config.schema import LintTable

    chosen = format_name(form, json=json, markdown=markdown, html=html, output=output)
    _check_plain(chosen, diff=diff, statistics=statistics)
    _check_output(output)
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
    question = lint_actions.ask(paths or ["."], configuration, stdin_filename, verbose=verbose)
    if diff:
        would_change = lint_actions.show_difference(question, output)
        raise typer.Exit(EXIT_GATE if would_change and not exit_zero else EXIT_OK)
    is_report = chosen == "text" and output is None and not statistics
    result = lint_actions.fixed(question, told=is_report) if fix else lint_actions.found(question)
    document = document_of(result, configuration.settled.values.fail_on, exit_zero=exit_zero)
    is_taken = fix and question.stdin is not None
    if statistics:
        lint_actions.show_statistics(result, output, aside=is_taken)
    elif is_taken and output is None:
        lint_actions.show_report(document, chosen)
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
    import platform

    from oomdoctor.results import LintDocument, Severity

    order = list(Severity)
    least = order.index(Severity(fail_on or Severity.WARNING))
    fails = bool(result.unreadable) or any(order.index(finding.severity) >= least for finding in result.findings)
    return LintDocument(
        command="lint",
        status="findings" if result.findings else "unreadable" if result.unreadable else "clean",
        exit_code=EXIT_GATE if fails and not exit_zero else EXIT_OK,
        versions={"oomdoctor": __version__, "python": platform.python_version()},
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
        raise UsageError(f"`{output}` is the name of a script, not of a report", hint="name another")
    check_writable(output)
