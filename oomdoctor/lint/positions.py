"""Lines and columns as `ast` counts them, as people count them, and as offsets into a text."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oomdoctor.lint.rule import Edit

LINE_END: Final = re.compile(r"\r\n|\n|\r")
"""What ends a line for Python; `str.splitlines` knows more, such as a form feed, and would count lines wrongly."""


_LONE_RETURN: Final = re.compile(r"\r(?!\n)")


def with_line_feeds(text: str) -> str:
    """The text with a line feed for each carriage return that ends a line alone; no character moves."""
    return _LONE_RETURN.sub("\n", text) if "\r" in text else text


class Lines:
    """A text by lines.

    Args:
        text: As it is parsed.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0]
        self._ends = []
        for end in LINE_END.finditer(text):
            self._ends.append(end.start())
            self._starts.append(end.end())
        self._ends.append(len(text))

    def __len__(self) -> int:
        """How many there are; what follows the last line end is one only if it is not empty."""
        return len(self._starts) - (self._starts[-1] == len(self.text))

    def line(self, number: int) -> str:
        """The text of a line, from 1, without its end; empty where there is no such line."""
        if not 1 <= number <= len(self._starts):
            return ""
        return self.text[self._starts[number - 1] : self._ends[number - 1]]

    def start(self, number: int) -> int:
        """Offset of a line's first character; the text's length where there is no such line."""
        return self._starts[number - 1] if number <= len(self._starts) else len(self.text)

    def column(self, number: int, utf8: int) -> int:
        """Column in characters, from 0, of a column in UTF-8 bytes."""
        line = self.line(number)
        return utf8 if line.isascii() else len(line.encode("utf-8", "surrogatepass")[:utf8].decode("utf-8", "ignore"))

    def offset(self, position: tuple[int, int]) -> int:
        """Offset of a line from 1 and a column in UTF-8 bytes, both as `ast` counts."""
        line, utf8 = position
        return min(self.start(line) + self.column(line, utf8), len(self.text))

    def number(self, offset: int) -> int:
        """The line that an offset lies in."""
        return bisect_right(self._starts, offset)


def spans(lines: Lines, edits: Iterable[Edit]) -> list[tuple[int, int, str]]:
    """Edits as (start, end, text) with offsets into the text, in order; line ends are those that the text has.

    Raises:
        ValueError: Two of them overlap.
    """
    newline = line_end(lines.text)
    found = sorted(
        (lines.offset(edit.start), lines.offset(edit.end), LINE_END.sub(newline, edit.text)) for edit in set(edits)
    )
    if any(before[1] > after[0] for before, after in pairwise(found)):
        raise ValueError("edits overlap")
    return found


def replaced(text: str, changes: Iterable[tuple[int, int, str]]) -> str:
    """The text with what lies between each two offsets replaced; changes are in order and do not overlap."""
    parts, done = [], 0
    for start, end, new in changes:
        parts += [text[done:start], new]
        done = end
    return "".join([*parts, text[done:]])


def line_end(text: str) -> str:
    """What ends the first line."""
    found = LINE_END.search(text)
    return found[0] if found else "\n"
