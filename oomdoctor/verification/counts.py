"""What a loss may be a mean over, counted in each micro-batch: tokens that are not padding, objects, positives.

A mean over anything but samples weighs micro-batches otherwise than by their sizes. Which count it is follows from the
gradients: the right one makes their weighted sum the whole batch's. The candidates are read off the batch itself, so
that the one that is right can be printed as code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

from oomdoctor.target.splitting import parts_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

Function: TypeAlias = Any
IGNORED: Final = -100
"""The label that PyTorch's losses leave out by default."""
_MOST_PADDING_VALUES: Final = 4


@dataclass(frozen=True, slots=True)
class Count:
    """Something to count in a micro-batch.

    Attributes:
        code: The count as a Python expression over a micro-batch called `part`.
        reach: How to reach the tensor in a micro-batch, such as `["labels"]`.
        count: The count of the tensor.
    """

    code: str
    reach: tuple[str, ...]
    count: Callable[[torch.Tensor], torch.Tensor]

    def of(self, part: object) -> float:
        """Return the count of a micro-batch."""
        tensors = dict(_tensors(part))
        return float(self.count(tensors[self.reach]))

    def weights(self, parts: Sequence[Any]) -> list[float] | None:
        """Return each micro-batch's share of the count; None where nothing is counted, or one has no such tensor."""
        if any(self.reach not in dict(_tensors(part)) for part in parts):
            return None  # it is one sample's, of a list of them
        counts = [self.of(part) for part in parts]
        total = sum(counts)
        return [count / total for count in counts] if total > 0 and min(counts) >= 0 else None


def candidates(batch: object, class_weights: Sequence[torch.Tensor] = ()) -> Iterator[Count]:
    """Yield what can be counted in a batch, the likeliest first.

    Args:
        batch: The batch.
        class_weights: Weights of classes that its losses use.
    """
    tensors = list(_tensors(batch))
    for rank in (_labels, _masks, _padding, _lengths):
        for reach, tensor in tensors:
            name = "part" + "".join(reach)
            yield from (Count(code, reach, count) for code, count in rank(name, tensor))
    for weights in class_weights:
        for reach, tensor in tensors:
            name = "part" + "".join(reach)
            if _is_whole_number(tensor) and bool((tensor < len(weights)).all()):
                yield Count(f"class_weights[{name}[{name} >= 0]].sum()", reach, _weight_of_labels(weights))


def list_size(item: object, samples: int, name: str = "batch") -> str | None:
    """Return the code of a batch's size, the length of a list with an item a sample; None where there is no such."""
    if isinstance(item, list | tuple) and len(item) == samples and any(rows_of(part) != samples for part in item):
        return f"len({name})"
    found = (list_size(part, samples, name + step) for step, part in parts_of(item))
    return next((code for code in found if code is not None), None)


def _tensors(item: object, reach: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    """Yield each tensor of a nest with the way to it."""
    if isinstance(item, torch.Tensor):
        yield reach, item
        return
    for step, part in parts_of(item):
        yield from _tensors(part, (*reach, step))


Counting = Iterator[tuple[str, "Callable[[torch.Tensor], torch.Tensor]"]]


def _is_whole_number(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype is not torch.bool


def _labels(name: str, tensor: torch.Tensor) -> Counting:
    if not _is_whole_number(tensor) or not bool((tensor == IGNORED).any()):
        return
    yield f"({name} != {IGNORED}).sum()", lambda labels: (labels != IGNORED).sum()
    if tensor.dim() > 1:  # a causal language model predicts from the second token on
        yield f"({name}[:, 1:] != {IGNORED}).sum()", lambda labels: (labels[:, 1:] != IGNORED).sum()


def _masks(name: str, tensor: torch.Tensor) -> Counting:
    if tensor.dtype is torch.bool:
        yield f"{name}.sum()", lambda mask: mask.sum()
        yield f"(~{name}).sum()", lambda mask: (~mask).sum()
        if tensor.dim() > 1:
            yield f"{name}[:, 1:].sum()", lambda mask: mask[:, 1:].sum()
            yield f"{name}.any(-1).sum()", lambda mask: mask.any(-1).sum()
    elif tensor.dim() and bool(((tensor == 0) | (tensor == 1)).all()) and bool((tensor == 0).any()):
        yield f"{name}.sum()", lambda mask: mask.sum()
        yield f"(1 - {name}).sum()", lambda mask: (1 - mask).sum()
        if tensor.dim() > 1:
            yield f"{name}[:, 1:].sum()", lambda mask: mask[:, 1:].sum()


def _padding(name: str, tensor: torch.Tensor) -> Counting:
    if tensor.is_complex() or not tensor.dim() or tensor.dtype is torch.bool:
        return
    if _is_whole_number(tensor):
        yield f"({name} > 0).sum()", lambda values: (values > 0).sum()
        last = tensor[..., -1] if tensor.dim() > 1 else tensor
        for value in sorted(set(last.flatten().tolist()))[:_MOST_PADDING_VALUES]:
            yield f"({name} != {value}).sum()", _unequal(value)
            if tensor.dim() > 1:
                yield f"({name}[:, 1:] != {value}).sum()", _unequal(value, start=1)
    else:
        yield f"({name} > 0).sum()", lambda values: (values > 0).sum()
        yield f"({name} != 0).sum()", lambda values: (values != 0).sum()
        yield f"{name}.sum()", lambda values: values.sum()


def _unequal(value: int, start: int = 0) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda values: ((values[:, start:] if start else values) != value).sum()


def _weight_of_labels(weights: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda labels: weights[labels[labels >= 0]].sum()


def _lengths(name: str, tensor: torch.Tensor) -> Counting:
    if _is_whole_number(tensor) and tensor.dim() == 1 and bool((tensor >= 0).all()):
        yield f"{name}.sum()", lambda lengths: lengths.sum()
        yield f"({name} - 1).sum()", lambda lengths: (lengths - 1).sum()


class LabelLosses(TorchFunctionMode):
    """See whether labels were left out of the mean of a cross entropy.

    Attributes:
        is_mean_over_labels: Whether a cross entropy took the mean over more labels than there are samples.
        leaves_labels_out: Whether one of its labels did not count.
        class_weights: Weights of classes that it was given.
    """

    def __init__(self, samples: int) -> None:
        super().__init__()
        self._samples = samples
        self.is_mean_over_labels = False
        self.leaves_labels_out = False
        self.class_weights: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Function, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        del types
        if func in (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss):
            self._see(args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _see(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        labels = args[1] if len(args) > 1 else kwargs.get("target")
        if kwargs.get("reduction", "mean") != "mean" or labels is None or labels.is_floating_point():
            return
        weight = args[2] if len(args) > 2 else kwargs.get("weight")  # noqa: PLR2004 - input, target, weight
        if weight is not None:
            self.class_weights.append(weight.detach())
        is_index = labels.numel() == labels.unique().numel()  # of pairs, as in contrastive losses
        self.is_mean_over_labels |= labels.numel() > self._samples and not is_index
        self.leaves_labels_out |= bool((labels == kwargs.get("ignore_index", IGNORED)).any())
