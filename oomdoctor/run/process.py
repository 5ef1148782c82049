"""A command as a child process: streams, signals, exit code, and kills for lack of host memory."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.agent.host_memory import counter_in, memory_groups, number_in
from oomdoctor.errors import OomdoctorError
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126
EXIT_SIGNAL_BASE = 128

_PASSED_ON = frozenset(
    getattr(signal, f"SIG{name}") for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "TSTP", "CONT")
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
class ExitStatus:
    """Exit status of a command.

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


def run_process(command: Sequence[str], environment: Mapping[str, str]) -> ExitStatus:
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
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where a parent had it ignored, a child's end would not be received
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
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise CommandNotFoundError(
                f"command not found: `{command[0]}`",
                hint="the command comes after `--`, for example `oomdoctor run -- python train.py`",
            ) from error
        if Path(command[0]).is_dir():
            raise CommandNotExecutableError(
                f"`{command[0]}` is a folder",
                hint=f"name the program in it, for example `oomdoctor run -- python {command[0].rstrip('/')}/train.py`",
            ) from error
        raise CommandNotExecutableError(
            f"`{command[0]}` cannot be run: {error.strerror}",
            hint=f"a script is run by its interpreter, for example `oomdoctor run -- python {command[0]}`",
        ) from error


def _wait(pid: int, waited_for: set[signal.Signals]) -> ExitStatus:
    while True:
        received = signal.sigwaitinfo(waited_for)
        if received.si_signo != signal.SIGCHLD:
            _pass_on(pid, received)
            continue
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return ExitStatus(pid, code, None) if code >= 0 else ExitStatus(pid, None, -code)


def _pass_on(pid: int, received: signal.struct_siginfo) -> None:
    """Pass a signal on unless the kernel sent it, which then sent it to the whole process group."""
    if received.si_code <= 0:
        os.kill(pid, received.si_signo)
    if received.si_signo == signal.SIGTSTP:
        os.kill(os.getpid(), signal.SIGSTOP)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """One reading; what the kernel does not tell is None.

    Attributes:
        cgroup_kills: Processes of this process's cgroup that the OOM killer ended, since the cgroup was made.
        system_kills: The same on the whole machine, since it was started.
        limit_bytes: The cgroup's limit, or the lowest of those above it.
        limit_name: The file that sets the limit, such as `memory.max`.
        peak_bytes: The most that was used of it.
    """

    cgroup_kills: int | None = None
    system_kills: int | None = None
    limit_bytes: int | None = None
    limit_name: str | None = None
    peak_bytes: int | None = None


def read_host_memory(root: Path = Path("/")) -> HostMemory:
    """Read the counters of the cgroup that this process is in, and so what it starts.

    Args:
        root: Where `proc` and `sys` lie.
    """
    base = "" if root == Path("/") else str(root)
    system_kills = counter_in(f"{base}/proc/vmstat", "oom_kill")
    levels, files = memory_groups(base)
    if not levels:
        return HostMemory(system_kills=system_kills)
    limits = [(limit, level) for level in levels if (limit := number_in(f"{level}/{files.limit}")) is not None]
    limit, level = min(limits, key=lambda pair: pair[0], default=(None, levels[0]))
    return HostMemory(
        cgroup_kills=counter_in(f"{levels[0]}/{files.kills}", "oom_kill"),
        system_kills=system_kills,
        limit_bytes=limit,
        limit_name=None if limit is None else files.limit,
        peak_bytes=number_in(f"{level}/{files.peak}"),
    )


_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - asked how large it is
_SIGKILL_CODE = 128 + signal.SIGKILL
_SIGBUS_CODE = 128 + signal.SIGBUS
_HINT = (
    "fewer DataLoader workers, a smaller data set in memory, `mmap=True` for `torch.load`, or a machine with more; "
    "`dmesg` names the process that was ended"
)


@dataclass(frozen=True, slots=True)
class KillNotice:
    """Notice of a kill that the program could not report itself.

    Attributes:
        message: What happened, with the numbers that show it.
        hint: What to do or where to look.
        is_oom: Whether the host's memory ran out for certain.
    """

    message: str
    hint: str
    is_oom: bool


def explain_kill(ending: ExitStatus, before: HostMemory, after: HostMemory) -> KillNotice | None:
    """Return a notice where the kernel killed a command or a process beneath it; else None.

    Args:
        ending: How the command ended.
        before: Counters before it started.
        after: Counters after it ended.
    """
    if ending.exit_code == os.EX_OK:
        return None
    killed = ending.exit_code == _SIGKILL_CODE
    kills = _difference(before.cgroup_kills, after.cgroup_kills)
    if kills:
        who = "the command" if killed else f"{_processes(kills)} beneath the command"
        return KillNotice(f"the kernel's OOM killer ended {who}: {_numbers(kills, after)}", _HINT, is_oom=True)
    if killed:
        return _killed(after, _difference(before.system_kills, after.system_kills))
    return _bus_error() if ending.exit_code == _SIGBUS_CODE else None


def _killed(after: HostMemory, system_kills: int) -> KillNotice:
    """SIGKILL, and the cgroup counted nothing."""
    if system_kills and after.cgroup_kills is None:
        return KillNotice(
            f"the command was ended by SIGKILL, and the kernel's OOM killer ended {_processes(system_kills)} on this "
            "machine while it ran (`oom_kill` in /proc/vmstat); it was probably one of them",
            _HINT,
            is_oom=False,
        )
    counted = "the kernel counted no out-of-memory kill meanwhile"
    if after.cgroup_kills is None and after.system_kills is None:
        counted = "the kernel does not tell here whether it was for want of memory"
    return KillNotice(
        f"the command was ended by SIGKILL, and {counted}: it may be something else, such as `kill -9`, a "
        "scheduler's time limit or the end of its container",
        "`dmesg`, or the scheduler's own log, tells who ended it",
        is_oom=False,
    )


def _numbers(kills: int, after: HostMemory) -> str:
    parts = [f"{_processes(kills)} of its cgroup killed while it ran"]
    if after.limit_bytes is not None:
        parts.append(f"limit {format_size(after.limit_bytes)} (`{after.limit_name}`)")
    if after.peak_bytes is not None:
        parts.append(f"peak {format_size(after.peak_bytes)}")
    return ", ".join(parts)


def _bus_error() -> KillNotice:
    try:
        status = os.statvfs(_SHARED_MEMORY)
        total, free = (format_size(blocks * status.f_frsize) for blocks in (status.f_blocks, status.f_bavail))
        size = f": {_SHARED_MEMORY} is {total}, {free} of it free now"
    except OSError:
        size = ""
    return KillNotice(
        f"SIGBUS ended the command, as it does when {_SHARED_MEMORY} is full{size}",
        "in a container `--shm-size=8g` enlarges it; fewer DataLoader workers need less",
        is_oom=False,
    )


def _difference(before: int | None, after: int | None) -> int:
    return 0 if before is None or after is None else max(0, after - before)


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"
