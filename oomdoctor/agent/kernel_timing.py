"""Timing of kernels by PyTorch's compiler, which takes memory in the first steps.

Where Inductor has several configurations of a kernel, it times them at the kernel's first call: beside all that the
step holds, and with a buffer as large as the card's L2 cache, by which it empties that cache. On a small card this is
what decides whether a compiled model fits. While it compiles, it times matrix multiplications with and without padded
operands. The fastest are kept in files, so that a second run takes less.

Private names of PyTorch, tested with 2.6 and 2.15: `InductorBenchmarker.benchmark_gpu`, `autotune_local_cache` of
Inductor's settings, and `LocalCache` of its `codecache`. Where they have other names, nothing is told, and choices are
kept.
"""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from . import imports
from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

_BENCHMARKING, _SETTINGS = "torch._inductor.runtime.benchmarking", "torch._inductor.config"
_CACHES = "torch._inductor.codecache"


class _State:
    """Notes of one trial.

    Attributes:
        peak_bytes: The most bytes in live tensors that a timing came to.
        has_run_out: Whether a timing ran out of memory.
        choices: What Inductor chose by time while it compiled, by its own keys; kept on a null GPU alone.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self.has_run_out = False
        self.choices: dict[str, Any] = {}


_STATE = _State()


def watch() -> None:
    """Note what timing takes, once Inductor is imported."""
    imports.when_imported(_BENCHMARKING, guarded(_patch))


def time_anew() -> None:
    """Have each process, and each trial of a worker, time what Inductor chooses by time; for a null GPU.

    A first training run has no choices of earlier ones, nor what a null GPU, where all take the same time, chose.
    """
    imports.when_imported(_SETTINGS, guarded(_keep_no_choices))
    imports.when_imported(_CACHES, guarded(_keep_choices_of_a_trial))


def begin_trial() -> None:
    """Forget what was noted."""
    _STATE.peak_bytes, _STATE.has_run_out, _STATE.choices = 0, False, {}


def limiting_bytes(peak_allocated_bytes: int | None, *, ran_out: bool) -> int:
    """Return the bytes of the buffer where a timing ran out, or where memory was at its peak in one; else 0.

    Args:
        peak_allocated_bytes: Most bytes in live tensors since the trial began; None where that is not known.
        ran_out: Whether memory ran out, in a timing or not.
    """
    is_limiting = _STATE.has_run_out if ran_out else 0 < _STATE.peak_bytes == peak_allocated_bytes
    if not is_limiting:
        return 0
    return int(sys.modules["torch"].cuda.get_device_properties(0).L2_cache_size)


def _keep_no_choices() -> None:
    """Read no file of the fastest configuration of a kernel, and write none."""
    settings: Any = sys.modules[_SETTINGS]
    if hasattr(settings, "autotune_local_cache"):
        settings.autotune_local_cache = False


def _keep_choices_of_a_trial() -> None:
    """Keep what is chosen while a graph is compiled in memory, and no longer than a trial."""
    local: Any = getattr(sys.modules[_CACHES], "LocalCache", None)
    if hasattr(local, "get_local_cache") and hasattr(local, "update_local_cache"):
        local.get_local_cache = lambda _: _STATE.choices
        local.update_local_cache = lambda _, choices: _STATE.choices.update(choices)


def _patch() -> None:
    benchmarker: Any = getattr(sys.modules[_BENCHMARKING], "InductorBenchmarker", None)
    if benchmarker is not None:  # which PyTorch 2.6 has under another name
        benchmarker.benchmark_gpu = _noting(benchmarker.benchmark_gpu)


def _noting(time_kernel: Callable[..., Any]) -> Callable[..., Any]:
    cuda = sys.modules["torch"].cuda

    @functools.wraps(time_kernel)
    def benchmark_gpu(*args: Any, **options: Any) -> Any:
        before = cuda.max_memory_allocated()
        try:
            return time_kernel(*args, **options)
        except cuda.OutOfMemoryError:
            _STATE.has_run_out = True
            raise
        finally:
            after = cuda.max_memory_allocated()
            if after > before:
                _STATE.peak_bytes = max(_STATE.peak_bytes, after)

    return benchmark_gpu
