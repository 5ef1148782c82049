"""What the emulated device has no kernels for and never will, said at once and by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.tracing.errors import cannot_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.patches import Patches

_SPARSE: Final = (
    "embedding_sparse_backward", "_embedding_bag_sparse_backward", "sparse_coo_tensor.indices",
    "sparse_coo_tensor.indices_size", "sparse_coo_tensor.size", "_sparse_coo_tensor_unsafe", "_to_sparse",
    "_to_sparse.sparse_dim",
)  # fmt: skip


def sparse_refusals() -> dict[str, Callable[..., Any]]:
    """Refusals by the name of an operator that makes a sparse tensor."""
    return {name: _refusing(name, "sparse tensors are not emulated") for name in _SPARSE}


def refuse_elsewhere(patches: Patches) -> None:
    """Refuse scripted modules, whose tensors C++ holds, nested tensors, and saving tensors that have no data."""
    for name in ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged"):
        patches.set(torch.nested, name, _refusing(f"torch.nested.{name}", "nested tensors are not emulated"))
    scripted = _refusing("torch.jit.ScriptModule", "the tensors of a scripted or traced module cannot be moved")
    patches.set(torch.jit.ScriptModule, "_apply", scripted)
    tag, save = torch.serialization.location_tag, _refusing("torch.save", "tensors on an emulated GPU have no data")
    patches.set(torch.serialization, "location_tag", lambda storage: (save if _is_emulated(storage) else tag)(storage))


def _is_emulated(storage: Any) -> bool:  # noqa: ANN401 - a storage of either kind
    return torch.device(storage.device).type in ("xla", "cuda")


def _refusing(name: str, why: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> None:
        raise cannot_trace(name, why)

    return refuse
