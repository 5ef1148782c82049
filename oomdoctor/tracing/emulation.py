"""An emulated CUDA device: inside, torch sees one GPU, and what runs on it only takes memory."""

from __future__ import annotations

import os
import warnings
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.allocator.rules import rules_of
from oomdoctor.allocator.settings import Settings, settings_of
from oomdoctor.tracing.compiling import refuse_compiled
from oomdoctor.tracing.composites import composites
from oomdoctor.tracing.cuda_api import answer_for
from oomdoctor.tracing.device import EmulatedDevice
from oomdoctor.tracing.engine_thread import run_double_backward_apart
from oomdoctor.tracing.extremes import extreme_roads
from oomdoctor.tracing.kernels import Kernels
from oomdoctor.tracing.patches import Patches
from oomdoctor.tracing.pinning import patch_pinning
from oomdoctor.tracing.private import (
    AUTOGRAD_KEY,
    BACKEND_KEY,
    check_torch,
    foreach_operators,
    install_guard,
    operator_named,
    without_threads,
)
from oomdoctor.tracing.refusals import refuse_elsewhere
from oomdoctor.tracing.tensors import patch_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.devices.card import Card

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
    device = EmulatedDevice(card, settings_of(os.environ, rules) if settings is None else settings, rules)
    with ExitStack() as stack:
        patches = Patches(stack)
        _register(patches, device)
        patch_tensors(patches, device)
        patch_pinning(patches)
        answer_for(patches, device)
        refuse_compiled(patches)
        stack.enter_context(without_threads())
        run_double_backward_apart(patches)
        refuse_elsewhere(patches)
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
    for name, function in extreme_roads().items():
        own.impl(name, function, AUTOGRAD_KEY)
    for name, function in composites(device).items():
        if operator_named(name) is None:
            continue
        own.impl(name, function, AUTOGRAD_KEY)
        own.impl(name, function, BACKEND_KEY)


def _library(patches: Patches, namespace: str) -> Any:  # noqa: ANN401 - a library of operators
    library: Any = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    patches.callback(library._destroy)  # noqa: SLF001 - no public way
    return library
