"""Where tensors lie on the device: the first byte of each one's storage, which is the first byte of its block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def addresses(tensors: Iterable[torch.Tensor]) -> Iterator[int]:
    """The addresses of some tensors on a CUDA device; of one made of several, such as a sparse one, of each part."""
    for tensor in tensors:
        for part in _parts(tensor):
            address = _address(part)
            if address:
                yield address


def _parts(tensor: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401 - torch's own type of such tensors excludes tensors
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _parts(getattr(tensor, name))
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())  # noqa: SLF001 - the public ones want it coalesced
    else:
        yield tensor


def _address(tensor: torch.Tensor) -> int:
    if not tensor.is_cuda:
        return 0
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):  # a kind of tensor without a storage of its own
        return 0
