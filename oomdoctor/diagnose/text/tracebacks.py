"""Tracebacks as Python, IPython, rich and pytest print them, boxed, wrapped or escaped."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oomdoctor.diagnose.tables import Patterns

if TYPE_CHECKING:
    from collections.abc import Sequence


_PATTERNS = Patterns(__name__)
_FUNCTION = r"(?P<function><[^<>]{1,80}>|[\w.$]{1,200})"
_PATH = r"(?P<path>.{1,1000}?)"

HEADED_FRAME = _PATTERNS("headed_frame")
"""`  File "train.py", line 12, in main`; a function is missing where Python knew none."""

LISTED_FRAME = _PATTERNS("listed_frame")
"""rich: `/home/me/train.py:12 in main`, code below."""

_IPYTHON_FRAME = re.compile(rf"^File {_PATH}:(?P<line>\d{{1,9}})(?:,? in {_FUNCTION}|$)")
"""IPython 8: `File ~/train.py:12, in main(config)`, code below."""

_OLD_IPYTHON_FRAME = _PATTERNS("old_ipython_frame")
"""IPython 7 and Colab: `/home/me/train.py in main(config)`; the number of the line is at the arrow."""

_CELL = _PATTERNS("cell")
"""IPython 8: `Cell In[3], line 5`; in between it was `Input In [3], in <cell line: 5>()`."""

_PYTEST_FRAME = _PATTERNS("pytest_frame")

_LISTINGS = (LISTED_FRAME, _IPYTHON_FRAME, _OLD_IPYTHON_FRAME, _CELL, _PYTEST_FRAME)

_ARROW = re.compile(r"^\s*(?:-{1,8}>|❱|>)\s{0,8}(?P<line>\d{1,9})(?:\s|[│|]|$)(?P<code>.*)$")
_LISTED_LINE = re.compile(r"^\s*(?P<line>\d{1,9})(?:\s|[│|]|$)(?P<code>.*)$")
_CELL_LINE = re.compile(r"^<cell line: (\d{1,9})>$")

HEADER = re.compile(r"Traceback[^()]{0,40}\((?:most recent call last|innermost last)\)")
DUMP_HEADER = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-fA-F]{1,16}\b.{0,80}\(most recent call first\)")
CHAIN = re.compile(r"During handling of the above exception|The above exception was the direct cause")
USER_CODE = re.compile(r"from user code:?\s*$")

EXCEPTION = _PATTERNS("exception")
"""The line of an error's class and message."""

_IDLE = _PATTERNS("idle")
"""Marks below the code, elisions, rules and C++ frames: nothing that a frame is made of, and no end of one either."""


@dataclass(slots=True)
class PrintedFrame:
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


def read_frame(text: str) -> PrintedFrame | None:
    """Return the frame that a line announces; None where it announces none."""
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


def _frame(found: re.Match[str], columns: int, *, listing: bool) -> PrintedFrame:
    function = found["function"]
    number = found["line"]
    cell = _CELL_LINE.match(function or "")
    if not number and cell is not None:
        number = cell[1]  # where the statement of the cell begins
    return PrintedFrame(found["path"].strip(), int(number) if number else None, function, columns, listing)


def read_arrow(text: str, expected: int | None) -> tuple[int, str] | None:
    """Return the number and the code of a line that an arrow points at, as rich's and IPython's listings have it.

    Args:
        text: A line of a listing.
        expected: The number that the frame's head gave; a line of that number counts without an arrow too.
    """
    found = _ARROW.match(text) or _LISTED_LINE.match(text)
    if found is not None and found.re is _LISTED_LINE and int(found["line"]) != expected:
        return None
    return (int(found["line"]), found["code"].strip(" │|")) if found else None


def is_idle(text: str) -> bool:
    """Return whether a line neither belongs to a frame nor ends a traceback."""
    return _IDLE.match(text) is not None


