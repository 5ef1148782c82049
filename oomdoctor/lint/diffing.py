"""What fixes would change, as a unified diff; that of scripts can be given to `patch -p0`."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from oomdoctor.lint.notebooks import Notebook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.source import Script

_NO_LINE_END = "\n\\ No newline at end of file\n"


def unified(path: str, old: Script | Notebook, new: Script | Notebook) -> str:
    """The difference between two states of a file; a notebook's is shown by cell, as its authors see them.

    Args:
        path: The file as it is to be named.
        old: What it holds.
        new: What it would hold.
    """
    if isinstance(old, Notebook) and isinstance(new, Notebook):
        after = {cell.number: cell.source for cell in new.cells}
        pairs = [(f"{path}:cell {cell.number}", cell.source, after.get(cell.number, "")) for cell in old.cells]
        return "".join(_difference(name, before, later) for name, before, later in pairs)
    return _difference(path, old.shown(), new.shown())


def _difference(name: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(_lines(old), _lines(new), name, name)
    return "".join(line if line.endswith("\n") else line + _NO_LINE_END for line in lines)


def _lines(text: str) -> list[str]:
    """Lines with their ends; other than `str.splitlines` does, only a line feed ends one, as for `patch`."""
    return list(_split(text))


def _split(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end
