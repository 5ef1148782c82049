"""The process that was started: it hands itself over to the fork server, and stands for the program until that ends.

It is the one that a launcher knows. It passes signals on and ends as the program ends: with the same code, or by the
same signal. When it is killed, the server's side sees the connection close and kills the program with all below it.
Built-in modules alone: this is all that a trial's Pythons do before their program starts.
"""

# ruff: noqa: ANN401, PTH208 - as in `identity`

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enumerations of all it has
import _socket
import os
import sys

from . import identity, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
_SECONDS = 20.0


def delegate() -> None:
    """Become the proxy of this process's program; return where it has to run here.

    Raises:
        OSError: Something about this process could not be seen; it runs here then.
    """
    if not _may_ask():
        return
    connection = _connect(os.environ["OOMDOCTOR_FORK_SOCKET"])
    if connection is None:
        return
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _PASSED_ON)
    try:
        pid = _ask(connection, mask)
        if pid:
            _stand_in(connection, pid, mask)
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        connection.close()


def _may_ask() -> bool:
    """Whether this is a program in a file or a module, whose only descriptors are the three that all have.

    What comes as `-c` are short commands, and the workers and trackers that multiprocessing starts.
    """
    name = sys.argv[0] if sys.argv else ""
    return name not in ("", "-", "-c") and not sys.flags.inspect and not _inherited()


def _inherited() -> list[int]:
    """Further descriptors that whoever started this process gave to it."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if number >= _OWN_DESCRIPTORS and os.get_inheritable(number):
                found.append(number)
        except OSError:  # the one that listed the folder
            continue
    return found


def _connect(path: str) -> Any:
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(_SECONDS)
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def _ask(connection: Any, mask: Any) -> int:
    """The id of the process that is the program now; 0 where the server refuses, or is gone."""
    try:
        wire.send(connection, identity.identify(mask), (0, 1, 2))
        answer = wire.receive(connection)
    except OSError:
        return 0
    return int(answer["pid"]) if answer and "pid" in answer else 0


def _stand_in(connection: Any, pid: int, mask: Any) -> None:
    """Wait until the program ends, and end as it did."""
    connection.settimeout(None)
    for number in _PASSED_ON:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda received, _: _pass_on(pid, received))
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    try:
        answer = wire.receive(connection)
    except OSError:
        answer = None
    # Without an answer the program was killed with all around it.
    _end(answer["status"] if answer else int(_signal.SIGKILL))


def _pass_on(pid: int, number: int) -> None:
    try:  # noqa: SIM105 - `contextlib` would be imported for it
        os.kill(pid, number)
    except OSError:  # it has just ended
        pass


def _end(status: int) -> None:
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    _leave_no_core()
    if number != _signal.SIGKILL:
        _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _leave_no_core() -> None:
    import resource  # noqa: PLC0415 - a program that is killed is rare

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
