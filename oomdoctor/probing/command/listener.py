"""Where the processes of a trial say how it goes: a socket of its own, which no process has to be asked through."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_CHUNK = 65536
_LONGEST_LINE = 64 << 20
_WAITING = 64


class Listener:
    """Takes lines of JSON from every process that connects; use it as a context manager.

    What is no JSON object is passed over: the command's code could write to the socket too, and whatever comes is data.

    Args:
        path: Name of the socket, which must not exist yet; it is removed in the end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(_WAITING)
        self._socket.setblocking(False)  # noqa: FBT003 - the standard library's own
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._partial: dict[int, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def fd(self) -> int:
        """Readable where there may be something to take."""
        return self._selector.fileno()

    def take(self) -> Iterator[dict[str, Any]]:
        """What has come since, without waiting."""
        while ready := self._selector.select(0):
            for key, _ in ready:
                if key.fileobj is self._socket:
                    self._accept()
                else:
                    yield from self._read(key.fileobj)  # type: ignore[arg-type]

    def take_the_rest(self, longest_seconds: float) -> Iterator[dict[str, Any]]:
        """What still comes, until all who have connected are gone."""
        deadline = time.monotonic() + longest_seconds
        yield from self.take()
        while len(self._selector.get_map()) > 1 and (left := deadline - time.monotonic()) > 0:
            self._selector.select(left)
            yield from self.take()

    def close(self) -> None:
        """Close every connection and remove the socket."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # who connected may have gone again
            connection, _ = self._socket.accept()
            connection.setblocking(False)  # noqa: FBT003 - the standard library's own
            self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> Iterator[dict[str, Any]]:
        fd = connection.fileno()
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        *lines, rest = (self._partial.pop(fd, b"") + chunk).split(b"\n")
        if chunk and len(rest) <= _LONGEST_LINE:
            self._partial[fd] = rest
        else:
            self._selector.unregister(connection)
            connection.close()
        yield from filter(None, map(_message, lines))


def _message(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and isinstance(message.get("pid"), int) else None
