"""What one line of a traceback is, as Python, IPython, rich and pytest print it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FUNCTION = r"(?P<function><[^<>]{1,80}>|[\w.$]{1,200})"
_PATH = r"(?P<path>.{1,1000}?)"

HEADED_FRAME = re.compile(
    rf'^\s*(?:[>#*]{{1,3}}\s*)?File (?:"|“|&quot;){_PATH}(?:"|”|&quot;), line (?P<line>\d{{1,9}})'
    rf"(?:,? in {_FUNCTION}|(?=\s|,|$))"
)
"""`  File "train.py", line 12, in main`; a function is missing where Python knew none."""

LISTED_FRAME = re.compile(
    rf"^\s{{0,4}}(?P<path>[^\s\[].{{0,1000}}?\.pyx?|<[^<>]{{1,100}}>):(?P<line>\d{{1,9}}) in {_FUNCTION}\s*$"
)
"""rich: `/home/me/train.py:12 in main`, code below."""

_IPYTHON_FRAME = re.compile(rf"^File {_PATH}:(?P<line>\d{{1,9}})(?:,? in {_FUNCTION}|$)")
"""IPython 8: `File ~/train.py:12, in main(config)`, code below."""

_OLD_IPYTHON_FRAME = re.compile(
    rf"^(?P<path>\S.{{0,1000}}?\.pyx?|<ipython-input[^<>]{{1,100}}>) in (?P<line>){_FUNCTION}\("
)
"""IPython 7 and Colab: `/home/me/train.py in main(config)`; the number of the line is at the arrow."""

_CELL = re.compile(
    rf"^(?P<path>(?:Cell In|Input In|In) ?\[\d{{1,6}}\])(?:, line (?P<line>\d{{1,9}}))?(?:, in {_FUNCTION})?(?=\(|\s*$)"
)
"""IPython 8: `Cell In[3], line 5`; in between it was `Input In [3], in <cell line: 5>()`."""

_PYTEST_FRAME = re.compile(
    rf"^(?P<path>\S.{{0,1000}}?\.py):(?P<line>\d{{1,9}}): ?(?:in {_FUNCTION})?\s*$",
)

_LISTINGS = (LISTED_FRAME, _IPYTHON_FRAME, _OLD_IPYTHON_FRAME, _CELL, _PYTEST_FRAME)

_ARROW = re.compile(r"^\s*(?:-{1,8}>|❱|>)\s{0,8}(?P<line>\d{1,9})(?:\s|[│|]|$)(?P<code>.*)$")
_LISTED_LINE = re.compile(r"^\s*(?P<line>\d{1,9})(?:\s|[│|]|$)(?P<code>.*)$")
_CELL_LINE = re.compile(r"^<cell line: (\d{1,9})>$")

HEADER = re.compile(r"Traceback[^()]{0,40}\((?:most recent call last|innermost last)\)")
DUMP_HEADER = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-fA-F]{1,16}\b.{0,80}\(most recent call first\)")
CHAIN = re.compile(r"During handling of the above exception|The above exception was the direct cause")
USER_CODE = re.compile(r"from user code:?\s*$")

EXCEPTION = re.compile(
    r"^\s*(?:E\s{1,8})?(?:[A-Za-z_]\w{0,60}\.){0,8}_?[A-Z]\w{0,80}?"
    r"(?:Error|Exception|Exit|Interrupt|Warning|Group|Fault|OutOfResources|Timeout)(?:\(\w{1,80}\))?\s*(?::|$)"
)
"""The line of an error's class and message."""

_IDLE = re.compile(
    r"^(?:[\s~^]+"
    r"|[\s.…]+|\[\.\.\.\]|\[?\.\.\. .{0,80}\]"
    r"|\.\.\.<\d{1,9} lines?>\.\.\."
    r"|\[Previous line repeated .{0,40}\]"
    r"|[\s+\-─━═╭╮╰╯┏┓┗┛┌┐└┘├┤_]+(?:\d{1,6} ?[\s+\-─━═]*)?"
    r"|frame #\d{1,4}: .*"
    r"|.{0,400}└.*)$"
)
"""Marks below the code, elisions, rules and C++ frames: nothing that a frame is made of, and no end of one either."""


@dataclass(slots=True)
class Frame:
    """A frame while its lines are read.

    Attributes:
        path: As printed.
        line: From 1; None where it is still to come.
        function: As printed, without arguments.
        indent: Columns before it.
        listing: Whether code around the line is printed below it, rather than the line alone.
        code: The line's text.
    """

    path: str
    line: int | None
    function: str | None
    indent: int
    listing: bool
    code: str | None = None


def read_frame(text: str) -> Frame | None:
    """The frame that a line announces, if it does."""
    found = HEADED_FRAME.match(text)
    if found is not None:
        return _frame(found, indent(text), listing=False)
    if ":" not in text and " in " not in text and "[" not in text:
        return None
    for pattern in _LISTINGS:
        found = pattern.match(text)
        if found is not None:
            return _frame(found, indent(text), listing=True)
    return None


def _frame(found: re.Match[str], columns: int, *, listing: bool) -> Frame:
    function = found["function"]
    number = found["line"]
    cell = _CELL_LINE.match(function or "")
    if not number and cell is not None:
        number = cell[1]  # where the statement of the cell begins
    return Frame(found["path"].strip(), int(number) if number else None, function, columns, listing)


def read_arrow(text: str, expected: int | None) -> tuple[int, str] | None:
    """The number and the code of a line that an arrow points at, as rich's and IPython's listings have it.

    Args:
        text: A line of a listing.
        expected: The number that the frame's head gave; a line of that number counts without an arrow too.
    """
    found = _ARROW.match(text) or _LISTED_LINE.match(text)
    if found is not None and found.re is _LISTED_LINE and int(found["line"]) != expected:
        return None
    return (int(found["line"]), found["code"].strip(" │|")) if found else None


def is_idle(text: str) -> bool:
    """Whether a line neither belongs to a frame nor ends a traceback."""
    return _IDLE.match(text) is not None


def indent(text: str) -> int:
    """Columns before a line's text."""
    return len(text) - len(text.lstrip())
