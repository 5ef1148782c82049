"""`oomdoctor report`: a saved result in any format, without running anything again."""

from __future__ import annotations

import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from oomdoctor.cli.options import Format, FormatName, HtmlFlag, JsonFlag, MarkdownFlag, Output
from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.results import Document


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
    }
)
"""Format that a file's ending asks for where no flag does; any other ending gets text."""


def report(  # noqa: PLR0913 - one parameter an option
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="What `oomdoctor probe`, `check`, `diagnose`, `lint` or `gpus --fit` wrote as JSON; `-` for stdin.",
        ),
    ],
    *,
    form: Format = None,
    json: JsonFlag = False,
    markdown: MarkdownFlag = False,
    html: HtmlFlag = False,
    output: Output = None,
) -> None:
    """Render a saved result again, in any format."""
    from oomdoctor.results.saved import read_document

    name = format_name(form, json=json, markdown=markdown, html=html, output=output)
    document = read_document(file)
    render(document, name, output)


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
        UsageError: The options ask for two.
    """
    flags = {"json": json, "markdown": markdown, "html": html}
    asked = {name: f"--{name}" for name, is_asked in flags.items() if is_asked and name != form}
    if form is not None:
        asked = {form: f"--format {form}", **asked}
    if len(asked) > 1:
        first, second = list(asked.values())[:2]
        raise UsageError(f"`{first}` and `{second}` exclude each other", hint="Give one of them, or run it twice")
    return next(iter(asked), _by_ending(output))


def _by_ending(output: Path | None) -> str:
    if output is None:
        return "text"
    # GitHub takes `results.sarif.json` as well as `results.sarif`.
    doubled = "".join(output.suffixes[-2:]).lower()
    return "sarif" if doubled == ".sarif.json" else FORMAT_BY_ENDING.get(output.suffix.lower(), "text")


def render(document: Document, name: str, output: Path | None) -> None:
    """Write a document in the format of this name to `output`, or to standard output where that is None.

    Annotations of a GitHub job are joined by the document as Markdown in the summary of the job's step.

    Raises:
        UsageError: `output` cannot be written.
    """
    from oomdoctor.output import Terminal, deliver
    from oomdoctor.report import github
    from oomdoctor.report import render as rendered

    terminal = Terminal.of(sys.stdout) if output is None else Terminal()
    deliver(rendered(document, name, terminal), output)
    if name == "github":
        github.append(rendered(document, "markdown", terminal))
