"""Gradients of views that an operation changed in place, such as a ReLU in place after an instance norm.

Such a view has a new gradient function. On CUDA it is `AsStridedBackward0`, which copies the gradient into memory of
the base's size. For devices that cannot stride, such as the one that a trace emulates, PyTorch repeats the views of the
base instead: most copy nothing, each slice fills zeros of its input's size. A hook makes the one copy of CUDA instead.
Source: `VariableHooks::grad_fn`, variable.cpp, and `as_strided_backward`, FunctionsManual.cpp.
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any, Final, NamedTuple

import torch

from oomdoctor.engines.trace.torch_internals import strided_view

_REPEATED: Final = (
    "AliasBackward0", "DiagonalBackward0", "MovedimBackward0", "PermuteBackward0", "ReshapeAliasBackward0",
    "SelectBackward0", "SliceBackward0", "SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2", "TBackward0",
    "TransposeBackward0", "UnfoldBackward0", "UnsqueezeBackward0", "ViewBackward0",
)  # fmt: skip
"""Gradient functions of views that CUDA has one `AsStridedBackward0` for, after an operation in place."""
_FILLING: Final = ("diagonal_backward", "select_backward", "slice_backward")
"""Operators in such functions that fill zeros of the input's size, which `AsStridedBackward0` has done by then; and
`unfold_backward`."""
_WRITES_SECOND: Final = torch.ops.aten._copy_from.default  # noqa: SLF001 - an operator
"""The operator below `copy_`, whose second argument is written to."""


class ChangedViews:
    """The views that operations changed in place, until their gradient functions are known.

    An operator runs before autograd gives its result a gradient function, so that a view is looked at when the next
    operator runs: at the latest one that uses it.
    """

    def __init__(self) -> None:
        self._pending: list[weakref.ref[torch.Tensor]] = []

    def note(self, operator: Any, args: tuple[Any, ...], result: Any) -> None:  # noqa: ANN401 - an operator's
        """Note the result of an operator if it is an argument that was changed, and a view."""
        written = args[1] if operator is _WRITES_SECOND else args[0] if args else None
        if result is not written or not isinstance(result, torch.Tensor) or not torch.is_grad_enabled():
            return
        if result._is_view():  # noqa: SLF001 - no public way
            self._pending.append(weakref.ref(result))

    def hook(self, operator: Any) -> None:  # noqa: ANN401 - an operator
        """Have the gradient of each view that was noted copied as on CUDA, before an operator runs.

        An operator that makes a view may be one that PyTorch repeats. It holds the lock of the changed view meanwhile,
        which whoever asks for the gradient function would wait for.
        """
        if not self._pending or _makes_view(operator):
            return
        pending, self._pending = self._pending, []
        for reference in pending:
            view = reference()
            if view is not None and view.requires_grad and _repeats_views(view.grad_fn):
                _hook(view)


@cache
def _makes_view(operator: Any) -> bool:  # noqa: ANN401 - an operator
    """Return whether a result of an operator shares memory with an argument that it does not change."""
    returned = (result.alias_info for result in operator._schema.returns)  # noqa: SLF001 - no public way
    return any(alias is not None and not alias.is_write for alias in returned)


def _repeats_views(function: Any) -> bool:  # noqa: ANN401 - a gradient function
    """Return whether repeated views lead to the base's function, which an operation in place made."""
    while function is not None and function.name() in _REPEATED:
        function = function.next_functions[0][0]
    return function is not None and function.name().endswith("CopySlices")


class _Geometry(NamedTuple):
    """Sizes and strides in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]


def _hook(view: torch.Tensor) -> None:
    base: Any = view._base  # noqa: SLF001 - no public way
    of_base, of_view = (_Geometry(tuple(one.shape), one.stride()) for one in (base, view))
    extent = 1 + sum((size - 1) * stride for size, stride in zip(*of_base, strict=True)) if base.numel() else 0
    offset = int(view.storage_offset() - base.storage_offset())

    def copy(gradient: torch.Tensor | None) -> tuple[torch.Tensor | None]:
        if gradient is None:
            return (None,)
        storage = gradient.new_zeros(extent)
        storage.untyped_storage()._oomdoctor_base = of_base  # type: ignore[attr-defined] # noqa: SLF001 - ours
        copied = storage.as_strided(*of_view, offset)
        copied.copy_(gradient)
        return (copied,)

    function: Any = view.grad_fn
    function.register_prehook(lambda gradients: copy(*gradients))


def overrides() -> dict[str, Any]:
    """Return kernels, by their operators' names, that fill no zeros where a hook has copied a gradient."""
    return {**dict.fromkeys(_FILLING, _fill), "unfold_backward": _fold}


def _fill(gradient: torch.Tensor, input_size: list[int], *_: int) -> torch.Tensor:
    base = _copied_base(gradient)
    if base is None:
        return gradient.new_zeros(input_size)
    size = tuple(input_size)
    stride = base.stride if size == base.size else torch.empty(size, device="meta").stride()
    return strided_view(gradient, size, stride, 0)


def _fold(gradient: torch.Tensor, input_size: list[int], dim: int, size: int, step: int) -> torch.Tensor:
    """Fill zeros, and count the positions along a dimension whose windows overlap.

    Source: `unfold_backward`, UnfoldBackward.cpp.
    """
    filled = _fill(gradient, input_size)
    if step < size and _copied_base(gradient) is None and filled.dim() and filled.numel():
        torch.empty(input_size[dim], dtype=torch.int64, device=gradient.device)
    return filled


def _copied_base(gradient: torch.Tensor) -> _Geometry | None:
    """Return what a hook copied a gradient for; None where none did."""
    return getattr(gradient.untyped_storage(), "_oomdoctor_base", None)
