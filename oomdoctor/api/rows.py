"""What in a batch has samples: the tensors and arrays of a nest, by the first dimension that they lead with."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from oomdoctor.errors import UsageError
from oomdoctor.targets.placement import described

_DEEPEST = 64  # no batch is; what holds itself is at any depth

ROWS_HINT = "every tensor of a batch leads with the samples; take out what is for the batch as a whole"
_UNSPLITTABLE_HINT = (
    "give padded tensors that lead with the samples, or a list of samples with `batch_size=`, and pack or convert each "
    "micro-batch in the training step"
)


def is_array(item: object) -> bool:
    """Whether it is a NumPy array; whoever has one has imported NumPy already."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(item, numpy.ndarray)


def is_rows(item: object) -> bool:
    """Whether it is a tensor or an array."""
    return isinstance(item, torch.Tensor) or is_array(item)


def is_named(items: object) -> bool:
    """Whether a tuple has names for its items, or is a shape: never a list of samples."""
    return hasattr(items, "_make") or hasattr(items, "n_fields") or isinstance(items, torch.Size)


def is_plain_sequence(item: object) -> bool:
    """Whether it is a list or tuple without names for its items."""
    return isinstance(item, tuple | list) and not is_named(item)


def unsplittable(item: object) -> str | None:
    """What a tensor is that has no rows to take; None for all else."""
    if isinstance(item, PackedSequence):
        return "a packed sequence"
    if not isinstance(item, torch.Tensor):
        return None
    if item.is_nested:
        return "a nested tensor"
    return None if item.layout is torch.strided else f"a tensor of layout {str(item.layout).removeprefix('torch.')}"


def rows_of(item: Any) -> int | None:  # noqa: ANN401 - a tensor or array, or anything else
    """Rows of a tensor or array; None for what has none."""
    if not is_rows(item) or unsplittable(item) or not len(item.shape):
        return None
    return int(item.shape[0])


def parts_of(item: Any) -> Iterator[tuple[str, object]]:  # noqa: ANN401 - any container
    """What a container holds, each with how it is reached from there; nothing for what is not gone into."""
    if isinstance(item, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in item.items())
    elif isinstance(item, tuple | list):
        yield from ((f"[{index}]", value) for index, value in enumerate(item))
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        fields = (field.name for field in dataclasses.fields(item))
        yield from ((f".{name}", getattr(item, name)) for name in fields if hasattr(item, name))


def check_depth(item: object, *, depth: int = 0) -> None:
    """Raise a UsageError for what holds itself, or is nested as if it did."""
    if depth > _DEEPEST:
        raise UsageError(
            f"the batch is nested deeper than {_DEEPEST} levels, or holds itself",
            hint="give the tensors in a dict, a list or a tuple",
        )
    for _, part in parts_of(item):
        check_depth(part, depth=depth + 1)


def refuse_unsplittable(item: object, where: str) -> None:
    """Raise a UsageError for a tensor whose rows cannot be taken."""
    if (kind := unsplittable(item)) is not None:
        raise UsageError(f"{where} is {kind}, which cannot be split", hint=_UNSPLITTABLE_HINT)


def leading_in(item: object) -> Iterator[int]:
    """Rows of each tensor and array in a nest."""
    if (rows := rows_of(item)) is not None:
        yield rows
    elif unsplittable(item) is None:
        for _, part in parts_of(item):
            yield from leading_in(part)


def samples_in(batch: object) -> int:
    """Samples in a batch: the leading dimension that its tensors and NumPy arrays share.

    Those without dimensions, and with a leading dimension of 1 beside larger ones, belong to the batch as a whole.

    Raises:
        UsageError: There is no tensor that has one, two differ, or one is of a kind that cannot be split.
    """
    check_depth(batch)
    _refuse_all_unsplittable(batch, "the batch")
    leading: dict[int, None] = dict.fromkeys(leading_in(batch))
    if len(leading) > 1:
        leading.pop(1, None)
    if not leading:
        raise UsageError(
            f"no number of samples can be seen in the batch, {described(batch)}",
            hint="its tensors lead with the samples; a list of samples is split with `batch_size=len(samples)`",
        )
    if len(leading) > 1:
        shown = " and ".join(str(size) for size in list(leading)[:2])
        raise UsageError(
            f"the batch's tensors lead with {shown}, so that its number of samples is unclear",
            hint=f"{ROWS_HINT}, or say `batch_size=` where the batch holds lists of samples",
        )
    return next(iter(leading))


def _refuse_all_unsplittable(item: object, where: str) -> None:
    refuse_unsplittable(item, where)
    for step, part in parts_of(item):
        _refuse_all_unsplittable(part, f"{where}{step}")
