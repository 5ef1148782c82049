"""A file as a program that can be linted and edited: a script or a notebook."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from oomdoctor.lint.notebooks import MOST_NOTEBOOK_BYTES, Notebook, parse_notebook
from oomdoctor.lint.source import MOST_BYTES, Script, check_size, decode, read, stands_on_torch, within

if TYPE_CHECKING:
    from pathlib import Path

NOTEBOOK: str = ".ipynb"
"""What a notebook's name ends with; any other file is a script."""

Document = Script | Notebook


def read_document(path: Path) -> Document | None:
    """What a file holds; None where that has nothing to do with torch.

    Raises:
        UnreadableError: It cannot be read or understood.
    """
    return parse_document(read(path, most_bytes(path.name)), path.name)


def parse_document(data: bytes, name: str) -> Document | None:
    """What these bytes hold; None where that has nothing to do with torch.

    Args:
        data: The file's bytes.
        name: Its name, whose ending tells a notebook.

    Raises:
        UnreadableError: They are too many or cannot be understood.
    """
    within(data, most_bytes(name))
    if PurePath(name).suffix == NOTEBOOK:
        return parse_notebook(data)
    script = decode(data)
    if not stands_on_torch(script.text):
        return None
    check_size(script.text)
    return script


def most_bytes(name: str) -> int:
    """As many bytes as are read of a file of this name."""
    return MOST_NOTEBOOK_BYTES if PurePath(name).suffix == NOTEBOOK else MOST_BYTES
