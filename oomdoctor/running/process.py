"""A command as a child that behaves as if its parent were not there: its streams, its signals, its exit code."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.errors import OomdoctorError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126
EXIT_SIGNAL_BASE = 128

_PASSED_ON = frozenset(
    {
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGTSTP,
        signal.SIGCONT,
    }
)
# What Python ignores, so that a child would too.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class CommandNotFoundError(OomdoctorError):
    """There is no such command; the exit code is a shell's."""

    exit_code = EXIT_NOT_FOUND


class CommandNotExecutableError(OomdoctorError):
    """The command is there and cannot be run; the exit code is a shell's."""

    exit_code = EXIT_NOT_EXECUTABLE


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended.

    Attributes:
        pid: Its process id while it ran.
        status: Its exit status; None where a signal ended it.
        signal: The number of the signal that ended it; None where it exited.
    """

    pid: int
    status: int | None
    signal: int | None

    @property
    def exit_code(self) -> int:
        """The exit code that a shell gives: the status, or 128 and the signal's number."""
        return self.status if self.status is not None else EXIT_SIGNAL_BASE + (self.signal or 0)


def run_process(command: Sequence[str], environment: Mapping[str, str]) -> Ending:
    """Run a command to its end, and pass on what signals come meanwhile.

    What the terminal sends, such as Ctrl-C, reaches the command by itself, since it is in the same process group; what
    somebody sends to this process alone is passed on. Who sends a signal to the whole group, as `timeout` does, sends
    the command two: the kernel does not tell a receiver whom else a signal was sent to, and to pass on none would
    leave the command running when this process alone is asked to end.

    Args:
        command: The program, looked for in PATH, and its arguments; no shell takes them apart.
        environment: Its whole environment.

    Raises:
        CommandNotFoundError: There is no such program.
        CommandNotExecutableError: It cannot be run.
    """
    waited_for = {*_PASSED_ON, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where a parent had it ignored, a child's end would not be told
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    try:
        pid = _start(command, environment, mask)
        return _wait(pid, waited_for)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start(command: Sequence[str], environment: Mapping[str, str], mask: set[signal.Signals | int]) -> int:
    try:
        # Not `subprocess`, which would close the descriptors that the command inherits.
        return os.posix_spawnp(
            command[0], list(command), dict(environment), setsigmask=list(mask), setsigdef=list(_IGNORED_BY_PYTHON)
        )
    except OSError as error:
        raise _start_error(command[0], error) from error


def _start_error(program: str, error: OSError) -> OomdoctorError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return CommandNotFoundError(
            f"command not found: `{program}`",
            hint="the command comes after `--`, for example `oomdoctor run -- python train.py`",
        )
    return CommandNotExecutableError(
        f"`{program}` cannot be run: {error.strerror}",
        hint=f"a script is run by its interpreter, for example `oomdoctor run -- python {program}`",
    )


def _wait(pid: int, waited_for: set[signal.Signals]) -> Ending:
    while True:
        told = signal.sigwaitinfo(waited_for)
        if told.si_signo != signal.SIGCHLD:
            _pass_on(pid, told)
            continue
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return Ending(pid, code, None) if code >= 0 else Ending(pid, None, -code)


def _pass_on(pid: int, told: signal.struct_siginfo) -> None:
    """Pass a signal on unless the kernel sent it, which then sent it to the whole process group."""
    if told.si_code <= 0:
        os.kill(pid, told.si_signo)
    if told.si_signo == signal.SIGTSTP:
        os.kill(os.getpid(), signal.SIGSTOP)
