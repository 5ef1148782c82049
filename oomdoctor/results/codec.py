"""Results to JSON and back, driven by the dataclasses' type hints.

Reading is strict about what a document must have and calm about what it may have more of: each field has to be there
with its type, a field that nobody here knows is passed over. Nothing in the text is ever executed.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from oomdoctor.errors import UsageError
from oomdoctor.results import (
    SCHEMA_VERSION,
    CheckDocument,
    CheckedEntry,
    DiagnosisDocument,
    Document,
    LintDocument,
    ProbeDocument,
    ProbeResult,
    SnapshotSummary,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from os import PathLike


MAXIMUM_DOCUMENT_BYTES = 64 * 1024**2
"""Larger inputs are refused unread; a document is a few hundred kilobytes at most."""

_DOCUMENTS: Mapping[str, type[Document]] = MappingProxyType(
    {"probe": ProbeDocument, "diagnose": DiagnosisDocument, "lint": LintDocument, "check": CheckDocument}
)
ADDED_LATER: frozenset[tuple[type, str]] = frozenset(
    {
        (ProbeResult, "memory"),
        (ProbeResult, "command_plan"),
        (ProbeResult, "guide"),
        (CheckedEntry, "not_kept"),
        (SnapshotSummary, "replay"),
    }
)
"""Fields that documents of this schema version did not have from the first; one that lacks them has their defaults."""

_MAXIMUM_INTEGER = 2**63 - 1
_SHOWN_CHARACTERS = 60
_HINT = "Give a file that `oomdoctor probe`, `diagnose`, `lint` or `check` wrote with `--json`"
_JSON_NAMES = {dict: "an object", list: "a list", str: "a string", int: "an integer", float: "a number"}

T = TypeVar("T")


class MismatchError(Exception):
    """A value is not what its place asks for; `where` is a path such as `result.trials[3].outcome`."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


# --- writing ---------------------------------------------------------------------------------------------------------


def to_data(document: Document) -> dict[str, object]:
    """The document as plain dicts, lists, strings and numbers, `schema_version` first."""
    data = cast("dict[str, object]", encode(document))
    return {"schema_version": data.pop("schema_version"), **data}


def to_json(document: Document) -> str:
    """The document as indented JSON, ASCII only, with a newline at its end."""
    return json.dumps(to_data(document), indent=2, allow_nan=False) + "\n"


def encode(value: object) -> object:
    """Turn dataclasses, enums, tuples and dicts, nested as they may be, into what `json.dumps` takes."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return encode(value.value)
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    message = f"{type(value).__name__} has no form in JSON"
    raise TypeError(message)


# --- reading ---------------------------------------------------------------------------------------------------------


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
    _check_version(data, source)
    try:
        return _decode_document(data)
    except MismatchError as error:
        place = f"`{error.where}` in {source}" if error.where else source
        raise UsageError(f"{place} {error.problem}", hint=_HINT) from None


def _decode_document(data: dict[str, object]) -> Document:
    if data.get("written_by") == "oomdoctor run":
        raise UsageError("this is the report of a run, not a result", hint="`oomdoctor diagnose` reads its folder")
    if "command" not in data:
        raise MismatchError("command", "is missing")
    command = cast("str", _decode_choice(tuple(_DOCUMENTS), data["command"], "command"))
    return decode(_DOCUMENTS[command], data, "")


def decode(kind: type[T], value: object, where: str) -> T:
    """Build `kind`, a dataclass, from plain data, checking each field against its type hint.

    Raises:
        MismatchError: A field is missing or does not have its type.
    """
    if not isinstance(value, dict):
        _refuse(where, value, "an object")
    arguments = {}
    for name, hint in _type_hints(cast("Hashable", kind)).items():
        path = f"{where}.{name}" if where else name
        if name not in value:
            if (kind, name) in ADDED_LATER:
                continue
            raise MismatchError(path, "is missing")
        arguments[name] = _decode(hint, value[name], path)
    return kind(**arguments)


def _decode(kind: object, value: object, where: str) -> object:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _decode_choice(arguments, value, where)
    if origin in (Union, UnionType):
        return None if value is None else _decode(_one_of(arguments, value), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            _refuse(where, value, "a list")
        return tuple(_decode(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            _refuse(where, value, "an object")
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    return _decode_class(cast("type", kind), value, where)


def _one_of(arguments: tuple[object, ...], value: object) -> object:
    """Which type of a union a value is read as; a whole number stays an integer where a float would do as well."""
    kinds = [argument for argument in arguments if argument is not NoneType]
    return int if int in kinds and type(value) is int else kinds[0]


def _decode_class(kind: type, value: object, where: str) -> object:
    if is_dataclass(kind):
        return decode(kind, value, where)
    if issubclass(kind, Enum):
        return kind(_decode_choice(tuple(member.value for member in kind), value, where))
    if kind is bool or kind is str:
        return (
            value if isinstance(value, kind) else _refuse(where, value, "true or false" if kind is bool else "a string")
        )
    if kind is int:
        return _decode_integer(value, where)
    if kind is float:
        return _decode_float(value, where)
    message = f"{kind} at {where} is a type that documents do not have"
    raise TypeError(message)


def _decode_choice(choices: tuple[object, ...], value: object, where: str) -> object:
    # `in` alone would take true for 1.
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    return _refuse(where, value, "one of " + ", ".join(f"`{choice}`" for choice in choices))


def _decode_integer(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse(where, value, "an integer")
    if not 0 <= value <= _MAXIMUM_INTEGER:
        _refuse(where, value, "between 0 and 2**63 - 1")
    return value


def _decode_float(value: object, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        _refuse(where, value, "a number")
    if not 0 <= value <= _MAXIMUM_INTEGER or not math.isfinite(value):
        _refuse(where, value, "a number of at least 0")
    return float(value)


def _refuse(where: str, value: object, wanted: str) -> NoReturn:
    if isinstance(value, dict | list):
        raise MismatchError(where, f"is {_JSON_NAMES[type(value)]}, not {wanted}")
    shown = json.dumps(value)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = shown[:_SHOWN_CHARACTERS] + "..."
    raise MismatchError(where, f"is `{shown}`, not {wanted}")


@cache
def _type_hints(kind: Hashable) -> dict[str, object]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(cast("Any", kind))}


# --- bytes to data ---------------------------------------------------------------------------------------------------


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(MAXIMUM_DOCUMENT_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"No such file: `{path}`", hint=_HINT) from None
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


def _check_version(data: dict[str, object], source: str) -> None:
    if "schema_version" not in data:
        raise UsageError(f"{source} is JSON, but not a document of oomdoctor: it has no `schema_version`", hint=_HINT)
    version = data["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        shown = json.dumps(version)[:_SHOWN_CHARACTERS]
        raise UsageError(
            f"{source} has `schema_version` {shown}, and this oomdoctor reads {SCHEMA_VERSION}",
            hint="Use the oomdoctor that wrote it, or run the command again" if type(version) is int else _HINT,
        )


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
