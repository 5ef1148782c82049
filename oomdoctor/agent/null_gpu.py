"""Null GPU: its counters, the end of backward's threads, and library functions that would read zeros from it.

Ranks that train together exchange more than gradients: how many parameters each has, how long its batch is, a Python
object, that it has got as far as a barrier. NCCL carries this through the GPU, and from a null GPU come zeros. What is
the program's own has to be right, or the program goes another way than on a GPU. So objects and barriers go through the
store that the ranks have met in (`object_collectives`), and comparisons that cannot be made are left out. Where ranks
talk through the CPU, all of that is real and nothing is changed. Nor may a library refuse the zeros themselves.
"""

# ruff: noqa: ANN401, PLC0415 - torch and what programs hand over have no type here; not needed on a real GPU

from __future__ import annotations

import atexit
import ctypes
import functools
import io
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import host_memory, imports, kernel_timing, known_values, lone_rank, pipelines, shard_sizes, unknown_reads
from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

_THREADS = Path("/proc/self/task")
_NAME = "(pt_autograd"
_LONGEST_SECONDS = 2.0
_PAUSE_SECONDS = 0.001
_QUIET_LOOKS = 2


# --- what it has noted: the library that answers for it is loaded into the process -----------------------------------


def _is_null_gpu() -> bool:
    """Return whether this process has one; a worker that was forked learns it after this was imported."""
    return "OOMDOCTOR_NULL_NAME" in os.environ


def _library() -> Any:
    return ctypes.CDLL(None) if _is_null_gpu() else None


def zeros_read() -> int:
    """Return how often data was read back from it, each time zeros; 0 where there is none."""
    return _count("oomdoctor_null_reads")


def is_in_workspace() -> bool:
    """Return whether this thread asks for a workspace without which PyTorch can do; never on a real GPU."""
    function = getattr(_library(), "oomdoctor_null_is_in_workspace", None)
    if function is None:
        return False
    function.restype = ctypes.c_bool
    return bool(function())


def workspaces_given_up() -> int:
    """Return how often there was no room for such a workspace, each of which the allocator counts as an OOM."""
    return _count("oomdoctor_null_workspaces_given_up")


def workspace_retries() -> int:
    """Return how often the allocator gave back its cache for such a workspace, those given up included."""
    return _count("oomdoctor_null_workspace_retries")


def workspace_bytes() -> int:
    """Return the bytes of the largest workspace that a convolution took; 0 where there is none, or on a real GPU."""
    return _count("oomdoctor_null_workspace_bytes")


def _count(name: str) -> int:
    function = getattr(_library(), name, None)
    if function is None:
        return 0
    function.restype = ctypes.c_uint64
    return int(function())


def unknown_calls() -> list[str]:
    """Return the functions that were called and that it does not serve."""
    function = getattr(_library(), "oomdoctor_null_unknown_calls", None)
    if function is None:
        return []
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    size = int(function(None, 0)) + 1
    buffer = ctypes.create_string_buffer(size)
    function(buffer, size)
    return buffer.value.decode(errors="replace").splitlines()


ASSUMPTIONS = ("cuda-graphs", "cufft", "cusolver")
"""Memory that it counts by a rule, or not at all, in the order of the bits by which it tells so."""


def assumptions() -> tuple[str, ...]:
    """Return what of `ASSUMPTIONS` this process has used; nothing where there is none."""
    bits = _count("oomdoctor_null_assumptions")
    return tuple(name for bit, name in enumerate(ASSUMPTIONS) if bits >> bit & 1)


def communicators() -> tuple[int, ...]:
    """Return the number of ranks of each NCCL communicator that was made, oldest first."""
    function = getattr(_library(), "oomdoctor_null_communicators", None)
    if function is None:
        return ()
    function.restype = ctypes.c_uint
    ranks = (ctypes.c_int * int(function(None, 0)))()
    function(ranks, ctypes.c_uint(len(ranks)))
    return tuple(ranks)


# --- the end of a process --------------------------------------------------------------------------------------------


def wait_for_backward_at_exit() -> None:
    """Let PyTorch's backward threads come to rest before Python ends; registered early, so that it runs late.

    After the last backward its thread still lets go of a few Python objects. Where Python has begun to end by then, it
    ends that thread (up to Python 3.13, inside C++ code that cannot be left that way) and the process dies of SIGABRT.
    On a GPU the last steps of a program wait for the device, which gives the thread its time; on a null GPU nothing
    waits.
    """
    if _is_null_gpu():
        atexit.register(guarded(_wait_for_backward))


def _wait_for_backward() -> None:
    deadline = time.monotonic() + _LONGEST_SECONDS
    looks = 0
    while looks < _QUIET_LOOKS and time.monotonic() < deadline:
        states = _thread_states()
        if not states:
            return
        time.sleep(_PAUSE_SECONDS)  # a thread that waits for Python's lock gets it now
        looks = looks + 1 if set(_thread_states()) <= {"S"} else 0


