"""Whether two sets of figures can be compared at all, and what besides the user's code differs between them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.checking.baseline.figures import Figures, MemoryFigures
    from oomdoctor.checking.baseline.trials import TrialFigures

_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "torch": "torch {}",
        "device": "the device kind `{}`",
        "card": "{}",
        "precision": "{}",
        "optimizer": "{}",
        "target_batch": "a target batch of {}",
        "world_size": "a world size of {}",
    }
)


def differences(before: Figures, after: Figures) -> tuple[str, ...]:
    """One sentence for each thing besides the user's code that differs, and for what therefore is not compared.

    Args:
        before: The baseline's figures.
        after: Those of now.
    """
    if before.is_command != after.is_command:
        return ()  # that they are not compared is said, and why
    old, new = before.circumstances, after.circumstances
    found = [
        _sentence(words.format(getattr(old, name)), words.format(getattr(new, name)))
        for name, words in _WORDS.items()
        if None not in (getattr(old, name), getattr(new, name)) and getattr(old, name) != getattr(new, name)
    ]
    if old.capacity_bytes != new.capacity_bytes:
        found.append(_sentence(_capacity(old.capacity_bytes), _capacity(new.capacity_bytes)))
    if before.memory is None and after.memory is not None:
        found.append("the baseline has no memory by category, so that only the maximum is compared")
    if before.is_command and after.trials and not before.trials:
        found.append("the baseline has no memory by phase, so that only the maximum is compared")
    return tuple(found)


def common_trials(before: Figures, after: Figures) -> tuple[TrialFigures, TrialFigures] | None:
    """Trials at the largest size that both have and that can be compared; None where there is none."""
    sizes = sorted(before.trials.keys() & after.trials.keys(), reverse=True)
    pairs = ((before.trials[size], after.trials[size]) for size in sizes)
    return next((pair for pair in pairs if is_comparable(*pair)), None)


def not_compared(before: Figures, after: Figures) -> str | None:
    """Why what the baseline has cannot be compared; None where it can, or where the baseline has nothing."""
    if before.is_command != after.is_command:
        was, now = ("a command", "a file") if before.is_command else ("a file", "a command")
        return f"the baseline is of {was}, and the entry is {now} now, so that nothing is compared"
    if not before.trials:
        return None if before.is_command else left_out(before.memory, after.memory)
    if after.memory is not None or common_trials(before, after) is not None:
        return None  # of the first it is said that circumstances differ
    sizes = " and ".join(map(str, sorted(before.trials)))
    return (
        f"the baseline has memory at micro-batch {sizes}, this check has none to compare: only the maximum is compared"
    )


def is_comparable(before: MemoryFigures | TrialFigures | None, after: MemoryFigures | TrialFigures | None) -> bool:
    """Whether memory was recorded at the same size, and with gradients accumulated in both or in neither."""
    if before is None or after is None:
        return False
    return before.micro_batch == after.micro_batch and (before.micro_steps > 1) == (after.micro_steps > 1)


def _sentence(before: str, after: str) -> str:
    return f"the baseline was made with {before}, this check ran with {after}: figures may differ for that alone"


def _capacity(size_bytes: int) -> str:
    return f"a capacity of {format_size(size_bytes)}"


def left_out(before: MemoryFigures | None, after: MemoryFigures | None) -> str | None:
    """Why memory that the baseline has cannot be compared; None where it can, or where the baseline has none."""
    if before is None or is_comparable(before, after):
        return None
    if after is None:
        return "memory by category could not be recorded, so that only the maximum is compared"
    return f"the baseline has memory {_size(before)}, this check {_size(after)}: only the maximum is compared"


def _size(memory: MemoryFigures) -> str:
    accumulated = "with" if memory.micro_steps > 1 else "without"
    return f"at micro-batch {memory.micro_batch} {accumulated} accumulation"
