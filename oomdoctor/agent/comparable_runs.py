"""Two runs of one script, made comparable: one seed, a short epoch, fixed weights; no dropout, autocast or clipping.

The runs differ in their micro-batch and accumulation steps alone. What draws random numbers in a forward would differ
between them though nothing is wrong, what rounds to half precision would hide small differences, and an epoch of the
user's data is too long to see its end. They are held against each other by numbers for the samples that a module is
called with.
"""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import functools
import math
import random
import sys
from itertools import chain
from operator import length_hint
from typing import TYPE_CHECKING, Any

from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_TENSORS, _AFTER_THE_TENSORS = 4, ("dropout_p", "is_causal")
"""Arguments of `scaled_dot_product_attention` that may be given by position."""
_MOST_ORDERS, _MOST_INDICES, _MOST_INDEX = 16, 256, 2**62


def seed(torch: Any) -> None:
    """Seed PyTorch, `random` and, where it is imported, NumPy; a script that seeds them itself does so later."""
    torch.manual_seed(0)
    random.seed(0)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)


def without_dropout(torch: Any, seen: Callable[[], Any]) -> None:
    """Let dropout be the identity, which it is on average.

    Args:
        torch: The module.
        seen: Called where dropout would have drawn.
    """
    functional = torch.nn.functional
    for name in _DROPOUTS:
        setattr(functional, name, _identity(getattr(functional, name), seen))
    attention = functional.scaled_dot_product_attention

    @functools.wraps(attention)
    def scaled_dot_product_attention(*arguments: Any, **named: Any) -> Any:
        named.update(zip(_AFTER_THE_TENSORS, arguments[_TENSORS:]))  # noqa: B905 - Python 3.8 has no `strict`
        if named.get("dropout_p"):
            seen()
            named["dropout_p"] = 0.0
        return attention(*arguments[:_TENSORS], **named)

    functional.scaled_dot_product_attention = scaled_dot_product_attention


def _identity(original: Callable[..., Any], seen: Callable[[], Any]) -> Callable[..., Any]:
    default = original.__defaults__ or ()

    @functools.wraps(original)
    def dropout(input: Any, p: float = 0.5, training: Any = default[1], inplace: bool = False) -> Any:  # noqa: A002, FBT001, FBT002 - as ever
        if not training or not p:
            return original(input, p, training, inplace)
        seen()
        return input if inplace else input.clone()

    return dropout


def without_autocast(torch: Any) -> None:
    """Let autocast do nothing, so that gradients are not rounded to half precision."""
    autocast = torch.amp.autocast_mode.autocast
    enter = autocast.__enter__

    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:  # noqa: N807 - it replaces one of that name
        self._enabled = False
        return enter(self)

    autocast.__enter__ = __enter__


def without_limit(clip: Callable[..., Any]) -> Callable[..., Any]:
    """Return a clipping function that measures and clips nothing, which would hide how large gradients are."""

    @functools.wraps(clip)
    def measure(parameters: Any, *limits: Any, **named: Any) -> Any:
        named = {name: value for name, value in named.items() if name not in ("max_norm", "clip_value")}
        return clip(parameters, math.inf, *limits[1:], **named)

    return measure


class ShortEpoch:
    """Epochs of so many samples, for loaders of the batch sizes that were asked for.

    Args:
        torch: The module.
        sizes: Micro-batch, accumulation steps, and the samples that an epoch has at most.

    Attributes:
        orders: Indices of the samples that loaders took, one list for each time through.
        is_cut: Whether an epoch was cut short, or had no more samples.
        is_even: Whether the program's own epoch, before it was cut, has whole windows only.
    """

    def __init__(self, torch: Any, sizes: tuple[int, ...]) -> None:
        self._sampler = torch.utils.data.BatchSampler
        micro_batch, steps, self._samples = sizes
        self._batch_sizes = (micro_batch, micro_batch * steps)
        self._steps = steps
        self._keeps_last = steps == 1  # samples that a larger batch would drop are in the smaller ones
        self.orders: list[list[int]] = []
        self.is_cut = False
        self.is_even = False

    def apply(self) -> None:
        """Shorten all loaders from now on."""
        iterate, length, epoch = self._sampler.__iter__, self._sampler.__len__, self

        @functools.wraps(iterate)
        def __iter__(self: Any) -> Any:  # noqa: N807 - it replaces one of that name
            return epoch._shortened(self, iterate(self))

        @functools.wraps(length)
        def __len__(self: Any) -> int:  # noqa: N807 - it replaces one of that name
            batches = int(length(self))
            return min(batches, epoch._batches(self)) if epoch._is_meant(self) else batches

        self._sampler.__iter__, self._sampler.__len__ = __iter__, __len__

    def _is_meant(self, sampler: Any) -> bool:
        return getattr(sampler, "batch_size", None) in self._batch_sizes

    def _batches(self, sampler: Any) -> int:
        whole, rest = divmod(self._samples, sampler.batch_size)
        return int(whole + (1 if rest and not self._drops_last(sampler) else 0))

    def _drops_last(self, sampler: Any) -> bool:
        return bool(sampler.drop_last) and not self._keeps_last

    def _shortened(self, sampler: Any, batches: Iterator[Any]) -> Iterator[Any]:
        if not self._is_meant(sampler):
            yield from batches
            return
        self.is_even = guarded(self._has_whole_windows)(sampler) or False
        order: list[int] = []
        if len(self.orders) < _MOST_ORDERS:
            self.orders.append(order)
        left = self._samples
        for batch in batches:
            part = list(batch)[:left]
            if len(part) < sampler.batch_size and self._drops_last(sampler):
                break
            left -= len(part)
            guarded(_note)(order, part)
            self.is_cut = self.is_cut or left <= 0  # a loop that knows the length does not ask for more
            yield part
            if left <= 0:
                break
        self.is_cut = True

    def _has_whole_windows(self, sampler: Any) -> bool:
        samples = length_hint(getattr(sampler, "sampler", ()), 1)
        left = samples % (sampler.batch_size * self._steps)
        return left == 0 or (bool(sampler.drop_last) and left < sampler.batch_size)


