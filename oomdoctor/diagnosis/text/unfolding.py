"""Rows of a traceback, one printed line each, out of lines that were boxed, wrapped, escaped or joined into one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.diagnosis.text.traceback_lines import EXCEPTION, HEADED_FRAME, LISTED_FRAME

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST_LINE = 8192
_MOST_ROWS = 3000
_MOST_BARS = 6
_MOST_WRAPS = 3

_BAR = re.compile(r"^\s*[│┃║|] ?")
_BARS = "│┃║|"
_NOTHING_MORE = {"", ",", ", in"}
_LOCALS = re.compile(r"^(?P<outside>[\s│]{0,40})╭─{1,400} locals ─{1,400}")
_EDGES = re.compile(r"^[\s│]{0,40}╰?")
_ESCAPED_NEWLINE = re.compile(r"(?<!\\)\\n")
_BEGINS_WITHIN = re.compile(
    r'(?=(?<!\w)File "[^"]{1,1000}", line \d)'
    r"|(?=(?:Original )?Traceback \(most recent call last\))"
    r"|(?=During handling of the above exception)|(?=The above exception was the direct cause)"
)
_ERROR_WITHIN = re.compile(r"(?:^|\s)(?=(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Exit): )")
_MARKS_WITHIN = re.compile(r"\s[~^]{1,500}(?:\s{1,9}[~^]{1,500}){0,9}(?=\s|$)")
_BROKEN_HEAD = re.compile(r'^\s*File(?:\s*$|\s+"[^"]{0,1000}$|\s+"[^"]{1,1000}",?(?: ?line)?[ \d]{0,12},?(?: in)?\s*$)')
_BROKEN_PATH = re.compile(r"^\s{0,4}(?:/|~/|[A-Za-z]:[\\/])\S{8,1000}(?: in)?\s*$")


@dataclass(frozen=True, slots=True)
class Row:
    """One line as the printer of the traceback meant it.

    Attributes:
        at: Index of the line that it was read from.
        text: What it says, with its indentation.
        split: Whether its line holds other rows too.
    """

    at: int
    text: str
    split: bool = False


def unfold(lines: Sequence[str], first: int, last: int) -> list[Row]:
    """The rows of `lines[first]` to `lines[last]`, the last 3000 of them."""
    rows: list[Row] = []
    boxes = 0  # about the innermost box, while it is the one in which rich shows local variables: it holds any text
    for at in range(first, last + 1):
        line = lines[at][:LONGEST_LINE]
        title = _LOCALS.match(line)
        if title is not None:
            boxes = title["outside"].count("│") + 1
        elif boxes and _edges(line) < boxes:
            boxes = 0
        if not boxes:
            rows += _rows_of(at, line)
    return _unwrapped(rows[-_MOST_ROWS:])


def _edges(line: str) -> int:
    """How many boxes' left edges a line begins with."""
    found = _EDGES.match(line)
    return sum(found[0].count(edge) for edge in "│╰") if found else 0


def _rows_of(at: int, line: str) -> list[Row]:
    parts = _unescaped(_unboxed(line.rstrip().expandtabs(4)))
    rows = [piece for part in parts for piece in _unjoined(_unboxed(part))]
    return [Row(at, row, split=len(rows) > 1) for row in rows]


def _unboxed(text: str) -> str:
    if "└" in text or not _BAR.match(text):  # loguru hangs values below the code, on bars of their own
        return text
    for _ in range(_MOST_BARS):
        text, removed = _BAR.subn("", text)
        if not removed:
            break
    return text.rstrip(f" {_BARS}") if text[-1:] in _BARS else text


def _unescaped(text: str) -> list[str]:
    if "\\n" not in text or "File " not in text or "\\n  " not in text:
        return [text]
    plain = (part.replace('\\"', '"').replace("\\\\", "\\") for part in _ESCAPED_NEWLINE.split(text))
    return list(plain)


def _unjoined(text: str) -> list[str]:
    if 'File "' not in text:
        return [text]
    parts = [part.strip() for part in _BEGINS_WITHIN.split(text) if part.strip()]
    header = HEADED_FRAME.match(text)
    alone = header is None or text[header.end() :].strip() in _NOTHING_MORE
    if len(parts) <= 1 and alone:
        return [text]
    return [row for part in parts for row in _frame_code_error(part)]


def _frame_code_error(part: str) -> list[str]:
    header = HEADED_FRAME.match(part)
    if header is None:
        return [part]
    rest = part[header.end() :].strip()
    error = _ERROR_WITHIN.search(rest)
    marks = _MARKS_WITHIN.search(rest)
    code = rest[: min(found.start() for found in (error, marks, _END.search(rest)) if found)]
    message = rest[error.start() :] if error else rest[marks.end() :] if marks else ""
    rows = ["  " + header[0].strip(), "    " + code.strip(" │|"), message.strip(" │|")]
    return [row for row in rows if row.strip()]


_END = re.compile(r"\Z")


def _unwrapped(rows: list[Row]) -> list[Row]:
    whole: list[Row] = []
    position = 0
    while position < len(rows):
        row, taken = _joined(rows, position)
        whole.append(row)
        position += taken
    return whole


def _joined(rows: list[Row], position: int) -> tuple[Row, int]:
    """The row at `position` with the rows that a narrow terminal broke off it, and how many rows that took."""
    row = rows[position]
    if _BROKEN_HEAD.match(row.text):
        complete = HEADED_FRAME
    elif _BROKEN_PATH.match(row.text):
        complete = LISTED_FRAME
    else:
        return row, 1
    text = row.text
    for taken, piece in enumerate(rows[position + 1 : position + 1 + _MOST_WRAPS], start=2):
        if not piece.text.strip() or EXCEPTION.match(piece.text) or piece.text.lstrip().startswith("File "):
            break
        text = _glued(text, piece.text.strip())
        found = complete.match(text)
        if found and found["function"]:
            return Row(row.at, text, split=row.split), taken
    return row, 1


def _glued(text: str, piece: str) -> str:
    within_path = text.count('"') == 1 or _BROKEN_PATH.match(text) is not None
    within_number = text[-1:].isdigit() and piece[:1].isdigit()
    at_word = piece.startswith("in ") or text.endswith(" in")
    return text + piece if (within_path or within_number) and not at_word else f"{text} {piece}"
