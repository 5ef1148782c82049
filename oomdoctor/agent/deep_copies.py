"""Values of known tensors in `copy.deepcopy`, which copies storages and not what is kept beside them."""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import functools
from typing import Any

from .guard import guarded


def keep_values(torch: Any, attribute: str) -> None:
    """Patch the copying of tensors to keep their values.

    Args:
        torch: The module.
        attribute: The name by which a storage has its values.
    """
    copy = torch.Tensor.__deepcopy__

    @functools.wraps(copy)
    def copied(tensor: Any, memo: dict[int, Any]) -> Any:
        is_there, made = id(tensor) in memo, copy(tensor, memo)
        if not is_there and tensor.is_cuda and tensor.layout is torch.strided:
            guarded(_copy_values)(tensor.untyped_storage(), made.untyped_storage(), attribute)
        return made

    torch.Tensor.__deepcopy__ = copied


def _copy_values(source: Any, copied: Any, attribute: str) -> None:
    """Keep the values of a storage beside its copy, too, unless a tensor that shares it has brought them."""
    values = getattr(source, attribute, None)
    if values is None or getattr(copied, attribute, None) is not None or copied.nbytes() != source.nbytes():
        return
    kept = values.clone()
    if hasattr(values, "assumed"):
        kept.assumed = values.assumed
    setattr(copied, attribute, kept)
