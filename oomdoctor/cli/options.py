"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args

import typer

from oomdoctor.output import deliver

if TYPE_CHECKING:
    from collections.abc import Callable


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
        ".txt.",
        show_default=False,
    ),
]
