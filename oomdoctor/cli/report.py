"""`oomdoctor report`: a saved result in any format, without running anything again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oomdoctor.cli.options import JsonFlag, MarkdownFlag, Output
from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from oomdoctor.results import Document


def report(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="What `oomdoctor probe ... --json` wrote; `-` for standard input.")
    ],
    *,
    json: JsonFlag = False,
    markdown: MarkdownFlag = False,
    output: Output = None,
) -> None:
    """Render a saved result again, in any format."""
    from oomdoctor.serialisation import read_document

    format_name(json=json, markdown=markdown)
    render(read_document(file), json=json, markdown=markdown, output=output)


def render(document: Document, *, json: bool, markdown: bool, output: Path | None) -> None:
    """Write a document in the format that the flags ask for, to `output` or to standard output.

    Raises:
        UsageError: The flags ask for two formats, or `output` cannot be written.
    """
    from oomdoctor.output import Terminal, deliver
    from oomdoctor.reports import FORMATS

    terminal = Terminal.of(sys.stdout) if output is None else Terminal()
    deliver(FORMATS[format_name(json=json, markdown=markdown)](document, terminal), output)


def format_name(*, json: bool, markdown: bool) -> str:
    """The key of `FORMATS` that the flags ask for.

    Raises:
        UsageError: They ask for two.
    """
    if json and markdown:
        raise UsageError("`--json` and `--markdown` exclude each other", hint="Give one of them, or run it twice")
    return "json" if json else "markdown" if markdown else "text"
