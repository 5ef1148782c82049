"""Indices that are known and out of range: a GPU ends the process with a device-side assert, a null GPU would go on.

A position beyond an embedding's table, or a label that is no class, is an error of the program at that size.
"""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def checks(  # noqa: C901 - one function for each kind of operator
    torch: Any, host: Callable[[Any], Any], assumed: Callable[[Any], str]
) -> dict[Any, Callable[[Any], None]]:
    """Return by operator what raises IndexError where one of its known indices is out of range.

    Args:
        torch: The module.
        host: Returns the values of a tensor of the device; None where they are not known.
        assumed: Returns how values were assumed; nothing where they are known.
    """
    aten = torch.ops.aten

    def check(indices: Any, limit: int, what: str, ignored: int | None = None, least: int = 0) -> None:
        values = None if assumed(indices) else host(indices)
        if values is None or not values.numel():
            return
        with torch.inference_mode(mode=False), torch.no_grad():
            values = _once(values)
            # Not `values[values != ignored]`, for which PyTorch wakes all its threads.
            counted = values if ignored is None else values.masked_fill(values == ignored, 0)
            lowest, highest = map(int, counted.aminmax())
        if lowest < least or highest >= limit:
            wrong = lowest if lowest < least else highest
            raise IndexError(
                f"index {wrong} is out of range for the {limit} {what}; a GPU would end with a device-side assert"
            )

    def embedding(args: Any) -> None:
        check(args[1], args[0].shape[0], "rows of an embedding's table")

    def along(what: str, args: Any, *, from_end: bool = False) -> None:
        if args[0].dim():
            size = args[0].shape[args[1]]
            check(args[2], size, what, least=-size if from_end else 0)

    def index(args: Any) -> None:
        for dimension, indices in enumerate(args[1]):
            if indices is None:
                continue
            if indices.dtype in (torch.bool, torch.uint8):
                return  # a mask stands for as many dimensions as it has
            size = args[0].shape[dimension]
            check(indices, size, "positions of a dimension that is indexed", least=-size)

    def nll_loss(args: Any) -> None:
        check(args[1], args[0].shape[1 if args[0].dim() > 1 else 0], "classes of a loss", args[4])

    bags = (getattr(aten, f"_embedding_bag{ending}").default for ending in ("", "_forward_only"))
    puts = (aten.index.Tensor, aten.index_put_.default, getattr(aten, "_index_put_impl_").default)  # noqa: B009
    writers = ("scatter", "scatter_add", "scatter_reduce", "index_fill", "index_add", "index_copy")
    packets = (getattr(aten, f"{name}{ending}") for name in writers for ending in ("", "_"))
    written = partial(along, "positions of a dimension that is written to", from_end=True)  # where some count from
    writes = (getattr(packet, name) for packet in packets for name in packet.overloads() if "out" not in name)
    return {
        aten.embedding.default: embedding,
        aten.index_select.default: partial(along, "positions that `index_select` takes from"),
        aten.gather.default: partial(along, "positions that `gather` takes from"),
        aten.nll_loss_forward.default: nll_loss,
        aten.nll_loss2d_forward.default: nll_loss,
        **dict.fromkeys(bags, embedding),
        **dict.fromkeys(puts, index),
        **dict.fromkeys(writes, written),
    }


def _once(values: Any) -> Any:
    """Return values without those that are there again because an index was expanded to the width of what it takes."""
    return values[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in values.stride())]
