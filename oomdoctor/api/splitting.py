"""A batch cut into micro-batches: any nest of tensors along its first dimension."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, cast

import torch

from oomdoctor.errors import UsageError
from oomdoctor.targets.placement import described, tensors_in


def samples_in(batch: object) -> int:
    """Samples in a batch: the leading dimension that its tensors share.

    Tensors without dimensions, and with a leading dimension of 1 beside larger ones, belong to the batch as a whole.

    Raises:
        UsageError: There is no tensor that has one, or two differ.
    """
    leading = {tensor.shape[0]: None for tensor in tensors_in(batch) if tensor.dim() > 0}
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
            hint="every tensor of a batch leads with the samples; take out what is for the batch as a whole, or say "
            "`batch_size=` where the batch holds lists of samples",
        )
    return next(iter(leading))


def split(batch: object, samples: int, sizes: Sequence[int]) -> list[Any]:
    """Cut a batch into micro-batches of these sizes, which sum to its samples.

    Tensors, and lists and tuples with an item a sample, are cut; pieces of tensors are views. What has no samples
    (numbers, text, tensors without dimensions or with a leading 1) is in every micro-batch. Dicts and other mappings,
    lists, tuples, named tuples and dataclasses keep their types.

    Raises:
        UsageError: A part has neither the batch's samples nor none.
    """
    cuts = [slice(start, end) for start, end in pairwise(accumulate(sizes, initial=0))]
    return [_Cutter(samples, cut).cut(batch, "the batch") for cut in cuts]


@dataclasses.dataclass(frozen=True, slots=True)
class _Cutter:
    """Cuts one micro-batch out of a nest.

    Attributes:
        samples: Samples in the whole batch.
        rows: Those of the micro-batch.
    """

    samples: int
    rows: slice

    def cut(self, item: object, where: str) -> object:
        if isinstance(item, torch.Tensor):
            return self._cut_tensor(item, where)
        if isinstance(item, Mapping):
            return self._cut_mapping(item, where)
        if isinstance(item, tuple | list):
            return self._cut_sequence(item, where)
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            return self._cut_dataclass(item, where)
        if _holds_tensors(item):
            raise UsageError(
                f"{where} holds tensors in {described(item)}, which cannot be split",
                hint="split tensors in dicts, lists, tuples and dataclasses, and build the rest in the training step",
            )
        return item

    def _cut_tensor(self, tensor: torch.Tensor, where: str) -> torch.Tensor:
        if tensor.dim() == 0 or (tensor.shape[0] == 1 and self.samples > 1):
            return tensor
        if tensor.shape[0] != self.samples:
            raise UsageError(
                f"{where} is {described(tensor)}, and the batch has {self.samples} samples",
                hint="every tensor of a batch leads with the samples; take out what is for the batch as a whole",
            )
        return tensor[self.rows]

    def _cut_mapping(self, mapping: Mapping[Any, Any], where: str) -> object:
        parts = {key: self.cut(value, f"{where}[{key!r}]") for key, value in mapping.items()}
        if type(mapping) is dict or not isinstance(mapping, MutableMapping):
            return parts
        made = copy.copy(mapping)  # keeps what a default dict or a tokenizer's output has beside its items
        made.update(parts)
        return made

    def _cut_sequence(self, items: Any, where: str) -> object:  # noqa: ANN401 - a tuple or list
        if self._is_a_list_of_samples(items):
            return items[self.rows]
        parts = [self.cut(item, f"{where}[{index}]") for index, item in enumerate(items)]
        if isinstance(items, list):
            return parts
        return items._make(parts) if hasattr(items, "_make") else type(items)(parts)

    def _is_a_list_of_samples(self, items: Sequence[object]) -> bool:
        """An item a sample, rather than parts of which each holds all samples."""
        if len(items) != self.samples or hasattr(items, "_make"):
            return False
        return not any(tensor.dim() and tensor.shape[0] == self.samples for tensor in tensors_in(items))

    def _cut_dataclass(self, item: Any, where: str) -> object:  # noqa: ANN401 - an instance of any dataclass
        made = copy.copy(item)
        for field in dataclasses.fields(item):
            if hasattr(item, field.name):
                part = self.cut(getattr(item, field.name), f"{where}.{field.name}")
                object.__setattr__(made, field.name, part)  # serves frozen ones too
        return cast("object", made)


def _holds_tensors(item: object) -> bool:
    """Whether an object of no kind that is cut has tensors nevertheless, in itself or among its attributes."""
    attributes = {} if isinstance(item, type) else getattr(item, "__dict__", {})
    return any(next(tensors_in(part), None) is not None for part in (item, attributes))
