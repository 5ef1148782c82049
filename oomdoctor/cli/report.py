"""`oomdoctor report`: a saved result in any format, without running anything again."""

from __future__ import annotations

import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from oomdoctor.cli.options import HtmlFlag, JsonFlag, MarkdownFlag, Output
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
        ".txt": "text",
    }
)
"""Format that a file's ending asks for where no flag does; any other ending gets text."""


def report(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="What `oomdoctor probe` or `oomdoctor diagnose` wrote with `--json`; `-` for standard input.",
        ),
    ],
    *,
    json: JsonFlag = False,
    markdown: MarkdownFlag = False,
    html: HtmlFlag = False,
    output: Output = None,
) -> None:
    """Render a saved result again, in any format."""
    from oomdoctor.serialisation import read_document

    name = format_name(json=json, markdown=markdown, html=html, output=output)
    document = read_document(file)
    check_format(document.command, name)
    render(document, name, output)


def format_name(*, json: bool, markdown: bool, html: bool = False, output: Path | None = None) -> str:
    """The format that the flags ask for, or else the ending of the output file: `text` where neither does.

    Raises:
        UsageError: The flags ask for two.
    """
    asked = [name for name, is_asked in (("json", json), ("markdown", markdown), ("html", html)) if is_asked]
    if len(asked) > 1:
        raise UsageError(
            f"`--{asked[0]}` and `--{asked[1]}` exclude each other", hint="Give one of them, or run it twice"
        )
    if asked:
        return asked[0]
    return "text" if output is None else FORMAT_BY_ENDING.get(output.suffix.lower(), "text")


def check_format(command: str, name: str) -> None:
    """See before long work that a command's document has a report in this format.

    Raises:
        UsageError: It has none.
    """
    from oomdoctor.reports import FORMATS

    if (command, name) not in FORMATS:
        known = [f"`--{other}`" for of, other in FORMATS if of == command and other != "text"]
        raise UsageError(
            f"`oomdoctor {command}` has no {name.upper()} report yet", hint=f"Use one of {', '.join(known)}"
        )


def render(document: Document, name: str, output: Path | None) -> None:
    """Write a document in the format of this name to `output`, or to standard output where that is None.

    Raises:
        UsageError: `output` cannot be written.
    """
    from oomdoctor.output import Terminal, deliver
    from oomdoctor.reports import FORMATS

    terminal = Terminal.of(sys.stdout) if output is None else Terminal()
    deliver(FORMATS[document.command, name](document, terminal), output)
