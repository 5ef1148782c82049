"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer


def _show_help(context: typer.Context, value: bool) -> None:  # noqa: FBT001 - typer hands a flag over by position
    if value:
        typer.echo(context.get_help())
        raise typer.Exit


Help: TypeAlias = Annotated[
    bool, typer.Option("--help", callback=_show_help, is_eager=True, help="Show this message and exit.")
]
"""`--help` with a default of False; register the command with `add_help_option=False`.

Typer's own has None, and to make a bool of that recent versions load pydantic, which takes longer than all the rest.
"""

JsonFlag: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
MarkdownFlag: TypeAlias = Annotated[
    bool, typer.Option("--markdown", help="Print Markdown, for a comment or a summary.")
]
HtmlFlag: TypeAlias = Annotated[bool, typer.Option("--html", help="Print one self-contained HTML page.")]


def _unless_dash(value: Path | None) -> Path | None:
    """`-` is standard output, as everywhere."""
    return None if value == Path("-") else value


Output: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        callback=_unless_dash,
        metavar="FILE",
        help="Write the report to a file; .json, .md, .html or .txt chooses its format.",
        show_default=False,
    ),
]
