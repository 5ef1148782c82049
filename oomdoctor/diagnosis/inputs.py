"""What a person gives: a text, a snapshot, the report of a run, a folder of these, or standard input."""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, BinaryIO, Final

from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STANDARD_INPUT: Final = "-"
_HEAD_BYTES: Final = 4096
_MOST_FILES: Final = 4096
_HINT: Final = "give a log, a memory snapshot, the folder that `oomdoctor run` wrote, or `-` for standard input"


@dataclass(frozen=True, slots=True)
class Source:
    """One thing to read.

    Attributes:
        name: The path as it was given, or `standard input`.
        path: The file; None for standard input.
    """

    name: str
    path: Path | None
    stdin: BinaryIO | None = field(default=None, compare=False)

    def is_file(self, other: Path) -> bool:
        """Whether `other`, which exists, is the same file."""
        return self.path is not None and self.path.samefile(other)

    @contextmanager
    def opened(self) -> Iterator[io.BufferedReader]:
        """Open it for reading.

        Raises:
            UsageError: It cannot be read.
        """
        try:
            if self.path is None:
                yield io.BufferedReader(_Unclosed(self.stdin or sys.stdin.buffer))
                return
            with self.path.open("rb") as stream:
                yield stream
        except OSError as error:
            raise UsageError(f"`{self.name}` cannot be read: {error.strerror or error}", hint=_HINT) from error


def sources(arguments: Sequence[str], stdin: BinaryIO | None = None) -> tuple[Source, ...]:
    """What the arguments name, folders replaced by their files.

    Raises:
        UsageError: One does not exist, is an empty folder, or standard input is named twice.
    """
    if list(arguments).count(STANDARD_INPUT) > 1:
        raise UsageError("standard input is named twice", hint="give `-` once")
    found: list[Source] = []
    for argument in arguments:
        if argument == STANDARD_INPUT:
            found.append(Source("standard input", None, stdin))
        else:
            found += _files(argument)
    return tuple(found)


def head(stream: io.BufferedReader) -> bytes:
    """The first bytes, which stay to be read."""
    return stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]


def _files(argument: str) -> list[Source]:
    path = Path(argument)
    try:
        if not path.is_dir():
            path.stat()
            return [Source(argument, path)]
        inside = sorted(Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    except FileNotFoundError:
        hint = _HINT if " " not in argument else "pipe the message itself in: `echo '...' | oomdoctor diagnose -`"
        raise UsageError(f"no such file: `{shorten(argument, 80)}`", hint=hint) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"`{argument}` cannot be read: {reason}", hint=_HINT) from None
    if not inside:
        raise UsageError(f"`{argument}` is an empty folder", hint=_HINT)
    if len(inside) > _MOST_FILES:
        raise UsageError(f"`{argument}` holds {len(inside)} files", hint="name the logs or snapshots themselves")
    return [Source(str(file), file) for file in inside]


class _Unclosed(io.RawIOBase):
    """Standard input as a raw stream that stays open when its reader goes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        read = getattr(self._stream, "read1", self._stream.read)
        data = read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
