"""Text that nobody vouches for, shown so that a reader sees what is in it.

Where a report is about source code, a character that cannot be seen is worth seeing: it is written as Python's literals
write it rather than left out. What comes out of here moves no cursor, turns no line's direction, and breaks no line.
"""

from __future__ import annotations

import unicodedata
from typing import Final

LONGEST_TEXT: Final = 1000
"""Characters after which a text is cut."""

_SPACES: Final = "Zs"
_WIDE: Final = frozenset("WF")
_COMBINING: Final = frozenset(("Mn", "Me"))
_LAST_OF_LATIN_1, _LAST_OF_PLANE_0 = 0xFF, 0xFFFF


def visible(text: str, longest: int = LONGEST_TEXT) -> str:
    """One line in which every character can be seen, cut where it is longer than `longest` characters."""
    cut = text if len(text) <= longest else f"{text[:longest]}..."
    return cut if cut.isprintable() else "".join(map(shown, cut))


def shown(character: str, *, ascii_only: bool = False) -> str:
    """A character, or its escape where it cannot be seen; a space of any kind is a space.

    Args:
        character: One character.
        ascii_only: Whether what is no ASCII is escaped too, for a stream that cannot encode it.
    """
    if character.isprintable() or unicodedata.category(character) == _SPACES:
        return character if not ascii_only or character.isascii() else escape(character)
    return escape(character)


def escape(character: str) -> str:
    """A character as Python's literals write it: escape is `x1b` after a backslash."""
    code = ord(character)
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    if code <= _LAST_OF_LATIN_1:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= _LAST_OF_PLANE_0 else f"\\U{code:08x}"


def columns(text: str) -> int:
    """How many columns of a terminal a text takes, which holds what `shown` gave."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in _COMBINING:
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1
