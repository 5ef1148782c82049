"""What the kernel counted of the host's memory: its out-of-memory kills, the cgroup's limit and peak."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Version 1 prints its largest multiple of a page for "no limit".
_NO_LIMIT = 1 << 62


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


@dataclass(frozen=True, slots=True)
class _Files:
    """What one version of cgroups calls its files."""

    kills: str
    limit: str
    peak: str


_VERSION_1 = _Files("memory.oom_control", "memory.limit_in_bytes", "memory.max_usage_in_bytes")
_VERSION_2 = _Files("memory.events", "memory.max", "memory.peak")


def read_host_memory(root: Path = Path("/")) -> HostMemory:
    """Read the counters of the cgroup that this process is in, and so what it starts.

    Args:
        root: Where `proc` and `sys` lie.
    """
    system_kills = _counter(root / "proc" / "vmstat", "oom_kill")
    levels, files = _cgroup(root)
    if not levels:
        return HostMemory(system_kills=system_kills)
    limits = [(limit, level) for level in levels if (limit := _number(level / files.limit)) is not None]
    limit, level = min(limits, key=lambda pair: pair[0], default=(None, levels[0]))
    return HostMemory(
        cgroup_kills=_counter(levels[0] / files.kills, "oom_kill"),
        system_kills=system_kills,
        limit_bytes=limit,
        limit_name=None if limit is None else files.limit,
        peak_bytes=_number(level / files.peak),
    )


def _cgroup(root: Path) -> tuple[list[Path], _Files]:
    """The directories of the cgroup and of those above it, innermost first, and what their files are called."""
    mount = root / "sys" / "fs" / "cgroup"
    version_2: list[Path] = []
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return list(_levels(mount / "memory", path, _VERSION_1)), _VERSION_1
        if number == "0":
            version_2 = list(_levels(mount, path, _VERSION_2))
    return version_2, _VERSION_2


def _levels(mount: Path, path: str, files: _Files) -> Iterator[Path]:
    """In a container the path may be the host's, and the mount the cgroup itself: then the mount is what is left."""
    inner = mount / path.lstrip("/")
    if ".." in inner.parts:
        inner = mount
    for level in (inner, *inner.parents):
        if (level / files.kills).is_file():
            yield level
        if level == mount:
            return


def _counter(path: Path, name: str) -> int | None:
    """The number behind `name` in a file of lines such as `oom_kill 3`."""
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdecimal():  # noqa: PLR2004
            return int(words[1])
    return None


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() and int(text) < _NO_LIMIT else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
