"""Whether the kernel ended a command for want of the host's memory, and what shows it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.units import format_size

if TYPE_CHECKING:
    from oomdoctor.running.host_memory import HostMemory
    from oomdoctor.running.process import Ending

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - asked how large it is
_SIGKILL_CODE = 128 + signal.SIGKILL
_SIGBUS_CODE = 128 + signal.SIGBUS
_HINT = (
    "fewer DataLoader workers, a smaller data set in memory, `mmap=True` for `torch.load`, or a machine with more; "
    "`dmesg` names the process that was ended"
)


@dataclass(frozen=True, slots=True)
class Notice:
    """What to tell about an ending that the program could not explain itself.

    Attributes:
        message: What happened, with the numbers that show it.
        hint: What to do or where to look.
        is_oom: Whether the host's memory ran out for certain.
    """

    message: str
    hint: str
    is_oom: bool


def explain_kill(ending: Ending, before: HostMemory, after: HostMemory) -> Notice | None:
    """Tell how the kernel ended a command or a process beneath it; None where it did not.

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
        return Notice(f"the kernel's OOM killer ended {who}: {_numbers(kills, after)}", _HINT, is_oom=True)
    if killed:
        return _killed(after, _difference(before.system_kills, after.system_kills))
    return _bus_error() if ending.exit_code == _SIGBUS_CODE else None


def _killed(after: HostMemory, system_kills: int) -> Notice:
    """SIGKILL, and the cgroup counted nothing."""
    if system_kills and after.cgroup_kills is None:
        return Notice(
            f"the command was ended by SIGKILL, and the kernel's OOM killer ended {_processes(system_kills)} on this "
            "machine while it ran (`oom_kill` in /proc/vmstat); it was probably one of them",
            _HINT,
            is_oom=False,
        )
    counted = "the kernel counted no out-of-memory kill meanwhile"
    if after.cgroup_kills is None and after.system_kills is None:
        counted = "the kernel does not tell here whether it was for want of memory"
    return Notice(
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


def _bus_error() -> Notice:
    try:
        status = os.statvfs(_SHARED_MEMORY)
        total, free = (format_size(blocks * status.f_frsize) for blocks in (status.f_blocks, status.f_bavail))
        size = f": {_SHARED_MEMORY} is {total}, {free} of it free now"
    except OSError:
        size = ""
    return Notice(
        f"the command was ended by SIGBUS, which is what a full {_SHARED_MEMORY} looks like{size}",
        "in a container `--shm-size=8g` enlarges it; fewer DataLoader workers need less",
        is_oom=False,
    )


def _difference(before: int | None, after: int | None) -> int:
    return 0 if before is None or after is None else max(0, after - before)


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"
