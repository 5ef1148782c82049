"""The standard streams as they really are, and where finished text goes.

To a terminal as it takes it, or into a file, whole or not at all.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import stat
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


DEFAULT_WIDTH = 80
"""Columns where nobody can say how many there are: a file, a pipe."""

MAXIMUM_WIDTH = 120
"""Columns beyond which lines are harder to read, not easier."""

DUMB_TERMINALS = ("dumb", "unknown")
"""Values of `TERM` for terminals that only take lines."""

_LONGEST_STEM = 50


@dataclass(frozen=True, slots=True)
class Terminal:
    """Width, colour and characters of a stream; decided once and handed to the renderers.

    Attributes:
        width: Columns.
        color: Whether ANSI styles are wanted.
        unicode: Whether block and line characters can be encoded.
    """

    width: int = DEFAULT_WIDTH
    color: bool = False
    unicode: bool = True

    @classmethod
    def of(cls, stream: TextIO) -> Terminal:
        """Return the terminal of `stream`, by `COLUMNS`, `NO_COLOR`, `FORCE_COLOR` and `TERM`."""
        return cls(width=_width(stream), color=_wants_color(stream), unicode=_has_unicode(stream))


def deliver(
    text: str, output: Path | None = None, *, stdout: TextIO | None = None, stderr: TextIO | None = None
) -> None:
    """Write a finished report to `output`, saying so on standard error, or to standard output where that is None.

    Raises:
        UsageError: `output` cannot be written.
    """
    if output is not None:
        write_atomically(output, text)
        (stderr or sys.stderr).write(f"Wrote {output}\n")
        return
    if stdout is None and 1 in _CLOSED:
        raise UsageError("standard output is closed", hint="write to a file with `-o`")
    stream = stdout or sys.stdout
    # What the stream cannot encode is shown as `?`; a report is not worth an exception.
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(
            f"standard output cannot be written: {error.strerror}", hint="write to a file with `-o`"
        ) from error


def check_writable(path: Path, option: str = "--output") -> None:
    """See before long work that a report can be written to `path`, which `option` names, after it.

    Raises:
        UsageError: It is a directory, or its directory does not exist or may not be written to.
    """
    with _explained(path, option):
        target = _target(path)
        if not os.access(target if target.exists() else target.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write_atomically(path: Path, text: str, option: str = "--output") -> None:
    """Write `text` as UTF-8 so that `path` holds either what it held before or all of `text`, at every moment.

    A symbolic link is followed, an existing file's mode is kept; pipes and devices such as `/dev/stdout` are written to
    as they are.

    Raises:
        UsageError: `path` is a directory, its directory does not exist, or writing failed.
    """
    with _explained(path, option):
        target = _target(path)
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8", errors="replace", newline="")
            return
        replace_atomically(target, text.encode(errors="replace"))


def _target(path: Path) -> Path:
    """Return the file that `path` stands for, in a directory that exists."""
    target = path.resolve()
    if target.is_dir():
        raise UsageError(f"`{path}` is a directory", hint=f"name a file in it, such as `{path / 'report.txt'}`")
    if not target.parent.is_dir():
        raise UsageError(f"`{path}` cannot be written: `{target.parent}` is not a directory", hint="create it first")
    return target


@contextmanager
def _explained(path: Path, option: str) -> Iterator[None]:
    """Raise a UsageError in place of what the file system, or a path that is none, raises."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"`{path}` cannot be written: {reason}", hint=f"choose another file, such as `{option} {_elsewhere(path)}`"
        ) from error


def _elsewhere(path: Path) -> str:
    """Return a path for the same file where anybody may write; one of another name where its own is the trouble."""
    name = path.name if path.name.isprintable() and len(path.name) <= _LONGEST_STEM else f"report{path.suffix[:9]}"
    return shlex.quote(os.path.join(os.environ.get("TMPDIR", "/tmp"), printable(name)))  # noqa: PTH118, S108 - text


def replace_atomically(target: Path, content: bytes) -> None:
    """Put `content` into a file that is no symbolic link, whole or not at all; an existing file's mode is kept.

    Raises:
        OSError: It cannot be written.
    """
    # Beside the target, so that the rename stays within one file system. No fsync: it would guard against a power cut,
    # and make the moment in which a killed process leaves the temporary file behind a hundred times longer.
    temporary = target.with_name(f".{target.name[:_LONGEST_STEM]}.{os.urandom(8).hex()}.tmp")
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    except BaseException:
        # Ctrl-C included: nothing is left behind.
        with suppress(OSError):
            temporary.unlink()
        raise


def _width(stream: TextIO) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    if not is_terminal(stream):
        return DEFAULT_WIDTH
    return min(shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns, MAXIMUM_WIDTH)


def _wants_color(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") in DUMB_TERMINALS:
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal(stream)


def is_terminal(stream: TextIO) -> bool:
    """Return whether a person is likely to be reading `stream`."""
    # A closed stream raises ValueError.
    with suppress(ValueError):
        return stream.isatty()
    return False


def _has_unicode(stream: TextIO) -> bool:
    try:
        "\u2588\u2592\u2500\u256d".encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
# Characters that turn the direction of what follows: text after them reads as something else than it is.
_DIRECTION = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SHOWN = _CONTROL | {code: f"\\u{code:04x}" for code in _DIRECTION}


_CLOSED: Final[set[int]] = set()


def is_closed(descriptor: int) -> bool:
    """Return whether a standard stream was closed when the program began, so that the null device is in its place."""
    return descriptor in _CLOSED


def open_standard_streams() -> None:
    """Open what is closed of stdin, stdout and stderr on the null device.

    A pipe that is opened later would otherwise get the number of one of them, and a child would take it for its own.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            _CLOSED.add(number)
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def printable(text: str) -> str:
    """Return text without the control characters that a terminal would obey; lines and tabs stay.

    What would turn the direction of writing is shown as Python's literals write it.
    """
    return text.translate(_SHOWN)
