"""One text out of several lines: messages that a terminal, a comment or a log has wrapped.

Two views are made. For reading numbers all white space goes, so that it does not matter where a line was broken, in
the middle of a word included. For showing, the lines are put together with spaces.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST_TEXT: Final = 2000  # characters of a message that are kept

_LONGEST_LINE: Final = 8192  # characters of a line that are looked at

# What stands around a quoted message: comment signs, boxes, bullets, Markdown.
_LEADING: Final = re.compile(r"(?:[\s│┃|>#*•]|//|--(?=\s)|-(?=\s)|;(?=\s)){0,40}")

_TYPOGRAPHY: Final = str.maketrans({
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2011": "-", "\u00a0": " ", "\u202f": " ",
    "\u200b": None, "\u200c": None, "\u200d": None, "\u2060": None, "\ufeff": None, "`": None, "\x00": None,
    "\uff08": "(", "\uff09": ")", "\uff1a": ": ", "\uff1b": ";", "\uff0c": ",",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Squeezed:
    """Lines in lower case without white space, as one text.

    Attributes:
        text: The text.
        first: Index of the first line.
        starts: Offset in the text at which each line begins.
    """

    text: str
    first: int
    starts: tuple[int, ...]

    def line_of(self, offset: int) -> int:
        """Return the index of the line that a character of the text comes from."""
        return self.first + bisect_right(self.starts, offset) - 1


def bare(line: str) -> str:
    """Take off what a quotation puts around a line, and replace typographic signs by plain ones."""
    plain = line[:_LONGEST_LINE].translate(_TYPOGRAPHY)
    leading = _LEADING.match(plain)
    start = leading.end() if leading is not None else 0
    return plain[start:].rstrip(" \t\r\n\\|│┃")


def squeeze(lines: Sequence[str], first: int, stop: int) -> Squeezed:
    """Put lines `first` to `stop`, exclusive, together without white space."""
    parts, starts, offset = [], [], 0
    for line in lines[first:stop]:
        part = "".join(bare(line).lower().split())
        starts.append(offset)
        parts.append(part)
        offset += len(part)
    return Squeezed(text="".join(parts), first=first, starts=tuple(starts))


def join(lines: Sequence[str]) -> str:
    """Put lines together with single spaces, cut after `LONGEST_TEXT` characters."""
    text = " ".join(word for line in lines for word in bare(line).split())
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
