"""`oomdoctor report`: a saved result in any format, without running anything again."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from oomdoctor.results import Document


def report(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="What `oomdoctor probe ... --json` wrote; `-` for standard input.")
    ],
    *,
    json: Annotated[bool, typer.Option("--json", help="Write JSON again, in this version's layout.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Write Markdown, for a comment or a job summary.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the report to a file.")
    ] = None,
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
