"""Numbers for the samples that a module is called with, by which two runs of a script are held against each other."""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

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
