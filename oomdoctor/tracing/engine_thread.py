"""Backward with `create_graph=True` runs on a thread of its own, as autograd's engine has one for each GPU.

Backward goes by the number that a node got when it was made, and every thread counts by itself: what a backward on a
GPU's thread makes is numbered from that thread's count. Made on the caller's, it would all come first in the next
backward, whose peak is another then. Source: `at::sequence_number`, and `Engine::thread_init`, engine.cpp.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.tracing.private import engine_module, has_modes, in_backward, without_threads

if TYPE_CHECKING:
    from oomdoctor.tracing.patches import Patches

_CREATES_GRAPH: Final = 2
"""Where the engine is told to: after the gradients and whether to keep the graph."""


def run_double_backward_apart(patches: Patches) -> None:
    """Lend the engine the thread."""
    module = engine_module()
    run = module._engine_run_backward  # noqa: SLF001 - see `private`
    thread = ThreadPoolExecutor(1, "oomdoctor-engine")
    patches.callback(thread.shutdown)

    def choose(outputs: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if not (len(args) > _CREATES_GRAPH and args[_CREATES_GRAPH]) or in_backward() or has_modes():
            return run(outputs, *args, **kwargs)
        return thread.submit(apart, torch.is_autocast_enabled("cuda"), outputs, *args, **kwargs).result()

    def apart(autocasts: bool, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, FBT001
        # the engine hands its thread whether autocast is on, and not to which type
        torch.set_autocast_enabled("cuda", autocasts)
        with without_threads():
            return run(*args, **kwargs)

    for owner in (module, torch.autograd):
        patches.set(owner, "_engine_run_backward", choose)
