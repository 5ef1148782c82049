"""The emulated CUDA device: inside, torch sees one GPU, and operators on it only allocate memory.

A backward with `create_graph=True` runs on a thread of its own, as autograd's engine has one for each GPU. A backward
orders nodes by the number that each got when it was made, and every thread counts by itself. Nodes made on the caller's
thread would all come first in the next backward, which then has another peak. Source: `at::sequence_number`, and
`Engine::thread_init`, engine.cpp.
"""

from __future__ import annotations

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.allocator.settings import AllocatorSettings, rules_of, settings_from_environment
from oomdoctor.engines.trace import view_gradients
from oomdoctor.engines.trace.cuda_api import patch_cuda_api
from oomdoctor.engines.trace.device import EmulatedDevice
from oomdoctor.engines.trace.kernels import reductions
from oomdoctor.engines.trace.operators import autograd_overrides
from oomdoctor.engines.trace.plans import Kernels
from oomdoctor.engines.trace.refusals import refuse_compiled, refuse_unsupported
from oomdoctor.engines.trace.storages import patch_storages
from oomdoctor.engines.trace.tensor_types import errors_as_on_cuda, patch_tensor_types
from oomdoctor.engines.trace.tensors import (
    Patches,
    patch_forward_mode,
    patch_pinning,
    patch_tensors,
    patch_transforms,
)
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
    from collections.abc import Callable, Iterator

    from oomdoctor.engines.catalogue import Card


_CREATES_GRAPH: Final = 2
"""Position of `create_graph` in the engine's arguments."""


def patch_engine(patches: Patches) -> None:
    """Patch autograd's engine: a thread of its own for `create_graph=True`, and the types of CUDA in errors."""
    module = engine_module()
    run = _leaving_nothing(module._engine_run_backward)  # noqa: SLF001 - see `torch_internals`
    thread = ThreadPoolExecutor(1, "oomdoctor-engine")
    patches.callback(thread.shutdown)

    def choose(outputs: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with errors_as_on_cuda():  # a decorator would leave a frame of `contextlib` among the program's
            if not (len(args) > _CREATES_GRAPH and args[_CREATES_GRAPH]) or in_backward() or has_modes():
                return run(outputs, *args, **kwargs)
            autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
            return thread.submit(run_on_thread, autocast, outputs, *args, **kwargs).result()

    def run_on_thread(autocast: tuple[bool, torch.dtype], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        # the engine passes to its thread whether autocast is on, and its type
        torch.set_autocast_enabled("cuda", autocast[0])
        torch.set_autocast_dtype("cuda", autocast[1])
        with single_threaded_backward():
            return run(*args, **kwargs)

    for owner in (module, torch.autograd):
        patches.set(owner, "_engine_run_backward", choose)


def _leaving_nothing(run: Callable[..., Any]) -> Callable[..., Any]:
    """Let a backward that fails give back what waits in its queue, as the thread of a GPU does.

    The queue of a calling thread is cleared where its next backward begins.
    """

    def run_or_clear(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the engine
        try:
            return run(*args, **kwargs)
        except BaseException:
            if not in_backward():
                torch.autograd.backward(torch.zeros((), device="cpu", requires_grad=True))
            raise

    return run_or_clear


_FACTORIES: Final = ("empty.memory_format", "empty_strided", "_efficientzerotensor", "tril_indices", "triu_indices")
"""Operators that make tensors from no other tensor, on a given device."""
_OWN_KERNELS: Final = (
    "native_layer_norm", "native_group_norm", "convolution", "convolution_backward", "addr", "_chunk_cat",
    "any.dims", "all.dims", "_fused_rms_norm", "_grouped_mm", "_to_copy", "_linalg_check_errors",
)  # fmt: skip
"""Operators for which CUDA has a kernel, and which C++ composes of others for devices without one."""
_OWN_ABOVE_AUTOGRAD: Final = ("silu_backward", "mish_backward")
"""Such operators that C++ composes above autograd."""

_LAZY_BITS = ("Conjugate", "Negative")
"""Dispatch keys of tensors that are read as their conjugate or negative."""


@contextmanager
def emulated_cuda(card: Card, settings: AllocatorSettings | None = None) -> Iterator[EmulatedDevice]:
    """Let torch see `card` as its only CUDA device.

    The user's code runs unchanged inside: modules and tensors go to `cuda`, train, and allocate as on that card; an
    allocation that does not fit raises `torch.OutOfMemoryError` with PyTorch's own text. Data read from the device is
    zeros. Backward runs on the calling thread.

    Args:
        card: The card that the device has.
        settings: Settings of the caching allocator; None for those of the environment.

    Raises:
        NoAnswerError: This torch lacks a name that is needed, or the environment asks for another allocator.
    """
    check_torch()
    install_guard()
    rules = rules_of(torch.__version__)
    device = EmulatedDevice(card, settings_from_environment(os.environ, rules) if settings is None else settings, rules)
    with ExitStack() as stack:
        patches = Patches(stack)
        patch_forward_mode(patches)
        patch_transforms(patches)
        _register(patches, device)
        patch_tensors(patches, device)
        patch_tensor_types(patches)
        patch_storages(patches, device)
        patch_pinning(patches)
        patch_cuda_api(patches, device)
        refuse_compiled(patches)
        stack.enter_context(single_threaded_backward())
        patch_engine(patches)
        refuse_unsupported(patches)
        yield device


def _register(patches: Patches, device: EmulatedDevice) -> None:
    """Register our kernels for the keys of the emulated device."""
    kernels = Kernels(device)
    fallback, own = _library(patches, "_"), _library(patches, "aten")
    fallback.fallback(kernels.run, BACKEND_KEY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a CUDA build has kernels that these replace
        for name in _FACTORIES:
            own.impl(name, kernels.kernel(operator_named(name)), "CUDA")
    known = [name for name in (*_OWN_KERNELS, *foreach_operators()) if operator_named(name) is not None]
    for name in (*known, *_OWN_ABOVE_AUTOGRAD):
        own.impl(name, kernels.kernel(operator_named(name)), BACKEND_KEY)
    for name in _OWN_ABOVE_AUTOGRAD:
        own.impl(name, kernels.kernel(operator_named(name)), AUTOGRAD_KEY)
    own.impl("embedding", kernels.composed(operator_named("embedding")), BACKEND_KEY)
    for key in _LAZY_BITS:  # a copy resolves the bit itself; to resolve it first would recurse
        own.impl("_copy_from", kernels.kernel(operator_named("_copy_from")), key)
    for name, function in reductions.overrides().items():
        own.impl(name, function, AUTOGRAD_KEY)
    for name, function in view_gradients.overrides().items():
        own.impl(name, function, BACKEND_KEY)
    for name, function in autograd_overrides(device).items():
        if operator_named(name) is None:
            continue
        own.impl(name, function, AUTOGRAD_KEY)
        own.impl(name, function, BACKEND_KEY)


def _library(patches: Patches, namespace: str) -> Any:  # noqa: ANN401 - a library of operators
    library: Any = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    patches.callback(library._destroy)  # noqa: SLF001 - no public way
    return library
