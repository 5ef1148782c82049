"""Pinned memory is the host's, and where there is no driver to pin it, it is plain memory."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.tracing.private import keep_constructors

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.patches import Patches

_MAKERS: Final = ("empty", "empty_like", "empty_strided", "zeros", "ones", "full", "rand", "randn", "tensor")


def patch_pinning(patches: Patches) -> None:
    """Let tensors be pinned without being it."""
    keep_constructors()  # by which `with torch.device("cuda")` knows the functions that are replaced here
    for name in _MAKERS:
        patches.set(torch, name, _unpinned(getattr(torch, name)))
    patches.set(torch.Tensor, "pin_memory", _itself)
    loaders = torch.utils.data.dataloader
    patches.set(loaders._BaseDataLoaderIter, "__init__", _without_pinning(loaders._BaseDataLoaderIter.__init__))  # noqa: SLF001 - it has no public name


def _unpinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(make)
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401, ARG001
        return make(*args, **kwargs)

    return made


def _itself(tensor: torch.Tensor, *_: object) -> torch.Tensor:
    return tensor


def _without_pinning(begin: Callable[..., None]) -> Callable[..., None]:
    def begin_without(iterator: Any, loader: Any) -> None:  # noqa: ANN401 - classes of PyTorch's without types
        wanted, loader.pin_memory = loader.pin_memory, False
        try:
            begin(iterator, loader)
        finally:
            loader.pin_memory = wanted

    return begin_without
