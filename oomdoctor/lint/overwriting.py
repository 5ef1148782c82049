"""A file's new bytes in place of its old ones, whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.output import replace_atomically

if TYPE_CHECKING:
    from pathlib import Path


class ChangedError(Exception):
    """The file is no longer what was read."""


def overwrite(path: Path, old: bytes, new: bytes) -> None:
    """Put `new` where `old` was; the mode stays as it is.

    Args:
        path: The file, without symbolic links, which would otherwise be replaced by it.
        old: What it is thought to hold.
        new: What it is to hold.

    Raises:
        ChangedError: Somebody else has written to the file since it was read.
        OSError: It cannot be written.
    """
    if path.read_bytes() != old:
        raise ChangedError
    # Where the file itself may not be written, renaming another over it would be a way around that.
    with path.open("r+b"):
        pass
    replace_atomically(path, new)
