"""Words, numbers and text from strangers as plain text: shortened, cleaned, every character visible.

Where a report is about source code, a character that cannot be seen is worth seeing: it is written as Python's literals
write it rather than left out. What comes out of here moves no cursor, turns no line's direction, and breaks no line.

All text here is plain: no colour, no markup.
"""

from __future__ import annotations

import re
import unicodedata
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.results import Category
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


LONGEST_VISIBLE: Final = 1000
"""Characters after which a text is cut."""

_SPACES: Final = "Zs"
_WIDE: Final = frozenset("WF")
_COMBINING: Final = frozenset(("Mn", "Me"))
_LAST_OF_LATIN_1, _LAST_OF_PLANE_0 = 0xFF, 0xFFFF


def visible(text: str, longest: int = LONGEST_VISIBLE) -> str:
    """Return one line in which every character can be seen, cut where it is longer than `longest` characters."""
    cut = text if len(text) <= longest else f"{text[:longest]}..."
    return cut if cut.isprintable() else "".join(map(shown, cut))


def shown(character: str, *, ascii_only: bool = False) -> str:
    """Return a character, or its escape where it cannot be seen; a space of any kind is a space.

    Args:
        character: One character.
        ascii_only: Whether what is no ASCII is escaped too, for a stream that cannot encode it.
    """
    if character.isprintable() or unicodedata.category(character) == _SPACES:
        return character if not ascii_only or character.isascii() else escape(character)
    return escape(character)


def escape(character: str) -> str:
    """Return a character as Python's literals write it: escape is `x1b` after a backslash."""
    code = ord(character)
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    if code <= _LAST_OF_LATIN_1:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= _LAST_OF_PLANE_0 else f"\\U{code:08x}"


def columns(text: str) -> int:
    """Return the columns of a terminal that a text takes, which holds what `shown` gave."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in _COMBINING:
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1


CATEGORY_WORDS: Final[Mapping[Category, str]] = MappingProxyType(
    {category: category.value.replace("_", " ") for category in Category}
)
"""Each category as a cell of a table."""

LONGEST_TEXT = 10_000
"""Characters after which a text is cut, so that no line of a log makes a report endless."""

_LONGEST_LINE = 1000

_ESCAPE_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")


def clean(text: str) -> str:
    """Return one line of what a person can see: no terminal control sequences, white space runs made single spaces."""
    if not text.isprintable():  # most text is, and has nothing to be taken out
        text = "".join(map(_visible, _ESCAPE_SEQUENCE.sub("", text)))
    return " ".join(text.split())


def first_line(text: str) -> str:
    """Return the first line that says anything, cleaned and cut where it is endless; empty where none does."""
    return shortened(next((line for line in map(clean, text.splitlines()) if line), ""))


def shortened(text: str, longest: int = _LONGEST_LINE) -> str:
    """Return one cleaned line, cut where it is longer than `longest` characters."""
    # Only so much of an endless text is cleaned.
    line = clean(text[: longest + LONGEST_TEXT])
    return line if len(line) <= longest else f"{line[:longest]}..."


def capitalised(text: str) -> str:
    """Return cleaned text that begins with a capital letter where it begins with a word."""
    text = shortened(text, LONGEST_TEXT)
    # A path or an identifier keeps its letters.
    return f"{text[:1].upper()}{text[1:]}" if text.partition(" ")[0].isalpha() else text


def sentence(text: str) -> str:
    """Return cleaned text that begins as a sentence does and ends with a mark."""
    text = capitalised(text)
    ends = "" if text.endswith((".", "!", "?", ":")) or not text else "."
    return f"{text}{ends}"


def _visible(character: str) -> str:
    category = unicodedata.category(character)
    if category == "Cs":
        # Half of a surrogate pair, which no encoding can write.
        return "\ufffd"
    return "" if category in ("Cc", "Cf") and not character.isspace() else character


def percent(fraction: float) -> str:
    """Return a fraction as a percentage, such as `5%` or `2.5%`."""
    return f"{fraction * 100:.4g}%"


def share(part_bytes: int, whole_bytes: int) -> str:
    """Return a part as a whole percentage, such as `97%`; empty where there is no whole."""
    return f"{part_bytes / whole_bytes:.0%}" if whole_bytes else ""


def optional_size(size_bytes: int | None) -> str:
    """Return a size, or `-` where it is not known."""
    return "-" if size_bytes is None else format_size(size_bytes)


def count(number: int, one: str, several: str | None = None) -> str:
    """Return a number and its noun, such as `1 block` and `12 blocks`."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def listed(parts: Iterable[str]) -> str:
    """Return parts as a sentence lists them: `a`, `a and b`, `a, b and c`."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
