"""A batch cut into micro-batches: any nest of tensors and arrays along its first dimension.

Both look alike when there are as many items as samples, and an epoch's last batch can have any number of samples. So
the answer never hangs on a number alone: what could be read either way is refused, from an epoch's first batch on.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, cast

import torch
from torch.nn.utils.rnn import PackedSequence

from oomdoctor.errors import UsageError
from oomdoctor.target.placement import described, tensors_in

_DEEPEST = 64  # no batch is; what holds itself is at any depth

ROWS_HINT = "every tensor of a batch leads with the samples; take out what is for the batch as a whole"
_UNSPLITTABLE_HINT = (
    "give padded tensors that lead with the samples, or a list of samples with `batch_size=`, and pack or convert each "
    "micro-batch in the training step"
)


def is_array(item: object) -> bool:
    """Return whether it is a NumPy array; whoever has one has imported NumPy already."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(item, numpy.ndarray)


def is_rows(item: object) -> bool:
    """Return whether it is a tensor or an array."""
    return isinstance(item, torch.Tensor) or is_array(item)


def is_named(items: object) -> bool:
    """Return whether a tuple has names for its items, or is a shape: never a list of samples."""
    return hasattr(items, "_make") or hasattr(items, "n_fields") or isinstance(items, torch.Size)


def is_plain_sequence(item: object) -> bool:
    """Return whether it is a list or tuple without names for its items."""
    return isinstance(item, tuple | list) and not is_named(item)


def unsplittable(item: object) -> str | None:
    """Return the name of a kind of tensor that has no rows to take; None for all else."""
    if isinstance(item, PackedSequence):
        return "a packed sequence"
    if not isinstance(item, torch.Tensor):
        return None
    if item.is_nested:
        return "a nested tensor"
    return None if item.layout is torch.strided else f"a tensor of layout {str(item.layout).removeprefix('torch.')}"


def rows_of(item: Any) -> int | None:  # noqa: ANN401 - a tensor or array, or anything else
    """Return rows of a tensor or array; None for what has none."""
    if not is_rows(item) or unsplittable(item) or not len(item.shape):
        return None
    return int(item.shape[0])


def parts_of(item: Any) -> Iterator[tuple[str, object]]:  # noqa: ANN401 - any container
    """Yield the parts of a container, each as (how to reach it, part); nothing for what is no container."""
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
    """Yield rows of each tensor and array in a nest."""
    if (rows := rows_of(item)) is not None:
        yield rows
    elif unsplittable(item) is None:
        for _, part in parts_of(item):
            yield from leading_in(part)


