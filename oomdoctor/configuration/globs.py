"""Globs as `.gitignore` has them, moved from one folder to another."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import PurePath

_SPECIAL: Final = re.compile(r"[*?\[\]\\!#]")


def below(folder: PurePath, glob: str) -> str:
    """A glob that matches in a folder above what `glob` matches in `folder`.

    Args:
        folder: Relative to the folder above; `.` changes nothing.
        glob: One without a slash, but for its last character, matches at any depth; any other only from where it is.
    """
    if not folder.parts:
        return glob
    negation, pattern = ("!", glob[1:]) if glob.startswith("!") else ("", glob)
    start = _SPECIAL.sub(r"\\\g<0>", folder.as_posix())
    anywhere = "" if "/" in pattern.rstrip("/") else "**/"
    return f"{negation}{start}/{anywhere}{pattern.removeprefix('/')}"
