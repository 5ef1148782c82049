"""Numbers that C++ puts on the device by itself, such as the 1 in `mask[rows, columns] = 1`: integers keep their value.

It makes a tensor of no dimensions by `scalar_tensor`. Such a tensor must not have the key of known tensors: C++ marks
the base in `10000 ** floats` as a number, and PyTorch hands no number on the device to a kernel in Python. So the value
is kept beside the storage without the key, and holds as long as nothing was written to the tensor.
"""

# ruff: noqa: ANN401, SLF001 - torch has no type here, nor public ways

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from .known_values import KnownValues

_NUMBER = "_oomdoctor_number"


def maker(known: KnownValues, torch: Any) -> Callable[..., Any]:
    """Return what makes a number on the device; floating-point ones are known only while Inductor folds constants."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def make(value: Any, **options: Any) -> Any:
        made = torch.ops.aten.scalar_tensor.default.redispatch(keys, value, **options)
        if known.keeps_numbers:
            return known.kept(made, lambda: torch.tensor(value))
        guarded(_keep)(made, value, torch)
        return made

    return make


def _keep(made: Any, value: Any, torch: Any) -> None:
    if not (made.dtype.is_floating_point or made.dtype.is_complex) and not made.is_inference():
        with torch.inference_mode(mode=False):
            setattr(made.untyped_storage(), _NUMBER, torch.tensor(value, dtype=made.dtype, device="cpu"))


def value_of(tensor: Any) -> Any:
    """Return the value of such a number, as a tensor of the host; None of any other tensor."""
    if tensor.dim() or tensor.dtype.is_floating_point or tensor.is_inference() or tensor._version:
        return None
    return getattr(tensor.untyped_storage(), _NUMBER, None)