def _note(order: list[int], part: list[Any]) -> None:
    if len(order) < _MOST_INDICES:
        order.extend(index if isinstance(index, int) else hash(str(index)) % _MOST_INDEX for index in part)


class FixedWeights:
    """Weights that an optimizer's step leaves as they were, so that every window starts from the same ones.

    Args:
        torch: The module.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._kept: list[tuple[Any, Any]] = []

    def keep(self, optimizer: Any) -> None:
        """Keep the weights before a step."""
        parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        self._kept = [(one, one.detach().clone()) for one in parameters]

    def put_back(self) -> None:
        """Put the weights back after it."""
        with self._torch.no_grad():
            for parameter, before in self._kept:
                parameter.copy_(before)
        self._kept = []


_MASK = 2**62 - 1  # messages have no negative numbers
_FACTOR = 2654435761


class SampleRows:
    """Reads the samples of a module's inputs: rows of tensors, and items of lists with an item a sample.

    Args:
        torch: The module.
        micro_batch: Samples that a micro-batch of this run has.
    """

    def __init__(self, torch: Any, micro_batch: int) -> None:
        self._torch = torch
        self._micro_batch = micro_batch
        self._has_lists = False

    def of(self, inputs: Iterable[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return a number for each sample, the same for the same samples; and the first input's shape, samples first.

        Both are empty where no input leads with samples.
        """
        columns = [column for column in self._columns(inputs) if column[1] and column[1][0]]
        alike = [column for column in columns if column[1][0] == columns[0][1][0]]
        numbers = [self._numbers(held) for held, _ in alike]
        seen = [each for each in numbers if each]
        rows = [0] * len(seen[0]) if seen else []
        for each in seen:  # Python 3.8 has no `strict`
            rows = [(row * 31 + number) & _MASK for row, number in zip(rows, each)]  # noqa: B905
        return tuple(rows), columns[0][1] if columns else ()

    def _columns(self, held: Any) -> Iterable[tuple[Any, tuple[int, ...]]]:
        """Yield each tensor, or list with an item a sample, with its shape."""
        for value in held.values() if isinstance(held, dict) else held:
            if isinstance(value, self._torch.Tensor):
                yield value, tuple(value.shape)
            elif isinstance(value, (list, tuple)) and self._is_of_samples(value):
                yield list(value), (len(value), *next((tuple(one.shape) for one in self.tensors(value)), ()))
            elif isinstance(value, (list, tuple, dict)):
                yield from self._columns(value)

    def _is_of_samples(self, items: Any) -> bool:
        """Return whether a list has an item a sample; a list of whole columns has tensors that lead with all samples.

        The first list of a whole micro-batch decides, so that a last one with fewer samples is read alike.
        """
        leading = [one.shape[0] for one in self.tensors(items) if one.dim()]
        if len(items) == self._micro_batch and any(size != self._micro_batch for size in leading):
            self._has_lists = True
        return self._has_lists and bool(leading) and len(items) <= self._micro_batch

    def _numbers(self, held: Any) -> list[int]:
        if isinstance(held, list):
            return [self._number_of_item(item) for item in held]
        if held.requires_grad or held.is_complex():
            return []
        rows = self._bytes(held).reshape(len(held), -1)
        return [int(number) for number in (rows * self._weights(rows.shape[1])).sum(1).tolist()]

    def _number_of_item(self, item: Any) -> int:
        """Return the number of one sample that is a tensor or a nest of them, of whatever shapes."""
        total = 0
        for tensor in self.tensors([item]):
            if not (tensor.requires_grad or tensor.is_complex()):
                flat = self._bytes(tensor).flatten()
                total = (total * 31 + len(flat) + int((flat * self._weights(len(flat))).sum())) & _MASK
        return total

    def _bytes(self, tensor: Any) -> Any:
        torch = self._torch
        return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).to(torch.int64)

    def _weights(self, length: int) -> Any:
        return self._torch.arange(1, length + 1, device="cpu") * _FACTOR

    def tensors(self, held: Any) -> Iterable[Any]:
        """Yield the tensors of a nest."""
        for value in held.values() if isinstance(held, dict) else held:
            if isinstance(value, self._torch.Tensor):
                yield value
            elif isinstance(value, (list, tuple, dict)):
                yield from self.tensors(value)
