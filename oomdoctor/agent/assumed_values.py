"""Values that a null GPU cannot have, and that sizes depend on: assumed, and told as such.

Rows that a mask selects, where the mask comes from what was computed, count with the most that there can be: all of
them. Choices among a few, as a router's of its experts, are spread evenly: each expert gets as many tokens as the
others, which is what its training aims at. Whatever the program makes of such choices (`one_hot`, `where`, counts of
tokens) follows as from values that are known. Values of which the different ones are sought, and indices of a sparse
gradient, count as different from each other. Factors of a product are not zero.
"""

# ruff: noqa: ANN401, FBT001, SLF001 - torch has no type here, nor public ways; arguments are those of its operators

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

from . import unknown_reads
from .guard import guarded
from .operator_kinds import is_unobserved

if TYPE_CHECKING:
    from .known_values import KnownValues

_MOST_CHOICES = 512
"""Choices up to which they are taken for a router's; more are a vocabulary's or a batch's."""
_MOST_FOUND = 1 << 30
"""Elements up to which PyTorch counts in one go."""
_PRODUCTS = ("ProdBackward", "CumprodBackward")
"""Nodes of autograd that look for zeros among the factors, since without any they take less time and memory."""


def are_few(tensor: Any, dim: int) -> bool:
    """Return whether a choice along a dimension is one among a few, as a router's of its experts."""
    size = tensor.shape[dim] if tensor.dim() else 0
    return bool(0 < size <= _MOST_CHOICES and tensor.is_floating_point())


def even_choices(torch: Any, tensor: Any, dim: int, count: int) -> Any:
    """Return so many indices along a dimension in each row, on the host: each index as often as the others."""
    size, shape = tensor.shape[dim], tensor.movedim(dim, -1).shape[:-1]
    chosen = torch.arange(shape.numel() * count, device="cpu").remainder(size)  # in each row others: `count` is no more
    return chosen.reshape(*shape, count).movedim(-1, dim)


def spread_places(torch: Any, count: int, different: int) -> Any:
    """Return which of the different values each of so many is, on the host, where every value occurs as often."""
    return torch.arange(count, device="cpu").remainder(max(different, 1))


