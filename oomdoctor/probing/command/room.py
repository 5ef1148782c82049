"""A directory of ours for sockets, which is gone when the probe is, however that ends."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Final

from oomdoctor.probing.guarded import GuardedProcess

_LONGEST: Final = 80
"""A socket's name has 108 bytes; beyond this the room is made in `/tmp`."""


class Room:
    """The directory, which nobody else can enter, and the guardian that removes it where this process cannot.

    Attributes:
        path: Where it is.
    """

    def __init__(self) -> None:
        name = f"oomdoctor-{secrets.token_hex(8)}"
        parent = Path(tempfile.gettempdir())
        self.path = (parent if len(str(parent / name)) <= _LONGEST else Path("/tmp")) / name  # noqa: S108 - a name that nobody can guess, and 0o700
        report_read, report_write = os.pipe()
        # Before the directory is made, so that there is no moment at which nobody would remove it.
        self._keeper = GuardedProcess((), os.environ, report_write, doomed=self.path)
        for fd in (report_read, report_write):
            os.close(fd)
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._keeper.close()
