"""What the kernel counted is read from real trees of files, and judged with its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.agent.host_memory import free_host_bytes
from oomdoctor.run.process import ExitStatus, HostMemory, explain_kill, read_host_memory

KILLED = ExitStatus(1, None, 9)


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write files, by their path below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def version_2(root: Path, kills: int) -> Path:
    """A cgroup of version 2 whose limit is set one level up."""
    slice_ = "sys/fs/cgroup/job.slice"
    files = {
        "proc/self/cgroup": "0::/job.slice/step\n",
        "proc/vmstat": f"nr_free 5\noom_kill {kills + 2}\n",
        f"{slice_}/step/memory.events": f"low 0\nmax 9\noom 3\noom_kill {kills}\n",
        f"{slice_}/step/memory.max": "17179869184\n",
        f"{slice_}/memory.events": f"oom_kill {kills}\n",
        f"{slice_}/memory.max": "8589934592\n",
        f"{slice_}/memory.peak": "8589930496\n",
    }
    return tree(root, files)


def test_version_2_is_read_up_to_the_lowest_limit(tmp_path: Path) -> None:
    """Kills are the cgroup's own; the limit and the peak are of the level that limits."""
    assert read_host_memory(version_2(tmp_path, 1)) == HostMemory(1, 3, 8589934592, "memory.max", 8589930496)


def test_version_1_is_read(tmp_path: Path) -> None:
    """The memory controller's own files count where there is one, and its largest number is no limit."""
    memory = "sys/fs/cgroup/memory"
    files = {
        "proc/self/cgroup": "4:cpu,memory:/docker/abc\n0::/\n",
        f"{memory}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n",
        f"{memory}/memory.limit_in_bytes": "9223372036854771712\n",
        f"{memory}/memory.max_usage_in_bytes": "1048576\n",
    }
    root = tree(tmp_path, files)

    assert read_host_memory(root) == HostMemory(7, None, None, None, 1048576)


GIB = 1 << 30


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 20 * GIB),
        ({"job.slice/memory.current": f"{5 * GIB}\n"}, 3 * GIB),
        (
            {
                "job.slice/memory.current": f"{5 * GIB}\n",
                "job.slice/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
                "job.slice/step/memory.current": f"{15 * GIB}\n",
            },
            GIB,
        ),
        ({"job.slice/memory.current": f"{9 * GIB}\n"}, 0),
    ],
    ids=["no limit", "one level", "the tightest", "above the limit"],
)
def test_free_memory_is_what_the_tightest_limit_leaves(tmp_path: Path, files: dict[str, str], free: int) -> None:
    """A limit counts where it leaves less than the host has; the cache of files counts as free."""
    root = version_2(tmp_path, 0)
    tree(root, {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {20 * (1 << 20)} kB\n"})
    tree(root, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})

    assert free_host_bytes(str(root)) == free


@pytest.mark.parametrize("cgroup", ["", "nonsense\n", "0::/../../outside\n", "0::/missing\n", "a:b\n\x00:::\n"])
def test_what_cannot_be_read_is_not_there(tmp_path: Path, cgroup: str) -> None:
    """No cgroup, an odd one, or one outside the container: nothing is known, and nothing fails."""
    assert read_host_memory(tree(tmp_path, {"proc/self/cgroup": cgroup})) == HostMemory()


def test_this_machine_can_be_read() -> None:
    """Whatever this machine has of cgroups, reading it raises nothing."""
    assert isinstance(read_host_memory(), HostMemory)


def test_a_kill_by_the_kernel_is_told_with_its_numbers(tmp_path: Path) -> None:
    """The count of the cgroup rose while the command ran: certain, with the limit and the peak."""
    before = read_host_memory(version_2(tmp_path / "before", 1))
    after = read_host_memory(version_2(tmp_path / "after", 2))

    notice = explain_kill(KILLED, before, after)

    assert notice is not None
    assert notice.is_oom
    assert "the kernel's OOM killer ended the command: 1 process of its cgroup" in notice.message
    assert "limit 8.0 GiB (`memory.max`)" in notice.message.replace("8.00", "8.0")
    assert "peak" in notice.message


def test_a_child_that_the_kernel_killed_is_told(tmp_path: Path) -> None:
    """A launcher that exits with 1 because the kernel ended its workers gets them counted."""
    before = read_host_memory(version_2(tmp_path / "before", 0))
    after = read_host_memory(version_2(tmp_path / "after", 2))

    notice = explain_kill(ExitStatus(1, 1, None), before, after)

    assert notice is not None
    assert "2 processes beneath the command" in notice.message
    assert explain_kill(ExitStatus(1, 0, None), before, after) is None


def test_a_kill_on_the_machine_is_only_probably_this_one() -> None:
    """Without a cgroup the machine's own count is told as what it is."""
    notice = explain_kill(KILLED, HostMemory(system_kills=1), HostMemory(system_kills=2))

    assert notice is not None
    assert not notice.is_oom
    assert "probably" in notice.message


@pytest.mark.parametrize("reading", [HostMemory(), HostMemory(cgroup_kills=4, system_kills=9)])
def test_a_kill_without_evidence_may_be_something_else(reading: HostMemory) -> None:
    """No counter rose, or there is none: it is not called out of memory."""
    notice = explain_kill(ExitStatus(1, 137, None), reading, reading)

    assert notice is not None
    assert not notice.is_oom
    assert "may be something else" in notice.message


def test_a_bus_error_points_to_shared_memory() -> None:
    """SIGBUS is what a full /dev/shm looks like; other signals are not explained."""
    notice = explain_kill(ExitStatus(1, None, 7), HostMemory(), HostMemory())

    assert notice is not None
    assert "/dev/shm" in notice.message  # noqa: S108 - a text
    assert explain_kill(ExitStatus(1, None, 11), HostMemory(), HostMemory()) is None
