"""Recognise out-of-memory errors by the table `oom/errors.toml`, in the user's processes and in our own.

Nothing is read before the first error is asked about. Types go by name: torch is not imported.
"""

# ruff: noqa: PTH100, PTH120, PTH123 - pathlib takes longer to import than this module

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

PATH = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + "/oom/errors.toml"

_LONGEST_TEXT = 1 << 16  # characters that are looked at, from each end
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_UPPER = re.compile(r"\\.|[A-Z]")  # what is escaped keeps its case: `\W` is not `\w`

# The few forms that the table is written in.
_STRING = r"'[^'\n]*'|\"(?:[^\"\\\n]|\\.)*\""
_ITEM = re.compile(rf"{_STRING}|\#[^\n]*")
_COMMENT = r"(?:\s|\#[^\n]*)*"
_LIST = rf"\[{_COMMENT}(?:(?:{_STRING})\s*,?{_COMMENT})*\]"
_ENTRY = re.compile(rf"^\[\[(?P<table>\w+)\]\]|^(?P<key>\w+) = (?P<value>true|false|{_STRING}|{_LIST})", re.MULTILINE)


Meaning = Literal["oom", "host_oom", "limit", "other"]
Device = Literal["cuda", "hip", "xpu", "mps", "hpu", "npu", "xla", "cpu", "any"]


class Row(NamedTuple):
    """One way in which an error reads, and what it means; `errors.toml` describes each field.

    Attributes:
        patterns: Regular expressions, of which the text has to contain a match of every one; upper and lower case are
            alike. The table's `patterns` are one of them, and each of `and_patterns` another.
        types: Qualified names of exception types, builtins without a module; the error has to be an instance of one.
    """

    id: str
    means: Meaning
    patterns: tuple[str, ...]
    types: tuple[str, ...]
    device: Device
    example: str
    reason: str
    source: str
    needs_pressure: bool = False
    not_when_ample: bool = False
    oom_if: str = ""
    numbers: tuple[str, ...] = ()

    def match(self, text: str) -> re.Match[str] | None:
        """Find the first pattern in a text in which all of them are; the text is in lower case."""
        found = [search(pattern, text) for pattern in self.patterns]
        return found[0] if found and all(found) else None

    def fits(self, type_names: AbstractSet[str], text: str) -> bool:
        """Return whether the row is about an error of these types with this text, which is in lower case."""
        return not type_names.isdisjoint(self.types) and (not self.patterns or self.match(text) is not None)

    def says_oom(self, text: str) -> bool:
        """Return whether a text in lower case tells that memory ran out, the device's or the host's."""
        if self.means not in {"oom", "host_oom"}:
            return False
        return not self.needs_pressure or (bool(self.oom_if) and search(self.oom_if, text) is not None)


class Notice(NamedTuple):
    """Lines of a log by which a system says that it ended a process for lack of the host's memory.

    Attributes:
        id: Stable name.
        pattern: Regular expression, upper and lower case alike.
    """

    id: str
    pattern: str


class Table(NamedTuple):
    """The whole table.

    Attributes:
        rows: In order of precedence: the first that fits an error is the one that counts.
        notices: In order of precedence.
        carriers: Types whose text is evidence, whatever it says.
        other_process_types: Types that tell that another process failed.
        allocator_types: What PyTorch's allocator raises.
    """

    rows: tuple[Row, ...]
    notices: tuple[Notice, ...]
    carriers: tuple[str, ...]
    other_process_types: tuple[str, ...]
    allocator_types: tuple[str, ...]

    def named(self, name: str) -> Row | None:
        """Return the row with an id; None where there is none."""
        return next((row for row in self.rows if row.id == name), None)


@lru_cache(maxsize=None)
def table() -> Table:
    """Read the table, once."""
    with open(PATH, encoding="utf-8") as file:
        document = parse_plainly(file.read())
    carriers, others, allocators = (
        tuple(document[name]) for name in ("carriers", "other_process_types", "allocator_types")
    )
    rows = tuple(_row(entry, carriers) for entry in document["error"])
    notices = tuple(Notice(entry["id"], "|".join(entry["patterns"])) for entry in document["notice"])
    return Table(rows, notices, carriers, others, allocators)


