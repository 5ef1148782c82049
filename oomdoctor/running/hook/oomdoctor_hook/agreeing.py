"""What ranks tell each other about their program, on a null GPU.

Ranks that train together exchange more than gradients: how many parameters each has, how long its batch is, a Python
object, that it has got as far as a barrier. NCCL carries this through the GPU, and from a null GPU come zeros. What is
the program's own has to be right, or the program goes another way than on a GPU. So objects and barriers go through the
store that the ranks have met in (`meeting`), and comparisons that cannot be made are left out.

Where ranks talk through the CPU, all of that is real and nothing is changed.
"""

# ruff: noqa: ANN401, PLC0415 - torch and what programs hand over have no type here; not needed on a real GPU

from __future__ import annotations

import ctypes
import functools
import io
import os
import sys
from typing import TYPE_CHECKING, Any

from . import imports
from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable


def watch() -> None:
    """Begin, once torch has been imported; on a real GPU there is nothing to do."""
    if "OOMDOCTOR_NULL_NAME" not in os.environ:
        return
    imports.when_imported("torch.distributed.distributed_c10d", guarded(_watch_torch))
    imports.when_imported("torch.distributed.optim.zero_redundancy_optimizer", guarded(_watch_zero))
    imports.when_imported("accelerate.utils.operations", guarded(_watch_operations))
    imports.when_imported("accelerate.utils.random", guarded(_watch_random))


def _watch_torch() -> None:
    from . import meeting

    c10d = sys.modules["torch.distributed.distributed_c10d"]
    for name, stand_in in meeting.stand_ins(sys.modules["torch"], c10d).items():
        _replace(c10d, name, stand_in)
    _replace(sys.modules["torch.distributed"], "_verify_params_across_processes", _verify_nothing)
    _keep_buckets()


def _watch_zero() -> None:
    _replace(sys.modules["torch.distributed.optim.zero_redundancy_optimizer"], "_broadcast_object", _broadcast_object)


def _watch_operations() -> None:
    _replace(sys.modules["accelerate.utils.operations"], "pad_across_processes", _pad_nothing)


def _watch_random() -> None:
    _replace(sys.modules["accelerate.utils.random"], "synchronize_rng_state", _send_as_object)


def _verify_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    """DistributedDataParallel compares the number and the shapes of the ranks' parameters, and would read zeros."""

    def verify(group: Any, tensors: Any, logger: Any = None) -> Any:
        if tensors and tensors[0].is_cuda:
            return None
        return original(group, tensors, logger)

    return verify


def _keep_buckets() -> None:
    """DistributedDataParallel sends the layout of its buckets through the GPU, and would make buckets of zeros.

    Each rank then has the layout that it found itself, or what rank 0 sent through the CPU.
    """
    reducer: Any = sys.modules["torch.distributed"].Reducer
    original = reducer._rebuild_buckets  # noqa: SLF001
    keep = ctypes.CDLL(None).oomdoctor_null_keep_copies

    @functools.wraps(original)
    def rebuild(self: Any) -> Any:
        keep(1)
        try:
            return original(self)
        finally:
            keep(0)

    reducer._rebuild_buckets = rebuild  # noqa: SLF001


def _broadcast_object(_original: Callable[..., Any]) -> Callable[..., Any]:
    """ZeroRedundancyOptimizer collects its state with a function of its own, and would read a length of zero."""
    torch: Any = sys.modules["torch"]

    def broadcast(obj: Any, src_rank: int, group: Any = None, device: Any = "cpu") -> Any:
        buffer = io.BytesIO()
        torch.save(obj, buffer)
        sent = [buffer.getvalue()]
        torch.distributed.broadcast_object_list(sent, src_rank, group=group)
        if torch.distributed.get_rank() == src_rank:
            return obj
        return torch.load(io.BytesIO(sent[0]), map_location=device, weights_only=False)

    return broadcast


def _pad_nothing(_original: Callable[..., Any]) -> Callable[..., Any]:
    """Accelerate asks how long each rank's tensor is and pads to the longest; here all are taken to be like our own."""

    def pad(tensor: Any, *_arguments: Any, **_named: Any) -> Any:
        return tensor

    return pad


def _send_as_object(original: Callable[..., Any]) -> Callable[..., Any]:
    """Accelerate sends a random generator's state through the GPU, and would give the ranks one of zeros."""
    torch: Any = sys.modules["torch"]

    def synchronize(rng_type: Any = None, generator: Any = None) -> Any:
        functions = {
            "torch": (torch.get_rng_state, torch.set_rng_state),
            "cuda": (torch.cuda.get_rng_state, torch.cuda.set_rng_state),
            "generator": (getattr(generator, "get_state", None), getattr(generator, "set_state", None)),
        }
        get, put = functions.get(str(getattr(rng_type, "value", rng_type)), (None, None))
        if get is None or put is None or not torch.distributed.is_initialized():
            return original(rng_type, generator)
        state = [get()]
        torch.distributed.broadcast_object_list(state, 0)
        put(state[0])
        return None

    return synchronize


def _replace(module: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put what `make` makes of a function in its place, also where a module of the same package has imported it."""
    original = getattr(module, name)
    replacement = functools.wraps(original)(make(original))
    package = module.__name__.partition(".")[0]
    for other, found in list(sys.modules.items()):
        if other.partition(".")[0] == package and vars(found).get(name) is original:
            setattr(found, name, replacement)
