"""The options of a report that several commands share, and `oomdoctor report`: a saved result in any format."""

from __future__ import annotations

import json as json_module
import platform
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args

import typer

from oomdoctor import __version__
from oomdoctor.cli.probe_options import QuietFlag
from oomdoctor.errors import UsageError
from oomdoctor.output import deliver, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from oomdoctor.errors import OomdoctorError
    from oomdoctor.results import Document


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser for an option that takes one of these words; typer's own words its errors as its library does."""

    def parse(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"'{text}' is not one of {', '.join(map(repr, words))}")
        return text

    return parse


def metavar(*words: str) -> str:
    """Return the words as `--help` shows them."""
    return f"<{'|'.join(words)}>"


def _show_help(context: typer.Context, value: bool) -> None:  # noqa: FBT001 - typer hands a flag over by position
    if value:
        deliver(f"{context.get_help()}\n")
        raise typer.Exit


Help: TypeAlias = Annotated[
    bool, typer.Option("--help", callback=_show_help, is_eager=True, help="Show this message and exit.")
]
"""`--help` with a default of False; register the command with `add_help_option=False`.

Typer's own has None, and to make a bool of that recent versions load pydantic, which takes longer than all the rest.
"""

FormatName: TypeAlias = Literal["text", "json", "markdown", "html", "github", "junit", "sarif"]
"""Every format that a command may have a report in."""

Format: TypeAlias = Annotated[
    FormatName | None,
    typer.Option(
        "--format",
        parser=one_of(*get_args(FormatName)),
        metavar=metavar(*get_args(FormatName)),
        help="Format of the report: text for people, json for programs, markdown for a comment, html for a page, "
        "github for annotations of a job, junit for a CI server, sarif for code scanning.",
        show_default=False,
    ),
]
JsonFlag: TypeAlias = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
MarkdownFlag: TypeAlias = Annotated[bool, typer.Option("--markdown", help="The same as --format markdown.")]
HtmlFlag: TypeAlias = Annotated[bool, typer.Option("--html", help="The same as --format html.")]

FORMAT_BY_ENDING: Mapping[str, str] = MappingProxyType(
    {
        ".json": "json",
        ".md": "markdown",
        ".markdown": "markdown",
        ".html": "html",
        ".htm": "html",
        ".sarif": "sarif",
        ".xml": "junit",
        ".txt": "text",
        ".log": "text",
    }
)
"""Format that a file's ending asks for where no flag does; a name without an ending gets text."""


def _unless_dash(value: Path | None) -> Path | None:
    """Return None for `-`, which is standard output as everywhere."""
    return None if value == Path("-") else value


Output: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        callback=_unless_dash,
        metavar="FILE",
        help="Write the report to a file; its ending chooses the format: .json, .md, .html, .sarif, .xml for JUnit or "
        ".txt; an option that names a format goes before it.",
        show_default=False,
    ),
]


def report(  # noqa: PLR0913 - one parameter an option
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="What `oomdoctor probe`, `prescribe`, `verify`, `check`, `diagnose`, `lint` or `gpus --fit` wrote "
            "as JSON; `-` for stdin.",
        ),
    ],
    *,
    form: Format = None,
    json: JsonFlag = False,
    markdown: MarkdownFlag = False,
    html: HtmlFlag = False,
    output: Output = None,
    _quiet: QuietFlag = False,
) -> None:
    """Render a saved result again, in any format.

    Exit code: 0 once it is rendered, whatever its own exit code is; 2 where it cannot be read or written.
    """
    from oomdoctor.results.saved import read_document

    name = format_name(form, json=json, markdown=markdown, html=html, output=output)
    render(read_document(file), name, output)


def format_name(
    form: FormatName | None = None,
    *,
    json: bool = False,
    markdown: bool = False,
    html: bool = False,
    output: Path | None = None,
) -> str:
    """Return the format that the options ask for, or else the ending of the output file: `text` where neither does.

    Args:
        form: What `--format` was given.
        json: Whether `--json` was given.
        markdown: Whether `--markdown` was given.
        html: Whether `--html` was given.
        output: What `--output` was given.

    Raises:
        UsageError: The options ask for two, or the ending for none that is known.
    """
    flags = {"json": json, "markdown": markdown, "html": html}
    asked = {name: f"--{name}" for name, is_asked in flags.items() if is_asked and name != form}
    if form is not None:
        asked = {form: f"--format {form}", **asked}
    if len(asked) > 1:
        first, second = list(asked.values())[:2]
        raise UsageError(f"`{first}` and `{second}` exclude each other", hint="give one of them, or run it twice")
    return next(iter(asked)) if asked else _by_ending(output)


def _warn_of_ending(name: str, output: Path) -> None:
    """Say on stderr that a file has another format than its ending promises; SARIF is JSON, and text may be any."""
    promised = FORMAT_BY_ENDING.get(output.suffix.lower(), "text")
    if promised not in (name, "text") and (name, promised) != ("sarif", "json"):
        say([f"warning: `{output}` has {name}, as an option says, and its ending says {promised}"])


def _by_ending(output: Path | None) -> str:
    if output is None or not output.suffix:
        return "text"
    # GitHub takes `results.sarif.json` as well as `results.sarif`.
    if "".join(output.suffixes[-2:]).lower() == ".sarif.json":
        return "sarif"
    if output.suffix.lower() not in FORMAT_BY_ENDING:
        known = ", ".join(f"`{ending}`" for ending in FORMAT_BY_ENDING)
        raise UsageError(
            f"`{output}` ends in `{output.suffix}`, which is no format of a report",
            hint=f"known endings are {known}; `--format text` writes text whatever the name",
        )
    return FORMAT_BY_ENDING[output.suffix.lower()]


def render(document: Document, name: str, output: Path | None) -> None:
    """Write a document in the format of this name to `output`, or to standard output where that is None.

    Annotations of a GitHub job are joined by the document as Markdown in the summary of the job's step.

    Raises:
        UsageError: `output` cannot be written.
    """
    from oomdoctor.output import Terminal
    from oomdoctor.report import github
    from oomdoctor.report import render as rendered

    terminal = Terminal.of(sys.stdout) if output is None else Terminal()
    deliver(rendered(document, name, terminal), output)
    if output is not None:
        _warn_of_ending(name, output)
    if name == "github":
        github.append(rendered(document, "markdown", terminal))


def render_failure(command: str, error: OomdoctorError, name: str, output: Path | None) -> None:
    """Write the error of a command in the format of this name, where programs read that; people have standard error."""
    from oomdoctor.report.failure import FORMATS, Failure
    from oomdoctor.report.failure import render as rendered

    if name in FORMATS:
        failure = Failure(command, error, own_versions())
        is_json = name == "json"
        document = plain_document(command, failure.status, failure.exit_code, failure.result()) if is_json else ""
        deliver(document or rendered(failure, name), output)
        if output is not None:
            _warn_of_ending(name, output)


def own_versions() -> dict[str, str]:
    """Return the versions that every document names: `oomdoctor` and `python`."""
    return {"oomdoctor": __version__, "python": platform.python_version()}


def plain_document(command: str, status: str, exit_code: int, result: object) -> str:
    """Return the JSON of an answer that no other format has, in the frame of a document, with a newline at its end."""
    from oomdoctor.results import SCHEMA_VERSION

    document = {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "status": status,
        "exit_code": exit_code,
        "versions": own_versions(),
        "result": result,
    }
    return json_module.dumps(document, indent=2, allow_nan=False) + "\n"


def say(lines: Iterable[str]) -> None:
    """Print lines on stderr."""
    for line in lines:
        typer.echo(printable(line), err=True)
