"""Control groups of Linux, which limit the memory of containers and of services: where they are, and their numbers.

Source: the kernel's documents of cgroup-v1's memory controller and of cgroup-v2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

# Version 1 prints its largest multiple of a page for "no limit".
_NO_LIMIT = 1 << 62


class GroupFiles(NamedTuple):
    """File names of one version.

    Attributes:
        kills: Has a line `oom_kill` with the number of processes that the OOM killer ended.
        limit: The most memory.
        peak: The most that was used.
        used: What is used now, with the cache of files.
        mount: Folder below that of all groups.
    """

    kills: str
    limit: str
    peak: str
    used: str
    mount: str


_VERSION_1 = GroupFiles(
    "memory.oom_control", "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.usage_in_bytes", "/memory"
)
_VERSION_2 = GroupFiles("memory.events", "memory.max", "memory.peak", "memory.current", "")


def memory_groups(root: str = "") -> tuple[list[str], GroupFiles]:
    """Return the folders of this process's group and of those above, innermost first, and what their files are called.

    Args:
        root: Where `/proc` and `/sys` lie.
    """
    version_2: list[str] = []
    for line in text_of(f"{root}/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return list(_levels(root, path, _VERSION_1)), _VERSION_1
        if number == "0":
            version_2 = list(_levels(root, path, _VERSION_2))
    return version_2, _VERSION_2


def _levels(root: str, path: str, files: GroupFiles) -> Iterator[str]:
    """Yield the folders; in a container the path may be the host's, and the mount the group itself."""
    mount = f"{root}/sys/fs/cgroup{files.mount}"
    parts = [part for part in path.split("/") if part]
    for count in range(0 if ".." in parts else len(parts), -1, -1):
        level = "/".join((mount, *parts[:count]))
        if text_of(f"{level}/{files.kills}"):
            yield level


def bytes_left_by_limits(root: str = "") -> int | None:
    """Return what the tightest limit leaves, with the cache of files, which can be dropped; None without a limit."""
    levels, files = memory_groups(root)
    left = []
    for level in levels:
        limit, used = number_in(f"{level}/{files.limit}"), number_in(f"{level}/{files.used}")
        if limit is not None and used is not None:
            left.append(max(0, limit - used + (counter_in(f"{level}/memory.stat", "inactive_file") or 0)))
    return min(left, default=None)


def counter_in(path: str, name: str) -> int | None:
    """Return the number behind `name` in a file of lines such as `oom_kill 3`."""
    for line in text_of(path).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdecimal():  # noqa: PLR2004
            return int(words[1])
    return None


def number_in(path: str) -> int | None:
    """Return the number that is all of a file; None where there is none, or no limit."""
    text = text_of(path).strip()
    return int(text) if text.isdecimal() and int(text) < _NO_LIMIT else None


def text_of(path: str) -> str:
    """Return a file's text; nothing where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib takes longer to import
            return file.read()
    except OSError:
        return ""
