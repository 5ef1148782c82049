"""Saved documents: results as JSON in a file or on standard input, and back.

Reading is strict about what a document must have and calm about what it may have more of: each field has to be there
with its type, a field that nobody here knows is passed over.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NoReturn, cast

from oomdoctor.codec import LONGEST_SHOWN, MismatchError, decode, encode, shown
from oomdoctor.errors import UsageError
from oomdoctor.results.document import COMMANDS, SCHEMA_VERSION

if TYPE_CHECKING:
    from os import PathLike

    from oomdoctor.results.document import Document

MAXIMUM_DOCUMENT_BYTES: Final = 64 * 1024**2
"""Larger inputs are refused unread; a document is a few hundred kilobytes at most."""

_WIDEST_LINE: Final = 280
_HINT: Final = (
    "give a file that `oomdoctor probe`, `prescribe`, `verify`, `check`, `diagnose`, `lint` or `gpus --fit` wrote with "
    "`--json`"
)
_AGAIN: Final = "run the command again"
_JSON_NAMES: Final = {list: "a list", str: "a string", int: "an integer", float: "a number"}


# --- writing ---------------------------------------------------------------------------------------------------------


def to_data(document: Document) -> dict[str, object]:
    """Return the document as plain dicts, lists, strings and numbers, `schema_version` first."""
    data = cast("dict[str, object]", encode(document))
    return {"schema_version": data.pop("schema_version"), **data}


def to_json(document: Document) -> str:
    """Return the document as indented JSON, ASCII only, with a newline at its end; what is short is on one line."""
    return _indented(to_data(document)) + "\n"


def _indented(value: object, indent: int = 0, before: int = 0) -> str:
    """Return JSON that breaks where a line would be too long; a line a number would be most of a timeline.

    Args:
        value: Plain data.
        indent: Spaces before the line that it begins on.
        before: Characters of that line before it.
    """
    line = json.dumps(value, allow_nan=False, separators=(",", ":"))
    if not isinstance(value, dict | list) or indent + before + len(line) <= _WIDEST_LINE:
        return line
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    keys = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    items = value.values() if isinstance(value, dict) else value
    pad = " " * (indent + 1)
    lines = [f"{pad}{key}{_indented(item, indent + 1, len(key))}" for key, item in zip(keys, items, strict=True)]
    return "\n".join([opening, ",\n".join(lines), f"{' ' * indent}{closing}"])


# --- reading ---------------------------------------------------------------------------------------------------------


def load_result(path: str | PathLike[str]) -> Document:
    """Read what a command wrote with `--json`.

        plan = load_result("oomdoctor.json").plan

    Args:
        path: The file.

    Returns:
        The document, with the command's name in `command` and what it found in `result`; `plan` is the accumulation
        plan of a probe.

    Raises:
        UsageError: There is no such file, it cannot be read, or it does not hold a document of oomdoctor.
    """
    return read_document(str(path))


def read_document(source: str, stdin: BinaryIO | None = None) -> Document:
    """Read a saved document.

    Args:
        source: A path, or `-` for standard input.
        stdin: What `-` stands for; the process's own standard input when None.

    Raises:
        UsageError: There is no such file, it cannot be read, or it does not hold a document of oomdoctor.
    """
    if source == "-":
        stream = sys.stdin.buffer if stdin is None else stdin
        return from_json(_as_text(stream.read(MAXIMUM_DOCUMENT_BYTES + 1), "standard input"), "standard input")
    return from_json(_as_text(_read_bytes(Path(source)), f"`{source}`"), f"`{source}`")


def from_json(text: str, source: str) -> Document:
    """Read a document out of JSON.

    Args:
        text: The JSON.
        source: What to call it in messages: a path in backticks, or `standard input`.

    Raises:
        UsageError: It is not JSON, not a document of oomdoctor, of another schema version, or a field is missing or
            has the wrong type; the message names the field.
    """
    data = _parse(text, source)
    if "schema_version" not in data:
        raise UsageError(f"{source} is JSON, but not a document of oomdoctor: it has no `schema_version`", hint=_HINT)
    version = data["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        found = json.dumps(version)[:LONGEST_SHOWN]
        raise UsageError(
            f"{source} has `schema_version` {found}, and this oomdoctor reads {SCHEMA_VERSION}",
            hint=f"use the oomdoctor that wrote it, or {_AGAIN}" if type(version) is int else _HINT,
        )
    if data.get("written_by") == "oomdoctor run":
        raise UsageError("this is the report of a run, not a result", hint="`oomdoctor diagnose` reads its folder")
    result = data.get("result")
    if isinstance(result, dict) and isinstance(result.get("problem"), dict):
        raise UsageError(f"this is the document of a command that failed: {_message(result['problem'])}", hint=_AGAIN)
    if "command" not in data:
        raise UsageError(f"`command` in {source} is missing", hint=_HINT)
    command = data["command"]
    if not isinstance(command, str) or command not in COMMANDS:
        known = ", ".join(f"`{name}`" for name in COMMANDS)
        raise UsageError(f"`command` in {source} is {shown(command)}, not one of {known}", hint=_HINT)
    try:
        return decode(COMMANDS[command], data)
    except MismatchError as error:
        place = f"`{error.where}` in {source}" if error.where else source
        raise UsageError(f"{place} {error.problem}", hint=_HINT) from None


# --- bytes to data ---------------------------------------------------------------------------------------------------


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(MAXIMUM_DOCUMENT_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"no such file: `{path}`", hint=_HINT) from None
    except IsADirectoryError:
        raise UsageError(f"`{path}` is a directory", hint=_HINT) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"`{path}` cannot be read: {reason}", hint=_HINT) from None


def _as_text(data: bytes, source: str) -> str:
    if len(data) > MAXIMUM_DOCUMENT_BYTES:
        limit = MAXIMUM_DOCUMENT_BYTES // 1024**2
        raise UsageError(f"{source} is larger than {limit} MiB, which no document of oomdoctor is", hint=_HINT)
    # Windows PowerShell redirects as UTF-16 with a byte order mark.
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not text: byte {error.start} is not UTF-8", hint=_HINT) from None


def _message(problem: dict[str, object]) -> str:
    """Return what was wrong, whole; of a document that somebody else has written, whatever stands there."""
    message = problem.get("message")
    return message if isinstance(message, str) else shown(message)


def _parse(text: str, source: str) -> dict[str, object]:
    if not text.strip():
        raise UsageError(
            f"{source} is empty", hint=f"{_HINT}; an empty one is what a command that failed leaves behind"
        )
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{source} is not JSON, or was cut short: {error.msg} ({place})", hint=_HINT) from None
    except RecursionError:
        raise UsageError(f"{source} is nested too deeply for a document of oomdoctor", hint=_HINT) from None
    except ValueError as error:
        raise UsageError(f"{source} is not JSON that can be read: {error}", hint=_HINT) from None
    if not isinstance(data, dict):
        kind = _JSON_NAMES.get(type(data), "a single value")
        raise UsageError(f"{source} is JSON, but {kind} instead of a document of oomdoctor", hint=_HINT)
    return data


def _refuse_constant(name: str) -> NoReturn:
    message = f"`{name}` is not a number in JSON"
    raise ValueError(message)