def _thread_states() -> list[str]:
    """Return the kernel's letter for each backward thread: S sleeps, R has work to do or waits for a processor."""
    found = []
    for thread in _THREADS.iterdir():
        try:
            before, _, after = (thread / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:  # it has ended
            continue
        if _NAME in before:
            found.append(after.split()[0])
    return found


# --- libraries that read what a GPU computed -------------------------------------------------------------------------


def prepare() -> None:
    """Do what takes `begin` longest, in a process that forks others, where it has the library of the null GPU."""
    if hasattr(ctypes.CDLL(None), "oomdoctor_null_reads"):
        guarded(known_values.install)()


def begin() -> None:
    """Keep the values that are known, note where others are read, and patch library functions that would read zeros.

    It begins once torch is imported; on a real GPU there is nothing to do.
    """
    if not _is_null_gpu():
        return
    guarded(known_values.install)()
    guarded(unknown_reads.begin)()
    guarded(kernel_timing.time_anew)()
    imports.when_imported("torch.backends.cudnn", guarded(_accept_old_cards))
    imports.when_imported("torch.distributed.distributed_c10d", guarded(_patch_torch))
    if lone_rank.is_lone():
        lone_rank.refuse_launches()
        host_memory.watch()
        shard_sizes.watch()
        pipelines.begin()
    for module, name, make in (
        ("torch.distributed.optim.zero_redundancy_optimizer", "_broadcast_object", _broadcast_object),
        ("accelerate.utils.operations", "pad_across_processes", _pad_nothing),
        ("accelerate.utils.random", "synchronize_rng_state", _send_as_object),
    ):
        imports.when_imported(module, functools.partial(guarded(_replace), module, name, make))


def _accept_old_cards() -> None:
    """Let recurrent layers run on a card that torch's cuDNN is too new for, as the other layers do.

    The answer says itself that this torch would not run there. PyTorch, from 2.9 on, looks for such a card once.
    """
    names = sys.modules["torch.backends.cudnn"].is_acceptable.__globals__
    original = names["_init"]

    @functools.wraps(original)
    def init() -> Any:
        try:
            return original()
        except RuntimeError as error:
            if "devices with SM <" not in str(error):
                raise
            return original()

    names["_init"] = init


def _patch_torch() -> None:
    from . import object_collectives

    c10d = sys.modules["torch.distributed.distributed_c10d"]
    if lone_rank.is_lone():
        lone_rank.patch_c10d(c10d)
        for name, replacement in lone_rank.agreed_values(c10d).items():
            _replace(c10d.__name__, name, replacement)
    for name, replacement in object_collectives.replacements(sys.modules["torch"], c10d).items():
        _replace(c10d.__name__, name, replacement)
    _replace("torch.distributed", "_verify_params_across_processes", _verify_nothing)
    _keep_buckets()
    _tell_sizes_of_splits(c10d)


def _verify_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    """DistributedDataParallel compares the number and the shapes of the ranks' parameters, and would read zeros."""

    def verify(group: Any, tensors: Any, logger: Any = None) -> Any:
        if tensors and tensors[0].is_cuda:
            return None
        return original(group, tensors, logger)

    return verify


def _tell_sizes_of_splits(c10d: Any) -> None:
    """NCCL counts the ranks of a part of a communicator by asking them; those of a null GPU are never asked."""
    tell = ctypes.CDLL(None).oomdoctor_null_split_size
    tell.argtypes = [ctypes.c_int, ctypes.c_int]
    color_of, process_group = c10d._process_group_color, sys.modules["torch.distributed"].ProcessGroup  # noqa: SLF001
    split = getattr(process_group, "split_group", None)

    @functools.wraps(color_of)
    def color(ranks: Any) -> int:
        found = int(color_of(ranks))
        tell(found, len(ranks))
        return found

    c10d._process_group_color = color  # noqa: SLF001
    if split is None:
        return

    @functools.wraps(split)
    def split_group(self: Any, ranks: Any, *arguments: Any, **named: Any) -> Any:
        tell(-1, len(ranks))
        try:
            return split(self, ranks, *arguments, **named)
        finally:
            tell(-1, 0)

    process_group.split_group = split_group


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


def _replace(module: str, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put what `make` makes of a function in its place, also where a module of the same package has imported it."""
    original = getattr(sys.modules[module], name)
    replacement = functools.wraps(original)(make(original))
    package = module.partition(".")[0]
    for other, found in list(sys.modules.items()):
        if other.partition(".")[0] == package and vars(found).get(name) is original:
            setattr(found, name, replacement)
