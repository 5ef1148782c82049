"""The hook in a trial of `oomdoctor probe -- COMMAND`: it tells the probe what happens, as it happens.

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

# ruff: noqa: TID252 - where this folder lies is another program's business; the package has no other name
# ruff: noqa: PLC0415 - what is not needed yet is not imported yet

from __future__ import annotations

import atexit
import os
import sys

from .. import imports
from ..guard import guarded
from . import writes
from .channel import CHANNEL


def begin() -> None:
    """Watch this process from now on."""
    os.register_at_fork(after_in_child=guarded(CHANNEL.after_fork))
    guarded(writes.watch)()
    guarded(_watch_end)()
    imports.when_imported("multiprocessing.process", _watch_children)
    imports.when_imported("torch", _watch_torch)
    imports.when_imported("safetensors", writes.watch_safetensors)
    if os.environ.get("OOMDOCTOR_TRIAL_USES"):
        from .. import uses

        guarded(uses.begin)()


def _watch_end() -> None:
    begun = os.getpid()

    def end() -> None:
        if "torch" not in sys.modules and os.getpid() == begun:
            found = [name for name in ("tensorflow", "jax", "keras", "paddle", "mxnet") if name in sys.modules]
            CHANNEL.send({"event": "no_torch", "frameworks": found})

    atexit.register(guarded(end))


def _watch_children() -> None:
    from .. import children
    from . import ends

    children.watch(sys.modules["multiprocessing.process"], ends.child_ended)


def _watch_torch() -> None:
    from . import watching

    watching.watch(sys.modules["torch"])
    writes.watch_torch(sys.modules["torch"])
