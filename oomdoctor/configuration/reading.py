"""TOML from a file, and what is wrong with it in words."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

_HINT: Final = "put it right; `oomdoctor lint --isolated` goes without it"
_PLACE = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")


def read_toml(path: Path, source: str) -> dict[str, Any]:
    """The tables of a TOML file.

    Args:
        path: The file.
        source: What to call it in messages.

    Raises:
        UsageError: It cannot be read, or is not TOML; the message has the line and the column.
    """
    text = _read_text(path, source)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(_explained(str(error), text, source), hint=_HINT) from None
    except RecursionError:
        raise UsageError(f"{source} is nested too deeply", hint=_HINT) from None
    except ValueError as error:  # an integer with more digits than Python reads
        raise UsageError(f"{source} holds a value that cannot be read: {error}", hint=_HINT) from None


def _read_text(path: Path, source: str) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not TOML: byte {error.start} is not UTF-8", hint=_HINT) from None
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}", hint=_HINT) from None


def _explained(message: str, text: str, source: str) -> str:
    """Where the parser stopped and why, in our own order."""
    found = _PLACE.search(message)
    reason = message[: found.start()] if found else message
    line, column = _end_of(text)
    if found and found["line"]:
        line, column = int(found["line"]), int(found["column"])
    return f"{source} is not TOML, line {line}, column {column}: {reason[:1].lower()}{reason[1:]}"


def _end_of(text: str) -> tuple[int, int]:
    return text.count("\n") + 1, len(text) - text.rfind("\n")
