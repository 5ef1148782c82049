"""Globs of the configuration: written as in `.gitignore`, relative to one folder."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.wildcards import wildcard

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


_HERE: Final = re.compile(r"(?:(?<=/)|^)(?:\./)+")


class Globs:
    """Patterns that paths may fit: `tests/` and `*.py` at any depth, `src/legacy/**` and `./a.py` below the folder.

    Args:
        patterns: What is matched; one that begins with `!` fits what it does not match.
        root: The folder that they are relative to.
    """

    def __init__(self, patterns: Iterable[str], root: Path) -> None:
        self._root = root
        self._patterns = [found for found in map(wildcard, map(_tied, patterns)) if found is not None]

    def fit(self, path: Path, is_dir: bool = False) -> bool:  # noqa: FBT001, FBT002 - as a path's own methods give it
        """Whether an absolute path fits one of them, or lies in a folder that does."""
        if not self._patterns:
            return False
        below = path.relative_to(self._root) if path.is_relative_to(self._root) else path.relative_to(path.anchor)
        folders = [parent.as_posix() for parent in below.parents[:-1]]
        return any(
            pattern.ignores
            == (pattern.fits(str(below), is_dir=is_dir) or any(pattern.fits(name, is_dir=True) for name in folders))
            for pattern in self._patterns
        )


def _tied(pattern: str) -> str:
    """A pattern without `./`, which git never matches: one that begins so means the folder itself."""
    body = pattern.removeprefix("!")
    sign = pattern[: len(pattern) - len(body)]
    return f"{sign}{'/' if body.startswith('./') else ''}{_HERE.sub('', body)}"
