"""The cache's folder: where it is, what lies in it, and how large it may grow."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import UsageError
from oomdoctor.output import write_atomically
from oomdoctor.probing.looking import CACHE_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = "OOMDOCTOR_CACHE_DIR"
MOST_BYTES: Final = 64 * 1024**2
MOST_ENTRY_BYTES: Final = 16 * 1024**2
MOST_OF_A_QUESTION: Final = 4
"""Answers to one question, such as those on branches that somebody goes back and forth between."""

_MARKS: Final = (
    (".gitignore", "*\n"),
    ("CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55\n# Answers of `oomdoctor check`; safe to delete.\n"),
)


def cache_folder(configuration: Path, environment: Mapping[str, str]) -> Path:
    """Where a configuration's answers are kept: `OOMDOCTOR_CACHE_DIR`, or `.oomdoctor-cache` beside the file.

    Args:
        configuration: The configuration file.
        environment: Variables by name.
    """
    chosen = environment.get(VARIABLE, "")
    return Path(chosen).absolute() if chosen else configuration.absolute().parent / CACHE_NAME


def answers(folder: Path, key: str) -> list[Path]:
    """Files with answers to one question, the one that was used last first."""
    return [path for path, _ in _newest_first(folder, f"{key}-*.json")]


def read(path: Path) -> str | None:
    """What a file holds; None where it cannot be read or is far too long."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_ENTRY_BYTES + 1)
        return content.decode() if len(content) <= MOST_ENTRY_BYTES else None
    except (OSError, ValueError):
        return None


def used(path: Path) -> None:
    """Note that an answer was used, so that others are removed before it."""
    with suppress(OSError):
        os.utime(path)


def write(folder: Path, key: str, state: str, text: str) -> None:
    """Keep an answer, and remove those that have not been used for longest.

    A folder that cannot be written to is left as it is: a cache is a convenience.

    Args:
        folder: The cache's folder; made where it does not exist.
        key: Name of the question.
        state: Name of what the answer depended on.
        text: The answer.
    """
    with suppress(OSError, UsageError):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in _MARKS:
            if not (folder / name).exists():
                write_atomically(folder / name, content)
        write_atomically(folder / f"{key}-{state}.json", text)
        _remove(answers(folder, key)[MOST_OF_A_QUESTION:])
        _remove(_beyond(folder))


def _beyond(folder: Path) -> list[Path]:
    """What the folder has no room for."""
    total, beyond = 0, []
    for path, size in _newest_first(folder, "*.json"):
        total += size
        if total > MOST_BYTES:
            beyond.append(path)
    return beyond


def _newest_first(folder: Path, pattern: str) -> list[tuple[Path, int]]:
    """Files and their sizes; another check may remove any of them at any moment."""
    found = []
    for path in folder.glob(pattern):
        with suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime_ns, path.name, path, status.st_size))
    return [(path, size) for _, _, path, size in sorted(found, reverse=True)]


def _remove(paths: list[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()
