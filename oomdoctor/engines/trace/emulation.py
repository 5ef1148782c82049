"""The emulated CUDA device: inside, torch sees one GPU, and operators on it only take memory.

Backward goes by the number that a node got when it was made, and every thread counts by itself: what a backward on a
GPU's thread makes is numbered from that thread's count. Made on the caller's, it would all come first in the next
backward, whose peak is another then. Source: `at::sequence_number`, and `Engine::thread_init`, engine.cpp.
"""

from __future__ import annotations

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.allocator.settings import Settings, rules_of, settings_from_environment
from oomdoctor.engines.trace.cuda_api import patch_cuda_api
from oomdoctor.engines.trace.device import EmulatedDevice
from oomdoctor.engines.trace.kernels.reductions import extreme_overrides
from oomdoctor.engines.trace.operators import autograd_overrides
from oomdoctor.engines.trace.plans import Kernels
from oomdoctor.engines.trace.refusals import refuse_compiled, refuse_unsupported
from oomdoctor.engines.trace.tensors import Patches, patch_pinning, patch_tensors
from oomdoctor.engines.trace.torch_internals import (
    AUTOGRAD_KEY,
    BACKEND_KEY,
    check_torch,
    engine_module,
    foreach_operators,
    has_modes,
    in_backward,
    install_guard,
    operator_named,
    single_threaded_backward,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.engines.catalogue import Card


_CREATES_GRAPH: Final = 2
"""Where the engine is told to: after the gradients and whether to keep the graph."""


def run_double_backward_on_thread(patches: Patches) -> None:
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
        with single_threaded_backward():
            return run(*args, **kwargs)

    for owner in (module, torch.autograd):
        patches.set(owner, "_engine_run_backward", choose)


_FACTORIES: Final = ("empty.memory_format", "empty_strided", "tril_indices", "triu_indices")
"""Operators that make tensors of no other tensor, and are told the device."""
_OWN_KERNELS: Final = (
    "native_layer_norm", "native_group_norm", "convolution", "convolution_backward", "addr", "_chunk_cat",
    "any.dims", "all.dims", "_fused_rms_norm", "_grouped_mm", "_to_copy",
)  # fmt: skip
"""Operators that CUDA has a kernel for, and C++ other means for devices without."""
_OWN_ABOVE_AUTOGRAD: Final = ("silu_backward", "mish_backward")
"""The same, where these other means stand above autograd."""

_LAZY_BITS = ("Conjugate", "Negative")
"""Dispatch keys of tensors that are to be read as their conjugate or negative."""


@contextmanager
def emulated_cuda(card: Card, settings: Settings | None = None) -> Iterator[EmulatedDevice]:
    """Let torch see `card` as its only CUDA device.

    The user's code runs unchanged inside: modules and tensors go to `cuda`, train, and take the memory that they would
    take; an allocation that does not fit raises `torch.OutOfMemoryError` with PyTorch's own text. What is read back
    from the device is zeros. Backward runs on the calling thread.

    Args:
        card: What the device looks like.
        settings: What the caching allocator is told; None for what the environment says.

    Raises:
        NoAnswerError: This torch lacks what is needed, or the environment asks for another allocator.
    """
    check_torch()
    install_guard()
    rules = rules_of(torch.__version__)
    device = EmulatedDevice(card, settings_from_environment(os.environ, rules) if settings is None else settings, rules)
    with ExitStack() as stack:
        patches = Patches(stack)
        _register(patches, device)
        patch_tensors(patches, device)
        patch_pinning(patches)
        patch_cuda_api(patches, device)
        refuse_compiled(patches)
        stack.enter_context(single_threaded_backward())
        run_double_backward_on_thread(patches)
        refuse_unsupported(patches)
        yield device


def _register(patches: Patches, device: EmulatedDevice) -> None:
    """Put our kernels where C++ looks for those of the device."""
    kernels = Kernels(device)
    fallback, own = _library(patches, "_"), _library(patches, "aten")
    fallback.fallback(kernels.run, BACKEND_KEY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a CUDA build has kernels that these go before
        for name in _FACTORIES:
            own.impl(name, kernels.kernel(operator_named(name)), "CUDA")
    known = [name for name in (*_OWN_KERNELS, *foreach_operators()) if operator_named(name) is not None]
    for name in (*known, *_OWN_ABOVE_AUTOGRAD):
        own.impl(name, kernels.kernel(operator_named(name)), BACKEND_KEY)
    for name in _OWN_ABOVE_AUTOGRAD:
        own.impl(name, kernels.kernel(operator_named(name)), AUTOGRAD_KEY)
    for key in _LAZY_BITS:  # a copy heeds the bit itself; to resolve it first would be to copy for ever
        own.impl("_copy_from", kernels.kernel(operator_named("_copy_from")), key)
    for name, function in extreme_overrides().items():
        own.impl(name, function, AUTOGRAD_KEY)
    for name, function in autograd_overrides(device).items():
        if operator_named(name) is None:
            continue
        own.impl(name, function, AUTOGRAD_KEY)
        own.impl(name, function, BACKEND_KEY)


def _library(patches: Patches, namespace: str) -> Any:  # noqa: ANN401 - a library of operators
    library: Any = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    patches.callback(library._destroy)  # noqa: SLF001 - no public way
    return library
