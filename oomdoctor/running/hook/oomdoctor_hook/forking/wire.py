"""What a proxy and the server send each other: values of Python's own types, each after its length.

Built-in modules alone: every Python process of a command waits for their import.
"""

# ruff: noqa: ANN401 - sockets have no type without their module, and messages no other

from __future__ import annotations

import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LENGTH_BYTES = 8
_DESCRIPTOR_BYTES = 4
_MOST_BYTES = 1 << 26
_SOL_SOCKET = 1
_SCM_RIGHTS = 1
_MARSHAL_VERSION = 2


def send(connection: Any, message: Any, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message, and file descriptors with it.

    Raises:
        OSError: The other side is gone.
    """
    body = marshal.dumps(message, _MARSHAL_VERSION)
    head = len(body).to_bytes(_LENGTH_BYTES, "little")
    if descriptors:
        rights = b"".join(number.to_bytes(_DESCRIPTOR_BYTES, sys.byteorder) for number in descriptors)
        connection.sendmsg([head], [(_SOL_SOCKET, _SCM_RIGHTS, rights)])
        head = b""
    connection.sendall(head + body)


def receive(connection: Any) -> Any:
    """Receive one message; None where the other side is gone.

    Raises:
        OSError: The connection broke, or took too long.
        ValueError: That is no message of ours.
    """
    head = _exactly(connection, _LENGTH_BYTES)
    return None if head is None else _body(connection, head)


def receive_with_descriptors(connection: Any, most: int) -> tuple[Any, list[int]]:
    """Receive one message and what came with it, at most `most` file descriptors, as `receive` does."""
    head, ancillary, _, _ = connection.recvmsg(_LENGTH_BYTES, 24 + most * _DESCRIPTOR_BYTES)
    found = [
        int.from_bytes(data[start : start + _DESCRIPTOR_BYTES], sys.byteorder)
        for level, kind, data in ancillary
        if (level, kind) == (_SOL_SOCKET, _SCM_RIGHTS)
        for start in range(0, len(data), _DESCRIPTOR_BYTES)
    ]
    return (_body(connection, head) if len(head) == _LENGTH_BYTES else None), found


def _body(connection: Any, head: bytes) -> Any:
    length = int.from_bytes(head, "little")
    if not length:
        return {}  # the probe asks whether a program is left
    if length > _MOST_BYTES:
        raise ValueError("too long for a message")
    body = _exactly(connection, length)
    return None if body is None else marshal.loads(body)  # noqa: S302 - the socket is ours and in a folder of ours


def _exactly(connection: Any, length: int) -> bytes | None:
    parts = []
    while length:
        part = connection.recv(min(length, 1 << 20))
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
