"""What git ignores: `.gitignore` in each folder up to the repository's root, and `.git/info/exclude`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.source import UnreadableError, read
from oomdoctor.lint.wildcards import Wildcard, wildcard

if TYPE_CHECKING:
    from pathlib import Path

_NAME: Final = ".gitignore"
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Ignores:
    """The patterns that hold in a folder.

    Attributes:
        patterns: From each file in its order, the nearest file's last; each file with the length of the path of the
            folder that its patterns are relative to.
    """

    patterns: tuple[tuple[int, tuple[Wildcard, ...]], ...] = ()

    @classmethod
    def above(cls, folder: Path, repository: Path | None) -> Ignores:
        """What holds above a folder in its repository; its own file is not among it.

        Where git ignores the folder itself, whoever names it wants what is in it: nothing above it holds then.
        """
        if repository is None:
            return cls()
        found = cls().and_file(repository, repository / ".git" / "info" / "exclude")
        if folder == repository:
            return found
        between = [parent for parent in reversed(folder.parents) if parent.is_relative_to(repository)]
        for parent, child in zip(between, [*between[1:], folder], strict=True):
            found = found.inside(parent)
            if found.ignore(child, is_dir=True):
                return cls()
        return found

    def inside(self, folder: Path) -> Ignores:
        """What holds in a folder, its own file included."""
        return self.and_file(folder, folder / _NAME)

    def and_file(self, root: Path, file: Path) -> Ignores:
        """These, and the patterns of a file that are relative to `root`."""
        if not os.access(file, os.R_OK):
            return self
        try:
            lines = read(file, _MOST_BYTES).decode("utf-8", "surrogateescape").removeprefix("\ufeff").split("\n")
        except UnreadableError:
            return self
        found = tuple(filter(None, map(wildcard, lines)))
        return Ignores((*self.patterns, (len(str(root).rstrip("/")) + 1, found))) if found else self

    def ignore(self, path: Path, is_dir: bool) -> bool:  # noqa: FBT001 - as `Globs.fit`
        """Whether git ignores a path in a folder that it does not ignore: the last pattern that fits says it."""
        name = str(path)
        for start, patterns in reversed(self.patterns):
            below = name[start:]
            for pattern in reversed(patterns):
                if pattern.fits(below, is_dir=is_dir):
                    return pattern.ignores
        return False


def repository_of(path: Path) -> Path | None:
    """The nearest folder with a `.git` at or above a path; None where there is none."""
    return next((parent for parent in (path, *path.parents) if os.access(parent / ".git", os.F_OK)), None)
