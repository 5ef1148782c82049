"""An emulated CUDA device: inside, torch sees one GPU, and what runs on it only takes memory."""

from __future__ import annotations

import os
import warnings
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from oomdoctor.allocator.rules import rules_of
from oomdoctor.allocator.settings import Settings, settings_of
from oomdoctor.tracing.composites import composites
from oomdoctor.tracing.cuda_api import answer_for
from oomdoctor.tracing.device import EmulatedDevice
from oomdoctor.tracing.kernels import Kernels
from oomdoctor.tracing.patches import Patches
from oomdoctor.tracing.private import AUTOGRAD_KEY, BACKEND_KEY, check_torch, foreach_operators, install_guard
from oomdoctor.tracing.tensors import patch_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.devices.card import Card

_FACTORIES = ("empty.memory_format", "empty_strided", "tril_indices", "triu_indices")
_CUDA_HAS_ITS_OWN = (
    "native_layer_norm", "native_group_norm", "convolution", "convolution_backward", "addr", "_chunk_cat", "any.dims", "all.dims",
    "_fused_rms_norm", "_grouped_mm",
)  # fmt: skip
_CUDA_HAS_ITS_OWN_IMPLICIT = ("silu_backward", "mish_backward")
"""Operators for which C++ would otherwise take what it has for devices without a kernel."""


@contextmanager
def emulated_cuda(card: Card, settings: Settings | None = None) -> Iterator[EmulatedDevice]:
    """Let torch see `card` as its only CUDA device.

    Args:
        card: What the device looks like.
        settings: What the caching allocator is told; None for what the environment says.

    Raises:
        NoAnswerError: This torch lacks what is needed.
    """
    check_torch()
    install_guard()
    rules = rules_of(torch.__version__)
    device = EmulatedDevice(card, settings_of(os.environ, rules) if settings is None else settings, rules)
    with ExitStack() as stack:
        patches = Patches(stack)
        _register(stack, device)
        patch_tensors(patches, device)
        answer_for(patches, device)
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))  # type: ignore[no-untyped-call]
        yield device


def _register(stack: ExitStack, device: EmulatedDevice) -> None:
    kernels = Kernels(device)
    fallback, own = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")  # noqa: TOR901
    stack.callback(own._destroy)  # noqa: SLF001
    stack.callback(fallback._destroy)  # noqa: SLF001
    fallback.fallback(kernels.run, BACKEND_KEY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a CUDA build has kernels that these go before
        for name in _FACTORIES:
            own.impl(name, kernels.kernel(_operator(name)), "CUDA")
    for name in (*_CUDA_HAS_ITS_OWN, *foreach_operators()):
        if (operator := _operator(name)) is not None:
            own.impl(name, kernels.kernel(operator), BACKEND_KEY)
    for name in _CUDA_HAS_ITS_OWN_IMPLICIT:
        for key in (AUTOGRAD_KEY, BACKEND_KEY):
            own.impl(name, kernels.kernel(_operator(name)), key)
    for name, function in composites(device).items():
        own.impl(name, function, AUTOGRAD_KEY)
        own.impl(name, function, BACKEND_KEY)


def _operator(name: str) -> Any:  # noqa: ANN401
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    return found and getattr(found, overload or "default", None)