def samples_in(batch: object) -> int:
    """Return samples in a batch: the leading dimension that its tensors and NumPy arrays share.

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


_UNTOLD_HINT = (
    "where it holds one item a sample, say `batch_size=`, the number of samples; what is for the batch as a whole goes "
    "in a dict, a named tuple or a dataclass, or out of the batch"
)
_TOLD_HINT = (
    "with `batch_size=` lists and tuples hold one item a sample; what is for the batch as a whole goes in a dict, a "
    "named tuple or a dataclass, or out of the batch"
)
_EITHER_HINT = (
    "name the parts of the batch, or those of a sample, in a dict, a named tuple or a dataclass; samples alone go in a "
    "list"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """Reads lists and tuples.

    Attributes:
        samples: Samples in the batch.
        planned: Samples in a batch as planned; an epoch's last has any number up to that.
        is_told: Whether the caller said how many samples there are, and so that there are lists of samples.
    """

    samples: int
    planned: int
    is_told: bool

    def holds_samples(self, items: Any, where: str) -> bool:  # noqa: ANN401 - a tuple or list
        """Return whether a list or tuple has an item a sample; otherwise each item is read by itself.

        Raises:
            UsageError: It could be either.
        """
        if not is_plain_sequence(items):
            return False
        if self.is_told and len(items) == self.samples:
            return self._holds_as_many_samples(items, where)
        if 2 <= len(items) <= self.planned:  # noqa: PLR2004 - one item is in every micro-batch, as with tensors
            self._refuse_what_may_be_samples(items, where)
        return False

    def _refuse_what_may_be_samples(self, items: Any, where: str) -> None:  # noqa: ANN401 - a tuple or list
        if self.is_told:
            if not any(self._has_all_samples(item) for item in items) and all(_is_whole(item) for item in items):
                raise UsageError(
                    f"{where} is {described(items)}, and the batch has {self.samples} samples", hint=_TOLD_HINT
                )
        elif self.samples not in leading_in(items):
            raise UsageError(
                f"{where} is {described(items)}, and may be for the batch as a whole or have an item a sample",
                hint=_UNTOLD_HINT,
            )
        elif len(items) == self.planned and _are_alike(items):
            raise UsageError(
                f"{where} is {described(items)} that are alike, as many as the plan has samples, and each may be one",
                hint=_UNTOLD_HINT,
            )

    def _holds_as_many_samples(self, items: Any, where: str) -> bool:  # noqa: ANN401 - a tuple or list
        """Return whether as many items as samples are the samples; a tuple of tensors alone is never taken for them."""
        full = [self._has_all_samples(item) for item in items]
        may_be_parts = any(full) and all(is_full or _is_whole(item) for item, is_full in zip(items, full, strict=True))
        are_alike, is_square = _are_alike(items), len(items) > 1 and self._is_square(items)
        if may_be_parts and not are_alike:
            return False
        is_like_a_pair = where == "the batch" and isinstance(items, tuple) and all(map(is_rows, items))
        is_unclear = is_like_a_pair or (is_square and (may_be_parts or not are_alike)) or not _look_alike(items)
        if len(items) > 1 and is_unclear:
            raise UsageError(
                f"{where} is {described(items)}, as many as the batch has samples, and may be samples or parts",
                hint=_EITHER_HINT,
            )
        return True

    def _is_square(self, items: Any) -> bool:  # noqa: ANN401 - a tuple or list
        """Return whether each item has as many items again, so that it cannot be told which are the samples."""
        has_rows = next(leading_in(items), None) is not None
        return has_rows and all(is_plain_sequence(item) and len(item) == self.samples for item in items)

    def _has_all_samples(self, item: Any) -> bool:  # noqa: ANN401 - anything
        """Return whether all samples are in this one item, so that it can be a part of the batch."""
        if is_rows(item) or unsplittable(item):
            return rows_of(item) == self.samples
        if is_plain_sequence(item) and len(item) == self.samples and _are_alike(item):
            return True
        parts = [part for _, part in parts_of(item)]
        full = [self._has_all_samples(part) for part in parts]
        return any(full) and all(is_full or _is_whole(part) for part, is_full in zip(parts, full, strict=True))


def _is_whole(item: object) -> bool:
    """Return whether nothing in it leads with samples, so that all of it is in every micro-batch."""
    return unsplittable(item) is None and all(rows == 1 for rows in leading_in(item))


def _are_alike(items: Any) -> bool:  # noqa: ANN401 - a tuple or list
    """Return whether items are of one kind, as samples are and parts are often not."""
    return len({_deep_kind(item) for item in items if item is not None}) <= 1


def _look_alike(items: Any) -> bool:  # noqa: ANN401 - a tuple or list
    """Return whether items are of one kind from without."""
    return len({_kind(item) for item in items if item is not None}) <= 1


def _kind(item: Any) -> object:  # noqa: ANN401 - anything
    if is_rows(item):
        return (item.dim() if not is_array(item) else item.ndim, str(item.dtype))
    if isinstance(item, Mapping):
        return "mapping"
    if is_plain_sequence(item):
        return "sequence"
    is_container = isinstance(item, tuple) or dataclasses.is_dataclass(item)
    return type(item) if is_container else "leaf"


def _deep_kind(item: Any) -> object:  # noqa: ANN401 - anything
    if not is_plain_sequence(item):
        return _kind(item)
    return frozenset(_deep_kind(part) for part in item if part is not None)


_KINDS_HINT = "split tensors in dicts, lists, tuples and dataclasses, and build the rest in the training step"


def split(
    batch: object, samples: int, sizes: Sequence[int], *, planned: int | None = None, is_told: bool = False
) -> list[Any]:
    """Cut a batch into micro-batches of these sizes, which sum to its samples.

    Tensors and NumPy arrays are cut along their first dimension, into views. Lists and tuples with an item a sample are
    cut between items where `is_told`. What has no samples (numbers, text, tensors without dimensions or with a leading
    1) is in every micro-batch. Dicts and other mappings, lists, tuples, named tuples and dataclasses keep their types.

    Args:
        batch: Any nest.
        samples: Samples in it.
        sizes: Samples of each micro-batch.
        planned: Samples in a batch as planned, of which an epoch's last may have fewer; None for `samples`.
        is_told: Whether the caller gave `samples`, so that there are lists of samples.

    Raises:
        UsageError: A part has neither the batch's samples nor none, or cannot be split, or can be read in two ways.
    """
    check_depth(batch)
    reader = Reader(samples, planned or samples, is_told)
    cuts = [slice(start, end) for start, end in pairwise(accumulate(sizes, initial=0))]
    return [_Cutter(reader, cut).cut(batch, "the batch") for cut in cuts]


@dataclasses.dataclass(frozen=True, slots=True)
class _Cutter:
    """Cuts one micro-batch out of a nest.

    Attributes:
        reader: Knows lists of samples from lists of parts.
        rows: The micro-batch's part of the samples.
    """

    reader: Reader
    rows: slice

    def cut(self, item: object, where: str) -> object:
        refuse_unsplittable(item, where)
        if is_rows(item):
            return self._cut_rows(item, where)
        if isinstance(item, Mapping):
            return self._cut_mapping(item, where)
        if isinstance(item, tuple | list):
            return self._cut_sequence(item, where)
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            return self._cut_dataclass(item, where)
        self._refuse_foreign(item, where)
        return item

    def _cut_rows(self, item: Any, where: str) -> object:  # noqa: ANN401 - a tensor or array
        rows = rows_of(item)
        if rows is None or (rows == 1 and self.reader.samples > 1):
            return item
        if rows != self.reader.samples:
            raise UsageError(
                f"{where} is {_described_rows(item)}, and the batch has {self.reader.samples} samples", hint=ROWS_HINT
            )
        return item[self.rows]

    def _cut_mapping(self, mapping: Mapping[Any, Any], where: str) -> object:
        parts = {key: self.cut(value, f"{where}[{key!r}]") for key, value in mapping.items()}
        if type(mapping) is dict or not isinstance(mapping, MutableMapping):
            return parts
        made = copy.copy(mapping)  # keeps what a default dict or a tokenizer's output has beside its items
        for key, part in parts.items():
            made[key] = part
        return made

    def _cut_sequence(self, items: Any, where: str) -> object:  # noqa: ANN401 - a tuple or list
        if self.reader.holds_samples(items, where):
            return _rebuilt(items, list(items)[self.rows], where)
        return _rebuilt(items, [self.cut(item, f"{where}{step}") for step, item in parts_of(items)], where)

    def _cut_dataclass(self, item: Any, where: str) -> object:  # noqa: ANN401 - an instance of any dataclass
        made = copy.copy(item)
        for field in dataclasses.fields(item):
            if hasattr(item, field.name):
                part = self.cut(getattr(item, field.name), f"{where}.{field.name}")
                object.__setattr__(made, field.name, part)  # serves frozen ones too
        return cast("object", made)

    def _refuse_foreign(self, item: object, where: str) -> None:
        """Refuse what may have samples in a kind of container or array that is not known."""
        if _holds_tensors(item):
            raise UsageError(f"{where} holds tensors in {described(item)}, which cannot be split", hint=_KINDS_HINT)
        is_sequence = isinstance(item, Sequence) and not isinstance(item, str | bytes | bytearray | memoryview)
        has_rows = bool(isinstance(shape := getattr(item, "shape", None), tuple) and shape)
        if has_rows or (is_sequence and 2 <= len(cast("Sequence[object]", item)) <= self.reader.planned):  # noqa: PLR2004 - as with lists
            raise UsageError(f"{where} is {described(item)}, which cannot be split", hint=_KINDS_HINT)


def _rebuilt(items: Any, parts: list[object], where: str) -> object:  # noqa: ANN401 - a tuple or list
    """Return a list or tuple of the same type."""
    if type(items) is list:
        return parts
    try:
        if isinstance(items, list):
            made = copy.copy(items)
            made[:] = parts
            return made
        return items._make(parts) if hasattr(items, "_make") else type(items)(parts)
    except TypeError as error:
        raise UsageError(
            f"{where} is {described(items)}, which cannot be made anew: {error}", hint=_KINDS_HINT
        ) from None


def _described_rows(item: Any) -> str:  # noqa: ANN401 - a tensor or array
    name = described(item)
    return name if name.startswith("a tensor") else f"an array of shape {list(item.shape)}"


def _holds_tensors(item: object) -> bool:
    """Return whether an object of no kind that is cut has tensors nevertheless, in itself or among its attributes."""
    attributes = {} if isinstance(item, type) else getattr(item, "__dict__", {})
    return any(next(tensors_in(part), None) is not None for part in (item, attributes))
