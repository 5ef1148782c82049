"""Rows put together to tracebacks, each with the line of its error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oomdoctor.diagnosis.text import traceback_lines as printed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.diagnosis.text.traceback_lines import Frame
    from oomdoctor.diagnosis.text.unfolding import Row

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

    frames: list[Frame] = field(default_factory=list)
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
        """Whether several processes' lines are mixed in it."""
        return self.headers >= _SEVERAL


def split_tracebacks(rows: Sequence[Row], message_at: int) -> list[Traceback]:
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

    def take(self, row: Row) -> None:
        text = row.text.strip()
        if not text:
            return
        frame = printed.read_frame(row.text)
        if frame is not None:
            self._take_frame(frame, row.at)
        elif printed.CHAIN.search(text):
            self.finish()
            self._cause = self.done[-1] if self.done else None
        elif printed.HEADER.search(text) or printed.DUMP_HEADER.match(text):
            self._take_header(text)
        elif self._open is not None and self._open.frames:
            self._take_text(self._open, row)

    def finish(self) -> None:
        if self._open is not None:
            self._close(self._open, self._last_at, "")

    def _take_header(self, text: str) -> None:
        dump = printed.DUMP_HEADER.match(text) is not None
        if self._open is not None and not dump:
            self._open.headers += 1  # the first has not ended: two processes write at once
            return
        self.finish()
        self._open = Traceback(headers=1, newest_first=dump, running=text.startswith("Current"))
        self._open.outer = self.done[-1] if text.startswith("Original") and self.done else None
        self._open.cause, self._cause = self._cause, None

    def _take_frame(self, frame: Frame, at: int) -> None:
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
            if not printed.EXCEPTION.match(last.error):
                return self.done.pop()  # a progress bar or another thread's line came in between
            if last.headers > last.errors:
                return Traceback(list(last.frames), headers=last.headers, errors=last.errors)
        cause, self._cause = self._cause, None
        return Traceback(cause=cause)

    def _take_text(self, traceback: Traceback, row: Row) -> None:
        frame = traceback.frames[-1]
        if row.at == self._message_at and not row.split:
            self._close(traceback, row.at, row.text)
        elif frame.listing:
            self._take_listing(traceback, frame, row)
        elif printed.is_idle(row.text):
            return
        elif printed.indent(row.text) > frame.indent or (frame.indent == 0 and self._follows(frame, row)):
            frame.code = frame.code or row.text.strip()
        else:
            self._close(traceback, row.at, row.text)

    def _follows(self, frame: Frame, row: Row) -> bool:
        """Whether a row is a frame's code in a text that lost its indentation."""
        return frame.code is None and row.at <= self._last_at + 1 and not printed.EXCEPTION.match(row.text)

    def _take_listing(self, traceback: Traceback, frame: Frame, row: Row) -> None:
        arrow = printed.read_arrow(row.text, frame.line)
        self._idle_rows += 1
        if arrow is not None:
            frame.line = frame.line or arrow[0]
            frame.code = frame.code or arrow[1]
        elif printed.EXCEPTION.match(row.text) and not row.text[:1].isspace():
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
        traceback.errors += bool(printed.EXCEPTION.match(error))
        self.done.append(traceback)
