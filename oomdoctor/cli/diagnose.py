"""`oomdoctor diagnose`: parse, diagnose, render, exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

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
    own_versions,
    render,
)
from oomdoctor.errors import EXIT_GATE, EXIT_NO_ANSWER, EXIT_OK, EXIT_USAGE, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from oomdoctor.diagnose.sources import Source
    from oomdoctor.results import DiagnosisDocument, DiagnosisResult


Files: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="A message, a traceback, a log, a memory snapshot, or the folder that `oomdoctor run` wrote; `-` for "
        "standard input. Two snapshots are compared.",
    ),
]
Short: TypeAlias = Annotated[
    bool, typer.Option("--short", help="Print one line for each file, which is diagnosed by itself.")
]
FailOnOom: TypeAlias = Annotated[bool, typer.Option("--fail-on-oom", help="Exit with 1 where memory ran out.")]


def diagnose(  # noqa: PLR0913 - one parameter an option
    files: Files,
    *,
    fail_on_oom: FailOnOom = False,
    short: Short = False,
    form: Format = None,
    json: JsonFlag = False,
    markdown: MarkdownFlag = False,
    html: HtmlFlag = False,
    output: Output = None,
    _quiet: QuietFlag = False,
    _help: Help = False,
) -> None:
    """Say why a run ran out of memory, from its log or its snapshot, and what to change."""
    from oomdoctor.diagnose.diagnose import diagnose as run_diagnosis
    from oomdoctor.diagnose.sources import sources
    from oomdoctor.output import check_writable

    if output is not None:
        check_writable(output)
    # Among several that are diagnosed one by one, one that is not there is told in its turn.
    named = sources(files, refuse_missing=not short or len(files) == 1)
    if output is not None and output.exists() and any(source.is_file(output) for source in named):
        raise UsageError(
            f"`{output}` is what is to be read", hint=f"name another file to write, such as `{_other(output)}`"
        )
    chosen = format_name(form, json=json, markdown=markdown, html=html, output=None if short else output)
    if short:
        if chosen != "text":
            raise UsageError(f"`--short` prints lines of text, and not {chosen}", hint="drop one of the two")
        raise typer.Exit(_print_lines(named, output, fail_on_oom=fail_on_oom))
    document = document_of(run_diagnosis(named), fail_on_oom=fail_on_oom)
    render(document, chosen, output)
    raise typer.Exit(document.exit_code)


def _other(output: Path) -> Path:
    return output.with_name(f"diagnosis-of-{output.name}")


def _print_lines(named: Sequence[Source], output: Path | None, *, fail_on_oom: bool) -> int:
    """Print one line a file as soon as it is read; return the exit code of all of them.

    A file that cannot be read is told on standard error, and the others are read nevertheless.
    """
    from oomdoctor.diagnose.diagnose import diagnose as run_diagnosis
    from oomdoctor.output import deliver
    from oomdoctor.report.diagnose.text import line

    lines, codes = [], set()
    for source in named:
        try:
            document = document_of(run_diagnosis([source]), fail_on_oom=fail_on_oom)
        except UsageError as error:
            codes.add(EXIT_USAGE)
            typer.echo(f"error: {error.message}", err=True)
            continue
        codes.add(document.exit_code)
        lines.append(f"{line(document)}\n")
        if output is None:
            deliver(lines[-1])
    if output is not None and lines:
        deliver("".join(lines), output)
    return next(code for code in (EXIT_USAGE, EXIT_GATE, EXIT_OK, EXIT_NO_ANSWER) if code in codes)


def document_of(result: DiagnosisResult, *, fail_on_oom: bool = False) -> DiagnosisDocument:
    """Return the document of a diagnosis with its status and exit code."""
    from oomdoctor.results import DiagnosisDocument

    found = bool(result.occurrences or result.snapshots)
    return DiagnosisDocument(
        command="diagnose",
        status="oom" if result.is_oom else "not_oom" if found else "nothing_found",
        exit_code=EXIT_NO_ANSWER if not found else EXIT_GATE if fail_on_oom and result.is_oom else EXIT_OK,
        versions=own_versions(),
        result=result,
    )