def indent(text: str) -> int:
    """Columns before a line's text."""
    return len(text) - len(text.lstrip())


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
_BEGINS_WITHIN = _PATTERNS("begins_within")
_ERROR_WITHIN = re.compile(r"(?:^|\s)(?=(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Exit): )")
_MARKS_WITHIN = re.compile(r"\s[~^]{1,500}(?:\s{1,9}[~^]{1,500}){0,9}(?=\s|$)")
_BROKEN_HEAD = re.compile(r'^\s*File(?:\s*$|\s+"[^"]{0,1000}$|\s+"[^"]{1,1000}",?(?: ?line)?[ \d]{0,12},?(?: in)?\s*$)')
_BROKEN_PATH = re.compile(r"^\s{0,4}(?:/|~/|[A-Za-z]:[\\/])\S{8,1000}(?: in)?\s*$")


@dataclass(frozen=True, slots=True)
class TracebackRow:
    """One line as the printer of the traceback meant it.

    Attributes:
        at: Index of the line that it was read from.
        text: What it says, with its indentation.
        split: Whether its line holds other rows too.
    """

    at: int
    text: str
    split: bool = False


def unwrap(lines: Sequence[str], first: int, last: int) -> list[TracebackRow]:
    """The rows of `lines[first]` to `lines[last]`, the last 3000 of them."""
    rows: list[TracebackRow] = []
    boxes = 0  # about the innermost box, while it is the one in which rich shows local variables: it holds any text
    for at in range(first, last + 1):
        line = lines[at][:LONGEST_LINE]
        title = _LOCALS.match(line)
        if title is not None:
            boxes = title["outside"].count("│") + 1
        edges = _EDGES.match(line) if boxes else None  # boxes' left edges that the line begins with
        if title is None and edges is not None and sum(edges[0].count(edge) for edge in "│╰") < boxes:
            boxes = 0
        if not boxes:
            parts = _unescaped(_unboxed(line.rstrip().expandtabs(4)))
            found = [piece for part in parts for piece in _unjoined(_unboxed(part))]
            rows += [TracebackRow(at, row, split=len(found) > 1) for row in found]
    rows = rows[-_MOST_ROWS:]
    whole: list[TracebackRow] = []
    position = 0
    while position < len(rows):
        row, taken = _joined(rows, position)
        whole.append(row)
        position += taken
    return whole


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
    return [part.replace('\\"', '"').replace("\\\\", "\\") for part in _ESCAPED_NEWLINE.split(text)]


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


def _joined(rows: list[TracebackRow], position: int) -> tuple[TracebackRow, int]:
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
            return TracebackRow(row.at, text, split=row.split), taken
    return row, 1


def _glued(text: str, piece: str) -> str:
    within_path = text.count('"') == 1 or _BROKEN_PATH.match(text) is not None
    within_number = text[-1:].isdigit() and piece[:1].isdigit()
    at_word = piece.startswith("in ") or text.endswith(" in")
    return text + piece if (within_path or within_number) and not at_word else f"{text} {piece}"


_MOST_BETWEEN_LISTINGS = 80
_MOST_BETWEEN_FRAMES = 5
_SEVERAL = 2


@dataclass(slots=True, eq=False)
class Traceback:
    """One traceback.

    Attributes:
        frames: In the order in which they were printed.
        error_at: Index of the line that ended it; of its last frame where nothing did.
        error: That line.
        headers: How many tracebacks began in it; more than one where several processes wrote at once.
        errors: How many of them have ended.
        outer: The traceback that passed this one on from a worker.
        cause: The traceback that was printed before it as its cause.
        newest_first: Whether the innermost frame is printed first.
        running: Whether it is of the thread that died, in a dump of all threads.
    """

    frames: list[PrintedFrame] = field(default_factory=list)
    error_at: int = -1
    error: str = ""
    headers: int = 0
    errors: int = 0
    outer: Traceback | None = None
    cause: Traceback | None = None
    newest_first: bool = False
    running: bool = False

    @property
    def interleaved(self) -> bool:
        """Return whether lines of several processes are mixed."""
        return self.headers >= _SEVERAL