def find_row(type_names: AbstractSet[str], text: str, rows: Iterable[Row]) -> Row | None:
    """Return the first row that fits an error of these types with this text, whatever its letters' case."""
    lower_case = lowered(text)
    return next((row for row in rows if row.fits(type_names, lower_case)), None)


def find_oom(error: BaseException | None) -> BaseException | None:
    """Find what says that memory ran out: the error, one that it was raised from or while handling, or a member of it.

    An interrupt is none, whatever it interrupted, and neither is `sys.exit()` with success, or an error that only tells
    that another process failed.
    """
    if error is None or isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return None
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return None
    return next((link for link in walk_chain(error) if _says_oom(link)), None)


def is_from_allocator(error: BaseException) -> bool:
    """Return whether PyTorch's allocator raised an error, and so counted it too."""
    return not type_names(type(error)).isdisjoint(table().allocator_types)


def walk_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and everything that it was raised from or while handling, each once, outermost first."""
    waiting, seen = [error], {id(error)}
    while waiting:
        link = waiting.pop()
        yield link
        for related in reversed(_related(link)):
            if id(related) not in seen:
                seen.add(id(related))
                waiting.append(related)


def type_names(error_type: type[BaseException]) -> frozenset[str]:
    """Name every class that an error is an instance of: `RuntimeError`, `torch.OutOfMemoryError`."""
    return frozenset(qualified_name(parent) for parent in error_type.__mro__)


def qualified_name(kind: type) -> str:
    """Name a class with its module; those of Python itself have none."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def error_text(error: BaseException) -> str:
    """Print an error's message; of a very long one both ends. One that fails to print has none."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a program's own `__str__` may raise anything
        return ""
    return text if len(text) <= 2 * _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}\n{text[-_LONGEST_TEXT:]}"


def lowered(text: str) -> str:
    """Bring a text into lower case, every character at its place; several times faster than `re.IGNORECASE`."""
    return text.translate(_LOWER)


def search(pattern: str, text: str) -> re.Match[str] | None:
    """Find a pattern of the table in a text that is in lower case; `^` is the beginning of a line."""
    return _compile(pattern).search(text)


@lru_cache(maxsize=None)
def _compile(pattern: str) -> re.Pattern[str]:
    in_lower_case = _UPPER.sub(lambda match: match[0] if match[0][0] == "\\" else match[0].lower(), pattern)
    return re.compile(in_lower_case, re.MULTILINE)


def _says_oom(link: BaseException) -> bool:
    names, text = type_names(type(link)), error_text(link)
    if not names.isdisjoint(table().other_process_types):
        return False
    row = find_row(names, text, table().rows)
    return row is not None and row.says_oom(lowered(text))


def _related(link: BaseException) -> list[BaseException]:
    members = getattr(link, "exceptions", ())  # of a group, which Pythons before 3.11 have from a package
    related = [member for member in members if isinstance(member, BaseException)] if isinstance(members, tuple) else []
    context = None if link.__suppress_context__ else link.__context__
    return [*related, *(other for other in (link.__cause__, context) if other is not None)]


def _row(entry: dict[str, Any], carriers: tuple[str, ...]) -> Row:
    """Make a row of what the file says: alternatives become one expression, `*` the types that it stands for."""
    given = dict(entry)
    patterns = [given.pop(key) for key in ("patterns", "and_patterns") if key in given]
    types = [name for listed in given.pop("types", ("*",)) for name in (carriers if listed == "*" else (listed,))]
    numbers = tuple(given.pop("numbers", ()))
    return Row(patterns=tuple(map("|".join, patterns)), types=tuple(types), numbers=numbers, **given)


def parse_plainly(text: str) -> dict[str, Any]:
    """Read the part of TOML that the table is written in; Pythons before 3.11 have no `tomllib`."""
    document: dict[str, Any] = {}
    place = document
    for entry in _ENTRY.finditer(text):
        if entry["key"] is None:
            place = {}
            document.setdefault(entry["table"], []).append(place)
        else:
            place[entry["key"]] = _value(entry["value"])
    return document


def _value(text: str) -> Any:  # noqa: ANN401 - whatever TOML has
    if text[0] == "[":
        return [_value(item) for item in _ITEM.findall(text) if item[0] != "#"]
    if text[0] == "'":
        return text[1:-1]
    import json  # noqa: PLC0415

    return json.loads(text)
