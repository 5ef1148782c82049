"""Search for a row's patterns, whatever the case of the letters.

Text and patterns are brought into lower case, which is several times faster than to have `re` ignore the case.
"""

from __future__ import annotations

import re
from functools import cache
from string import ascii_lowercase, ascii_uppercase
from typing import Final

_LOWER: Final = str.maketrans(ascii_uppercase, ascii_lowercase)
_UPPER: Final = re.compile(r"\\.|[A-Z]")  # what is escaped keeps its case: `\W` is not `\w`


def lowered(text: str) -> str:
    """The text in lower case; every character keeps its place."""
    return text.translate(_LOWER)


def search(pattern: str, text: str) -> re.Match[str] | None:
    """Find a pattern of the table in a text that is in lower case; `^` is the beginning of a line."""
    return _compile(pattern).search(text)


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    in_lower_case = _UPPER.sub(lambda match: match[0] if match[0][0] == "\\" else match[0].lower(), pattern)
    return re.compile(in_lower_case, re.MULTILINE)
