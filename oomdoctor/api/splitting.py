"""A batch cut into micro-batches: any nest of tensors along its first dimension."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, cast

from oomdoctor.api.reading import Reader
from oomdoctor.api.rows import ROWS_HINT, check_depth, is_rows, parts_of, refuse_unsplittable, rows_of
from oomdoctor.errors import UsageError
from oomdoctor.targets.placement import described, tensors_in

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
    """A list or tuple of the same type."""
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
    """Whether an object of no kind that is cut has tensors nevertheless, in itself or among its attributes."""
    attributes = {} if isinstance(item, type) else getattr(item, "__dict__", {})
    return any(next(tensors_in(part), None) is not None for part in (item, attributes))
