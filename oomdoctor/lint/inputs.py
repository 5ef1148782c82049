"""Where the bytes of files come from: the disk, standard input, or what a fix would have written."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.lint.documents import most_bytes
from oomdoctor.lint.source import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.lint.discovery import File


@dataclass(frozen=True, slots=True)
class Inputs:
    """What files hold.

    Attributes:
        overlay: What some hold in place of what is on the disk, by resolved path.
        stdin: What standard input gave; None where nobody reads it.
        stdin_filename: What it is called.
    """

    overlay: Mapping[Path, bytes] = field(default_factory=dict)
    stdin: bytes | None = None
    stdin_filename: str | None = None

    def read(self, file: File) -> bytes:
        """The bytes of a file.

        Raises:
            UnreadableError: It cannot be read, or is too large.
        """
        if file.path is None:
            return self.stdin or b""
        instead = self.overlay.get(resolved(file.path)) if self.overlay else None
        return read(file.path, most_bytes(file.path.name)) if instead is None else instead

    def place(self, file: File) -> Path:
        """Where a file lies, or where it would lie if standard input were a file."""
        return file.path or Path.cwd() / (self.stdin_filename or "stdin.py")


def resolved(path: Path) -> Path:
    """A path without symbolic links; the path itself where they lead in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path


def digest(data: bytes) -> bytes:
    """What tells one content from another."""
    return blake2b(data, digest_size=16).digest()
