"""Watch the device of a trial: what CUDA shows, and each time that memory runs out.

Nothing here initialises CUDA: what has to wait for it is queued with torch, which runs it when the program gets there.
"""


# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import os
from typing import Any

from . import phase_meter, run_agent, training_hooks
from .channel import CHANNEL
from .guard import guarded
from .phase_meter import HISTORY, PHASES

_MOST_OOMS = 16


class DeviceState:
    """What is known of the device that this process uses.

    Attributes:
        is_begun: Whether CUDA has been initialised.
        ooms: How often memory ran out.
        failed: The iterations and phases in which it did.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin again, as a process does that was forked."""
        self.is_begun = False
        self.ooms = 0
        self.failed: set[tuple[int, str]] = set()


DEVICE = DeviceState()


def begin_with_cuda(torch: Any) -> None:
    """Begin with a CUDA that has just been initialised."""
    CHANNEL.speak()
    DEVICE.is_begun = True
    index = guarded(_device_index)(torch) or 0
    guarded(_tell_device)(torch, index)
    guarded(run_agent.limit_memory)(torch)
    guarded(phase_meter.watch_peak_resets)(torch)
    guarded(HISTORY.begin)(torch, index)
    torch._C._cuda_attach_out_of_memory_observer(_oom_observer(torch))  # noqa: SLF001


def _device_index(torch: Any) -> int:
    """The device that a process will use, which is not asked of others: a question makes a context on a device."""
    local_rank = os.environ.get("LOCAL_RANK", "")
    if local_rank.isdigit() and int(local_rank) < torch.cuda.device_count():
        return int(local_rank)
    return int(torch.cuda.current_device())


def _tell_device(torch: Any, index: int) -> None:
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    free, total = torch.cuda.mem_get_info(index)
    CHANNEL.send({
        "event": "device",
        "index": index,
        "name": properties.name,
        "compute_capability": ".".join(map(str, capability)),
        "has_kernels": _has_kernels(torch.cuda.get_arch_list(), capability),
        "total_bytes": total,
        "free_bytes": free,
    })  # fmt: skip


def _has_kernels(architectures: list[str], capability: tuple[int, int]) -> bool:
    """Whether this torch can run on such a card: kernels for it, or intermediate code that the driver compiles."""
    for name in architectures:
        kind, _, number = name.rstrip("af").partition("_")
        built_for = divmod(int(number), 10)
        if built_for <= capability and (kind == "compute" or built_for[0] == capability[0]):
            return True
    return False


def _oom_observer(torch: Any) -> Any:
    """Make what the allocator calls before it raises."""

    def observe(_device: int, tried: int, total: int, free: int) -> None:
        try:
            DEVICE.ooms += 1
            if DEVICE.ooms <= _MOST_OOMS:
                _tell_oom(torch, tried, total, free)
        except BaseException:  # noqa: BLE001, S110 - from here an error would go through C++ code that expects none
            pass

    return observe


def _tell_oom(torch: Any, tried: int, total: int, free: int) -> None:
    phase = PHASES.named_now(has_gradients=torch.is_grad_enabled())
    DEVICE.failed.add((PHASES.iteration, phase))
    CHANNEL.send({
        "event": "oom",
        "tried_bytes": tried,
        "total_bytes": total,
        "free_bytes": free,
        "phase": phase,
        "iteration": PHASES.iteration,
        "steps": training_hooks.STEPS.done,
        "count": DEVICE.ooms,
    })  # fmt: skip
