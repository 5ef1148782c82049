"""The host's memory: what is free, also in a control group, and what a lone rank's offloaded part will take of it.

Control groups of Linux limit the memory of containers and of services. Source: the kernel's documents of cgroup-v1's
memory controller and of cgroup-v2.

Memory of a null GPU is address space and costs nothing; the host's is real. What a program keeps there of a model that
no machine like this one would train ends in a process that the system kills, so that it is refused before: weights and
gradients where FSDP2 shards with `CPUOffloadPolicy`, optimizer states where an optimizer gets parameters on the CPU,
and all three where DeepSpeed offloads the optimizer. Estimates are the least that it can be.
"""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import functools
import math
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from . import imports
from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


_STATES = {
    **dict.fromkeys(("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adadelta", "Rprop", "DeepSpeedCPUAdam"), 2),
    **dict.fromkeys(("Adagrad", "RMSprop", "Muon", "DeepSpeedCPUAdagrad", "DeepSpeedCPULion"), 1),
}
"""Tensors as large as a parameter that a step keeps of it, by the optimizer's class or one that it inherits from."""
_DEEPSPEED_BYTES = 16
"""Bytes a parameter that DeepSpeed keeps on the host: weight, gradient and the two states of Adam, in fp32."""


class HostMemoryError(RuntimeError):
    """A rank would keep more on the host than it has free; the text says what to do after its semicolon."""


def free_host_bytes(root: str = "") -> int | None:
    """Return the host's free memory, or what a container's limit leaves of it; None where the system does not say.

    Args:
        root: Where `/proc` and `/sys` lie.
    """
    lines = (line.split() for line in text_of(f"{root}/proc/meminfo").splitlines())
    available = next((int(words[1]) << 10 for words in lines if words[0] == "MemAvailable:"), None)
    return min((free for free in (available, bytes_left_by_limits(root)) if free is not None), default=None)


def watch() -> None:
    """Look at what is offloaded, from now on."""
    imports.when_imported("torch.distributed.fsdp._fully_shard._fsdp_param", guarded(_watch_fsdp))
    imports.when_imported("torch.optim.optimizer", guarded(_watch_optimizers))
    imports.when_imported("deepspeed.runtime.engine", guarded(_watch_deepspeed))


_coming: list[int] = [0]
"""Bytes of weights that FSDP2 made on the meta device and wants on the CPU."""


def _watch_fsdp() -> None:
    after_init(sys.modules["torch.distributed.fsdp._fully_shard._fsdp_param"].FSDPParam, _note_shard)


def _watch_optimizers() -> None:
    after_init(sys.modules["torch.optim.optimizer"].Optimizer, _check_optimizer)


def after_init(kind: Any, check: Any) -> None:
    """Have objects of a class looked at once they are made; an error that `check` returns is raised."""
    make = kind.__init__

    @functools.wraps(make)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        problem = guarded(check)(self)
        if problem is not None:
            raise problem

    kind.__init__ = init


def _note_shard(parameter: Any) -> HostMemoryError | None:
    """Count a part of a parameter that FSDP2 has just made, where it goes to the CPU."""
    shard = parameter._sharded_param_data  # noqa: SLF001 - no public way
    if not (parameter.offload_to_cpu and shard.is_meta):
        return None
    _coming[0] += shard.numel() * shard.element_size()
    return _lacking({"weights": _coming[0], "gradients": _coming[0]}, "`CPUOffloadPolicy`")


def _check_optimizer(optimizer: Any) -> HostMemoryError | None:
    """Count what the steps of an optimizer will keep of parameters on the CPU."""
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    local = [getattr(parameter, "_local_tensor", parameter) for parameter in given]
    size = sum(_host_bytes(tensor) for tensor in local)
    without_values = sum(_host_bytes(tensor) for tensor in local if not tensor.is_pinned())  # pinning takes the memory
    states = _states_of(optimizer)
    told = {
        "weights": min(_coming[0], without_values),
        "gradients": size,
        f"states of {type(optimizer).__name__}": states * size,
    }
    return _lacking(told, f"{len(given)} parameters on the CPU") if size else None


def _host_bytes(tensor: Any) -> int:
    return tensor.numel() * tensor.element_size() if tensor.device.type == "cpu" else 0


def _states_of(optimizer: Any) -> int:
    names = [kind.__name__ for kind in type(optimizer).__mro__]
    known = next((_STATES[name] for name in names if name in _STATES), 0)
    return known or int("SGD" in names and any(group.get("momentum") for group in optimizer.param_groups))


def _watch_deepspeed() -> None:
    kind: Any = sys.modules["deepspeed.runtime.engine"].DeepSpeedEngine
    configure = kind._configure_zero_optimizer  # noqa: SLF001 - no public way

    @functools.wraps(configure)
    def configure_zero_optimizer(self: Any, *arguments: Any, **named: Any) -> Any:
        problem = guarded(_check_deepspeed)(self)
        if problem is not None:
            raise problem
        return configure(self, *arguments, **named)

    kind._configure_zero_optimizer = configure_zero_optimizer  # noqa: SLF001


def _check_deepspeed(engine: Any) -> HostMemoryError | None:
    """Count this rank's part of what DeepSpeed is about to put on the host."""
    if not engine.zero_cpu_offload():
        return None
    whole = _elements(engine.module.parameters())
    part = math.ceil(whole * engine.zero_partial_offload() / engine.dp_world_size)
    told = {"fp32 weights, gradients and optimizer states": part * _DEEPSPEED_BYTES}
    return _lacking(told, "`offload_optimizer` of DeepSpeed")


def _elements(parameters: Iterable[Any]) -> int:
    return sum(getattr(each, "ds_numel", None) or each.numel() for each in parameters if each.requires_grad)


def _lacking(told: dict[str, int], what: str) -> HostMemoryError | None:
    """Return the error that refuses what the host has no room for; None where it has."""
    needed, free = sum(told.values()), free_host_bytes()
    if free is None or needed <= free:
        return None
    rank, world = os.environ.get("RANK", "0"), int(os.environ.get("WORLD_SIZE", "1"))
    parts = ", ".join(f"{_gib(size)} of {name}" for name, size in told.items() if size)
    return HostMemoryError(
        f"rank {rank} of {world} would take at least {_gib(needed)} more of this host's memory, which is real beside a "
        f"null GPU, and {_gib(free)} are free: {what} ({parts}); ask on a host with that much, or about a world of "
        f"{math.ceil(needed / free)} times as many ranks to share it, or without the offloading for what fits then"
    )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):,.2f} GiB"
