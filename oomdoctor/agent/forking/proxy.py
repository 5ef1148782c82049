"""Proxy: a started process hands itself over to the fork server, and ends as its program ends. Built-in modules only.

It is the one that a launcher knows. It passes signals on and ends as the program ends: with the same code, or by the
same signal. When it is killed, the server's side sees the connection close and kills the program with all below it.
Every Python process of a command waits for this import before its program starts.
"""

# ruff: noqa: ANN401, PTH109, PTH208 - streams and sockets have no type here, and pathlib takes longer than all of this

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enumerations of all it has
import _socket
import marshal
import os
import sys

TYPE_CHECKING = False  # type checkers know the name; `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

_NEVER_CAUGHT = (9, 19)
_STREAMS = ("stdin", "stdout", "stderr")
_LENGTH_BYTES = 8
_DESCRIPTOR_BYTES = 4
_MOST_BYTES = 1 << 26
_SOL_SOCKET = 1
_SCM_RIGHTS = 1
_MARSHAL_VERSION = 2
_PASSED_ON = (
    _signal.SIGTERM,
    _signal.SIGINT,
    _signal.SIGHUP,
    _signal.SIGQUIT,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
    _signal.SIGCONT,
    _signal.SIGWINCH,
    _signal.SIGALRM,
)
_OWN_DESCRIPTORS = 3
_ANSWER_SECONDS = 20.0


def delegate() -> None:
    """Become the proxy of this process's program; return where it has to run here.

    Raises:
        OSError: Something about this process could not be seen; it runs here then.
    """
    if not _may_ask():
        return
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _PASSED_ON)
    try:
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(os.environ["OOMDOCTOR_FORK_SOCKET"])
        send(connection, identify(mask), (0, 1, 2))
        answer = receive(connection)
        if answer and "pid" in answer:
            _await_program(connection, answer["pid"], mask)
    except OSError:  # the server is gone
        return
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        connection.close()


def _may_ask() -> bool:
    """Return whether this is a program in a file or a module, whose only descriptors are the three that all have.

    What comes as `-c` are short commands, and the workers and trackers that multiprocessing starts.
    """
    name = sys.argv[0] if sys.argv else ""
    return name not in ("", "-", "-c") and not sys.flags.inspect and not _inherited()


def _inherited() -> list[int]:
    """Return further descriptors that whoever started this process gave to it."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if number >= _OWN_DESCRIPTORS and os.get_inheritable(number):
                found.append(number)
        except OSError:  # the one that listed the folder
            continue
    return found


def _await_program(connection: Any, pid: int, mask: Any) -> None:
    """Wait until the program ends, and end as it did."""
    connection.settimeout(None)
    for number in _PASSED_ON:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda received, _: _pass_on(pid, received))
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    try:
        answer = receive(connection)
    except OSError:
        answer = None
    # Without an answer the program was killed with all around it.
    _end_as(answer["status"] if answer else int(_signal.SIGKILL))


def _pass_on(pid: int, number: int) -> None:
    try:  # noqa: SIM105 - `contextlib` would be imported for it
        os.kill(pid, number)
    except OSError:  # it has just ended
        pass


def _end_as(status: int) -> None:
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    import resource  # noqa: PLC0415 - a program that is killed is rare

    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != _signal.SIGKILL:
        _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


# --- this process ----------------------------------------------------------------------------------------------------


def identify(mask: Any) -> dict[str, Any]:
    """Describe this process in values that `send` can send: all that decides whether another may stand for it.

    Args:
        mask: The signals that are blocked in it.
    """
    umask = os.umask(0o077)
    os.umask(umask)
    return {
        "interpreter": interpreter(),
        "executable": sys.executable,
        "path": list(map(str, sys.path)),
        "argv": list(sys.argv),
        "command_line": command_line(),
        "environment": dict(os.environ),
        "cwd": os.getcwd(),
        "umask": umask,
        "signals": dispositions(),
        "mask": sorted(int(number) for number in mask),
        "affinity": sorted(os.sched_getaffinity(0)),
        "streams": [_stream(getattr(sys, name)) for name in _STREAMS],
    }


def interpreter() -> dict[str, Any]:
    """Return the properties of the interpreter that must be equal in both, to the letter."""
    return {
        "version": sys.version,
        "executable": os.path.realpath(sys.executable),
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "flags": [int(value) for value in sys.flags],
        "warnoptions": list(sys.warnoptions),
        "xoptions": sorted((str(key), str(value)) for key, value in getattr(sys, "_xoptions", {}).items()),
        "limits": read_file("/proc/self/limits"),
        "nice": os.nice(0),
        "owner": [os.getuid(), os.geteuid(), os.getgid(), os.getegid()],
    }


def command_line() -> list[str]:
    """Return the whole command line; `sys.orig_argv` has it only from Python 3.10 on."""
    return [os.fsdecode(part) for part in read_file("/proc/self/cmdline").split(b"\0")[:-1]]


def dispositions() -> dict[int, str]:
    """Return what each signal does that no code catches: `ignored`, `default` or, by Python's own, `python`."""
    names = {_signal.SIG_IGN: "ignored", _signal.SIG_DFL: "default", _signal.default_int_handler: "python"}
    found = {}
    for number in range(1, _signal.NSIG):
        if number in _NEVER_CAUGHT:
            continue
        try:
            handler = _signal.getsignal(number)
        except ValueError:
            continue
        if handler in names:
            found[number] = names[handler]
    return found


def _stream(stream: Any) -> list[Any] | None:
    if stream is None:
        return None
    buffered = hasattr(stream.buffer, "raw")
    return [stream.encoding, stream.errors, bool(stream.line_buffering), bool(stream.write_through), buffered]


def read_file(path: str) -> bytes:
    """Return the bytes of a small file."""
    # `open` would make a text layer and its codecs.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts: list[bytes] = []
        while True:
            part = os.read(descriptor, 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
    finally:
        os.close(descriptor)


# --- messages: values of Python's own types, each after its length ---------------------------------------------------


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
    head = _receive_exactly(connection, _LENGTH_BYTES)
    return None if head is None else _receive_body(connection, head)


def receive_with_descriptors(connection: Any, most: int) -> tuple[Any, list[int]]:
    """Receive one message and what came with it, at most `most` file descriptors, as `receive` does."""
    head, ancillary, _, _ = connection.recvmsg(_LENGTH_BYTES, 24 + most * _DESCRIPTOR_BYTES)
    found = [
        int.from_bytes(data[start : start + _DESCRIPTOR_BYTES], sys.byteorder)
        for level, kind, data in ancillary
        if (level, kind) == (_SOL_SOCKET, _SCM_RIGHTS)
        for start in range(0, len(data), _DESCRIPTOR_BYTES)
    ]
    return (_receive_body(connection, head) if len(head) == _LENGTH_BYTES else None), found


def _receive_body(connection: Any, head: bytes) -> Any:
    length = int.from_bytes(head, "little")
    if not length:
        return {}  # the probe asks whether a program is left
    if length > _MOST_BYTES:
        raise ValueError("too long for a message")
    body = _receive_exactly(connection, length)
    return None if body is None else marshal.loads(body)  # noqa: S302 - the socket is ours and in a folder of ours


def _receive_exactly(connection: Any, length: int) -> bytes | None:
    parts = []
    while length:
        part = connection.recv(min(length, 1 << 20))
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
