"""Whether the sizes that were filled in are those that the model got. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import OomdoctorError, TargetError
from oomdoctor.probing.command.template import REQUIRED

if TYPE_CHECKING:
    from oomdoctor.probing.command.hearing import Heard

_SAME_SHARE: Final = 0.001
"""Peaks that differ by less than this share are taken for the same."""


@dataclass(slots=True)
class Following:
    """What reached the model, and the memory that it took, by micro-batch.

    Attributes:
        leading: Leading dimensions of the first batch.
        peaks: Most bytes allocated.
    """

    leading: dict[int, frozenset[int]] = field(default_factory=dict)
    peaks: dict[int, int] = field(default_factory=dict)

    def problem_of(self, micro_batch: int, heard: Heard, peak_bytes: int | None) -> OomdoctorError | None:
        """Take in a trial that fits, and say what is wrong with it; None where nothing is known to be.

        Args:
            micro_batch: The size that was filled in.
            heard: What was heard of its trial.
            peak_bytes: Most bytes allocated in it.
        """
        others = {size: peak for size, peak in self.peaks.items() if size != micro_batch}
        self.leading[micro_batch] = _leading(heard)
        self.peaks[micro_batch] = peak_bytes or 0
        if self._is_cut(micro_batch):
            return _cut(micro_batch, max(self.leading[micro_batch]))
        for size in others:
            if self._is_ignored(micro_batch, size):
                return _ignored(micro_batch, size)
        return None

    def _is_ignored(self, first: int, second: int) -> bool:
        """Neither what reached the model nor the memory tells two sizes apart."""
        larger = max(self.peaks[first], self.peaks[second])
        same_memory = abs(self.peaks[first] - self.peaks[second]) <= _SAME_SHARE * larger
        return same_memory and self.leading[first] == self.leading[second]

    def _is_cut(self, micro_batch: int) -> bool:
        """Fewer samples than asked for reached the model, where at another size just as many did."""
        seen = self.leading[micro_batch]
        follows = any(size in leading for size, leading in self.leading.items() if size != micro_batch)
        return follows and bool(seen) and max(seen) < micro_batch


def _leading(heard: Heard) -> frozenset[int]:
    batches = [batch for pid, batch in heard.batches.items() if pid in heard.devices]
    return frozenset(shape[0] for batch in batches for shape in batch.shapes if shape)


def _cut(micro_batch: int, seen: int) -> OomdoctorError:
    return TargetError(
        f"micro-batch {micro_batch} was asked for, and a batch of {seen} reached the model",
        hint="its data may have no more samples than that: give it more, or ask for a smaller `--target-batch`",
    )


def _ignored(first: int, second: int) -> OomdoctorError:
    low, high = sorted((first, second))
    return TargetError(
        f"the command does not heed `{REQUIRED}`: at {low} and at {high} the same batch reached the model, and "
        "training took the same memory",
        hint="put the placeholder where the command's own batch size goes; a configuration file may set it otherwise",
    )