def split_tracebacks(rows: Sequence[TracebackRow], message_at: int) -> list[Traceback]:
    """All tracebacks that have frames.

    Args:
        rows: What was printed.
        message_at: Index of the line that holds the error's message: whatever it looks like, it is no code.
    """
    reading = _Reading(message_at)
    for row in rows:
        reading.take(row)
    reading.finish()
    return reading.done


class _Reading:
    def __init__(self, message_at: int) -> None:
        self.done: list[Traceback] = []
        self._message_at = message_at
        self._open: Traceback | None = None
        self._cause: Traceback | None = None
        self._last_at = -1
        self._idle_rows = 0

    def take(self, row: TracebackRow) -> None:
        text = row.text.strip()
        if not text:
            return
        frame = read_frame(row.text)
        if frame is not None:
            self._take_frame(frame, row.at)
        elif CHAIN.search(text):
            self.finish()
            self._cause = self.done[-1] if self.done else None
        elif HEADER.search(text) or DUMP_HEADER.match(text):
            self._take_header(text)
        elif self._open is not None and self._open.frames:
            self._take_text(self._open, row)

    def finish(self) -> None:
        if self._open is not None:
            self._close(self._open, self._last_at, "")

    def _take_header(self, text: str) -> None:
        dump = DUMP_HEADER.match(text) is not None
        if self._open is not None and not dump:
            self._open.headers += 1  # the first has not ended: two processes write at once
            return
        self.finish()
        self._open = Traceback(headers=1, newest_first=dump, running=text.startswith("Current"))
        self._open.outer = self.done[-1] if text.startswith("Original") and self.done else None
        self._open.cause, self._cause = self._cause, None

    def _take_frame(self, frame: PrintedFrame, at: int) -> None:
        if self._open is None:
            self._open = self._resumed(at)
        known = (frame.path, frame.line, frame.function)
        if not self._open.interleaved or all((it.path, it.line, it.function) != known for it in self._open.frames):
            self._open.frames.append(frame)
        self._last_at = at
        self._idle_rows = 0

    def _resumed(self, at: int) -> Traceback:
        """The traceback of a frame that no header announces."""
        last = self.done[-1] if self.done else None
        if self._cause is None and last is not None and at - last.error_at <= _MOST_BETWEEN_FRAMES:
            if not EXCEPTION.match(last.error):
                return self.done.pop()  # a progress bar or another thread's line came in between
            if last.headers > last.errors:
                return Traceback(list(last.frames), headers=last.headers, errors=last.errors)
        cause, self._cause = self._cause, None
        return Traceback(cause=cause)

    def _take_text(self, traceback: Traceback, row: TracebackRow) -> None:
        frame = traceback.frames[-1]
        # a frame's code in a text that lost its indentation
        follows = frame.code is None and row.at <= self._last_at + 1 and not EXCEPTION.match(row.text)
        if row.at == self._message_at and not row.split:
            self._close(traceback, row.at, row.text)
        elif frame.listing:
            self._take_listing(traceback, frame, row)
        elif is_idle(row.text):
            return
        elif indent(row.text) > frame.indent or (frame.indent == 0 and follows):
            frame.code = frame.code or row.text.strip()
        else:
            self._close(traceback, row.at, row.text)

    def _take_listing(self, traceback: Traceback, frame: PrintedFrame, row: TracebackRow) -> None:
        arrow = read_arrow(row.text, frame.line)
        self._idle_rows += 1
        if arrow is not None:
            frame.line = frame.line or arrow[0]
            frame.code = frame.code or arrow[1]
        elif EXCEPTION.match(row.text) and not row.text[:1].isspace():
            self._close(traceback, row.at, row.text)
        elif frame.code is None and row.text[:4].isspace() and not row.text.lstrip()[:1].isdigit():
            frame.code = row.text.strip()  # pytest prints the line alone
        elif self._idle_rows > _MOST_BETWEEN_LISTINGS:
            self._close(traceback, self._last_at, "")

    def _close(self, traceback: Traceback, at: int, error: str) -> None:
        self._open = None
        if not traceback.frames:
            return
        traceback.error_at = at
        traceback.error = error.strip()
        traceback.errors += bool(EXCEPTION.match(error))
        self.done.append(traceback)
