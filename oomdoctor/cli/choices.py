"""Options that take one of a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Callable


def one_of(*words: str) -> Callable[[str], str]:
    """A parser for an option that takes one of these words; typer's own words its errors as its library does."""

    def parse(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"'{text}' is not one of {', '.join(map(repr, words))}")
        return text

    return parse


def metavar(*words: str) -> str:
    """How the words are shown in `--help`."""
    return f"<{'|'.join(words)}>"