class AssumedValues:
    """The operators that choose and select, registered with PyTorch's dispatcher.

    Args:
        known: The operators that keep values.
        torch: The module.
        library: Takes the operators.
    """

    def __init__(self, known: KnownValues, torch: Any, library: Any) -> None:
        self._known, self._torch, self._aten = known, torch, torch.ops.aten
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch 2.6 warns of kernels that are replaced
            for name in ("nonzero", "topk", "argmax", "max.dim"):
                library.impl(name, getattr(self, f"_{name.partition('.')[0]}"), "CUDA")
            for name in ("_unique2", "unique_consecutive", "unique_dim"):
                library.impl(name, partial(self._unique, getattr(self._aten, name)), "AutogradCUDA")
            for key in ("SparseCUDA", "AutogradCUDA"):
                library.impl("coalesce", self._coalesce, key)
            library.impl("_linalg_check_errors", _find_no_errors, "CUDA")
            library.impl("eq.Scalar", self._eq, "CUDA")

    def _nonzero(self, tensor: Any) -> Any:
        """Find what is not zero; of values that are not known, everything."""
        found = self._torch.empty(0, dtype=self._torch.long, device=tensor.device)
        if not guarded(self._is_unknown)(tensor) or tensor.numel() > _MOST_FOUND:
            return self._aten.nonzero.out(tensor, out=found)
        unknown_reads.note("bound")
        with self._known.answering(tensor.numel()):
            self._aten.nonzero.out(tensor, out=found)
        return self._known.kept(found, lambda: self._torch.ones(tensor.shape, dtype=self._torch.bool).nonzero())

    def _eq(self, tensor: Any, other: Any) -> Any:
        """Compare with a number; the factors of a product, of which its backward asks that, are not zero."""
        equal = self._aten.eq.Tensor(tensor, self._torch.tensor(other, device="cpu"))
        if not (self._is_of_factors() and guarded(self._is_unknown)(tensor)):
            return equal
        return self._known.kept(equal, lambda: self._torch.zeros(tensor.shape, dtype=self._torch.bool))

    def _is_of_factors(self) -> bool:
        node = self._torch._C._current_autograd_node()
        return node is not None and node.name().startswith(_PRODUCTS)

    def _unique(self, operator: Any, tensor: Any, *args: Any, **options: Any) -> Any:
        """Find the different values; where they are not known, every one counts as another, and flags as both."""
        with self._torch._C._AutoDispatchBelowAutograd():
            if not guarded(self._is_unknown)(tensor):
                return operator(tensor, *args, **options)
            names = [argument.name for argument in operator.default._schema.arguments[1:]]
            given = {**dict(zip(names, args)), **options}  # noqa: B905 - Python 3.8 has no `strict`
            dim = given.get("dim")
            count = tensor.numel() if dim is None else tensor.shape[dim]
            unknown_reads.note("bound")
            # `unique` of booleans counts the true ones, and has both values where some are.
            is_of_flags = tensor.dtype is self._torch.bool and operator is self._aten._unique2
            with self._known.answering(1 if is_of_flags else count):
                values, inverse, counts = operator(tensor, *args, **options)
        places = partial(spread_places, self._torch, count, 2 if is_of_flags else count)
        return (
            values,
            self._known.kept(inverse, lambda: places().reshape(inverse.shape), "bound"),
            self._known.kept(counts, lambda: places().bincount(), "bound"),
        )

    def _topk(self, tensor: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:  # noqa: A002, FBT002 - as of PyTorch
        values, indices = tensor.new_empty(0), tensor.new_empty(0, dtype=self._torch.long)
        self._aten.topk.values(tensor, k, dim, largest, sorted, values=values, indices=indices)
        return values, self._spread(tensor, indices, dim, k)

    def _argmax(self, tensor: Any, dim: int | None = None, keepdim: bool = False) -> Any:  # noqa: FBT002 - as above
        indices = tensor.new_empty(0, dtype=self._torch.long)
        self._aten.argmax.out(tensor, dim, keepdim, out=indices)
        return indices if dim is None else self._spread(tensor, indices, dim, 1)

    def _max(self, tensor: Any, dim: int, keepdim: bool = False) -> Any:  # noqa: FBT002 - as above
        values, indices = tensor.new_empty(0), tensor.new_empty(0, dtype=self._torch.long)
        self._aten.max.dim_max(tensor, dim, keepdim, max=values, max_values=indices)
        return values, self._spread(tensor, indices, dim, 1)

    def _is_unknown(self, tensor: Any) -> bool:
        return is_unobserved() and self._known.host(tensor) is None

    def _spread(self, tensor: Any, indices: Any, dim: int, count: int) -> Any:
        """Return indices along a dimension as an even choice of so many in each row; others than a few as they are."""
        if not (are_few(tensor, dim) and guarded(self._is_unknown)(tensor)):
            return indices
        chosen = partial(even_choices, self._torch, tensor, dim, count)
        return self._known.kept(indices, lambda: chosen().reshape(indices.shape), "even")

    # --- sparse gradients --------------------------------------------------------------------------------------------

    def _coalesce(self, tensor: Any) -> Any:
        """Add the values of equal indices, as an optimizer does with a sparse gradient.

        The kernel reads from the device how many indices differ. Where they are not known, every one counts as another,
        which is the most that it can be, up to all rows that there are.
        """
        if tensor.is_coalesced():
            return tensor
        count = guarded(self._distinct)(tensor)
        if count is None:
            count = min(tensor._nnz(), self._torch.Size(tensor.shape[: tensor.sparse_dim()]).numel())
            unknown_reads.note("bound")
        with self._known.answering(count):
            return self._torch.ops.aten._coalesce(tensor)

    def _distinct(self, tensor: Any) -> int | None:
        indices = self._known.host(tensor._indices())
        if indices is None:
            return None
        steps = self._torch.tensor([*tensor.shape[1 : indices.shape[0]], 1]).flip(0).cumprod(0).flip(0)
        return int((indices * steps[:, None]).sum(0).unique().numel())


def _find_no_errors(states: Any, name: str, *, is_matrix: bool) -> None:
    """Check nothing: a decomposition that computes nothing does not fail, and PyTorch would read its state."""
