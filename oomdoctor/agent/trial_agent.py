"""Agent of a trial: it tells the parent what happens in a process of the command, as it happens.

The rules are those of the hook (see the package above): the standard library alone, nothing before torch is imported
but what has to be, nothing that the program could see, and no failure that leaves it. Nobody answers; when the probe
knows enough it kills the command.

    settings    what the probe asks for
    channel     the connection to the probe
    writes      what the program opens to write
    watching    begins once torch is imported
    device      begins once CUDA is initialised, and tells of the times that memory runs out
    steps       optimizer steps that count
    backward    where a backward begins and ends
    modes       `train()` and `eval()`
    batch       the shapes of the first batch
    draws       what a generator has drawn in an earlier trial, which `drawn` keeps
    phases      which phase it is, and the borders between them
    history     what the allocator did, from which `blocks` knows how much was allocated at each time
    peaks       the program's own resets of the peaks
    report      the last word of a process, and `ends` the ways to end
"""


# ruff: noqa: PLC0415 - what is not needed yet is not imported yet
# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from . import (
    file_writes,
    first_batch,
    imports,
    null_gpu,
    rng_cache,
    settings,
    training_hooks,
    trial_device,
    trial_report,
)
from .channel import CHANNEL
from .guard import guarded
from .phase_meter import PHASES


def begin() -> None:
    """Watch this process from now on."""
    os.register_at_fork(after_in_child=guarded(CHANNEL.after_fork))
    guarded(file_writes.watch)()
    guarded(_watch_end)()
    imports.when_imported("multiprocessing.process", _watch_children)
    imports.when_imported("torch", _watch_torch)
    imports.when_imported("safetensors", file_writes.watch_safetensors)
    if os.environ.get("OOMDOCTOR_TRIAL_USES"):
        from . import command_dependencies

        guarded(command_dependencies.record_dependencies)()


def _watch_end() -> None:
    begun = os.getpid()

    def end() -> None:
        if "torch" not in sys.modules and os.getpid() == begun:
            found = [name for name in ("tensorflow", "jax", "keras", "paddle", "mxnet") if name in sys.modules]
            CHANNEL.send({"event": "no_torch", "frameworks": found})

    atexit.register(guarded(end))


def _watch_children() -> None:
    from . import exception_hooks, trial_report

    exception_hooks.watch_children(sys.modules["multiprocessing.process"], trial_report.child_ended)


def _watch_torch() -> None:

    watch(sys.modules["torch"])
    file_writes.watch_torch(sys.modules["torch"])


def watch(torch: Any) -> None:
    """Tell that torch is there, and listen to what training does with it."""
    CHANNEL.begin_to_speak = guarded(lambda: _tell_start(torch))
    if not CHANNEL.quiet:
        CHANNEL.begin_to_speak()
    guarded(_describe_process)()
    guarded(training_hooks.watch_steps)(torch)
    guarded(training_hooks.watch_backward)(torch)
    guarded(training_hooks.watch_modes)(torch)
    guarded(first_batch.watch)(torch)
    guarded(rng_cache.watch)(torch)
    guarded(null_gpu.wait_for_backward_at_exit)()
    guarded(null_gpu.patch_ranks)()
    guarded(trial_report.watch_end)(torch)
    os.register_at_fork(after_in_child=guarded(_after_fork))
    torch.cuda._lazy_call(guarded(lambda: trial_device.begin_with_cuda(torch)))  # noqa: SLF001 - at once where CUDA is initialised


def _tell_start(torch: Any) -> None:
    CHANNEL.send({
        "event": "started",
        "rank": _number_from("RANK", 0),
        "world_size": _number_from("WORLD_SIZE", 1),
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
    })  # fmt: skip


def _number_from(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else otherwise


def _describe_process() -> None:
    if settings.DESCRIBE:
        from .forking import admission

        admission.at_torch_import()


def _after_fork() -> None:
    """A forked process has its own steps and its own end."""
    PHASES.reset()
    training_hooks.STEPS.reset()
    trial_device.DEVICE.reset()
    trial_report.reset_end()
