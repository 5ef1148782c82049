"""What a list or tuple of a batch is: its parts, each with all samples, or its samples.

Both look alike when there are as many items as samples, and an epoch's last batch can have any number of samples. So
the answer never hangs on a number alone: what could be read either way is refused, from an epoch's first batch on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from oomdoctor.api.rows import is_array, is_plain_sequence, is_rows, leading_in, parts_of, rows_of, unsplittable
from oomdoctor.errors import UsageError
from oomdoctor.targets.placement import described

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
        """Whether a list or tuple has an item a sample; otherwise each item is read by itself.

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
        """Whether as many items as samples are the samples; a tuple of tensors alone is never taken for them."""
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
        """Whether each item has as many items again, so that it cannot be told which are the samples."""
        has_rows = next(leading_in(items), None) is not None
        return has_rows and all(is_plain_sequence(item) and len(item) == self.samples for item in items)

    def _has_all_samples(self, item: Any) -> bool:  # noqa: ANN401 - anything
        """Whether all samples are in this one item, so that it can be a part of the batch."""
        if is_rows(item) or unsplittable(item):
            return rows_of(item) == self.samples
        if is_plain_sequence(item) and len(item) == self.samples and _are_alike(item):
            return True
        parts = [part for _, part in parts_of(item)]
        full = [self._has_all_samples(part) for part in parts]
        return any(full) and all(is_full or _is_whole(part) for part, is_full in zip(parts, full, strict=True))


def _is_whole(item: object) -> bool:
    """Whether nothing in it leads with samples, so that all of it is in every micro-batch."""
    return unsplittable(item) is None and all(rows == 1 for rows in leading_in(item))


def _are_alike(items: Any) -> bool:  # noqa: ANN401 - a tuple or list
    """Whether items are of one kind, as samples are and parts are often not."""
    return len({_deep_kind(item) for item in items if item is not None}) <= 1


def _look_alike(items: Any) -> bool:  # noqa: ANN401 - a tuple or list
    """Whether items are of one kind from without."""
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
