"""Sentences about figures that moved, such as "activations +412.00 MiB at micro-batch 8.

+61 % in `encoder.layers.*`".
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.report.plain_text import CATEGORY_WORDS
from oomdoctor.results import Category
from oomdoctor.units import format_signed_size, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.check.baseline.figures import Figures, MemoryFigures, TrialFigures


if TYPE_CHECKING:
    Rows = Mapping[str | None, int]

# More than two thirds, which a transformer's feed-forward layers are of each block: a block more is no wider layer.
_SHARE_THAT_EXPLAINS: Final = Fraction(3, 4)
_DEEPEST: Final = 30


@dataclass(frozen=True, slots=True)
class ModuleChange:
    """A part of the model, with all modules below it.

    Attributes:
        module: Path of the module; empty for the whole model; None for what no module accounts for.
        before: Bytes of the category there, in the baseline.
        after: Bytes of the category there, now.
    """

    module: str | None
    before: int
    after: int


def deepest_change(before: Rows, after: Rows) -> ModuleChange | None:
    """The deepest module that covers at least three quarters of a category's change, or what is outside of all modules.

    Args:
        before: Bytes of the category by module, in the baseline.
        after: The same now.

    Returns:
        The place; None where nothing changed, or where neither the model nor what is outside it covers most.
    """
    change = sum(after.values()) - sum(before.values())
    if not change:
        return None
    old, new = _with_parents(before), _with_parents(after)
    places = [
        ModuleChange(module, old.get(module, 0), new.get(module, 0)) for module in sorted({**old, **new}, key=str)
    ]
    below: defaultdict[str | None, list[ModuleChange]] = defaultdict(list)
    for place in places:
        sign = 1 if change > 0 else -1
        if (place.after - place.before) * sign >= _SHARE_THAT_EXPLAINS * abs(change):
            below[(place.module.rpartition(".")[0] if place.module else None)].append(place)
    return _deepest(below)


def _deepest(below: Mapping[str | None, list[ModuleChange]]) -> ModuleChange | None:
    """Go down from the whole to the part of it that changed most, and on from there."""
    found, parts = None, below.get(None, [])
    while parts:
        found = max(parts, key=lambda place: abs(place.after - place.before))
        parts = [] if found.module is None else below.get(found.module, [])
    return found


def _with_parents(rows: Rows) -> dict[str | None, int]:
    """Return bytes of each module with all that is below it, up to the whole model's."""
    found: defaultdict[str | None, int] = defaultdict(int)
    for module, size in rows.items():
        for path in _paths(module):
            found[path] += size
    return found


def _paths(module: str | None) -> tuple[str | None, ...]:
    """Return the module, each that it is in, and the whole model."""
    if not module:
        return (module,)
    return ("", *accumulate(module.split(".", _DEEPEST), "{}.{}".format))


_OUTSIDE: Final = "outside the modules"
_PHASES: Final[Mapping[str, str]] = MappingProxyType(
    {"forward": "forward", "backward": "backward", "optimizer": "the optimizer step"}
)
_CATEGORIES: Final = {words: category for category, words in CATEGORY_WORDS.items()}
_MOST: Final = Fraction(2, 3)
_TIMES: Final = 20  # from which a percentage says no more than that there was next to nothing before
_MANY: Final = 10  # percent, from which no decimals are shown
_FEW: Final = 0.1  # percent, below which nobody wants to know how few


def category_of(name: str) -> Category:
    """Return the category that `CATEGORY_WORDS` gave a name to."""
    return _CATEGORIES[name]


def module_name(module: str | None, category: Category) -> str:
    """Return a figure by module, such as `encoder.layers.* activations`."""
    place = _OUTSIDE if module is None else module or "the model itself"
    return f"{CATEGORY_WORDS[category]} {place}" if module is None else f"{place} {CATEGORY_WORDS[category]}"


def maximum(before: Figures, after: Figures) -> str:
    """Return the movement of the largest micro-batch, and of the plan with it."""
    text = f"maximum micro-batch {before.maximum} -> {after.maximum}"
    if not after.maximum:
        return f"{text}: not one sample fits any more"
    if after.limited_by == "target" and before.maximum > after.maximum:
        return f"{text}, the whole target of a device"
    old, new = before.accumulation_steps, after.accumulation_steps
    if old is None or new is None or old == new:
        return text
    return f"{text}, so {new} accumulation step{'' if new == 1 else 's'} instead of {old}"


def peak(name: str, before: int, after: int, memory: MemoryFigures | TrialFigures) -> str:
    """Return the movement of a peak."""
    when = f" in {memory.peak_phase}" if name == "allocated" else ""
    return f"{plain(f'peak {name}', before, after, memory)} to {format_size(after)}{when}"


def category(category: Category, before: MemoryFigures, after: MemoryFigures) -> str:
    """Return the movement of a category, and the part of the model that explains it."""
    old, new = before.categories.get(category, 0), after.categories.get(category, 0)
    text = _moved(CATEGORY_WORDS[category], old, new, after)
    place = deepest_change(before.modules.get(category, {}), after.modules.get(category, {}))
    if place is None or place.module is None:
        return f"{text}, {_percent(old, new)}{_outside(category, before, after)}"
    if not place.module:
        return f"{text}, {_percent(old, new)}"
    if not place.before:
        # There was none of it at that moment; at another one there may have been.
        return f"{text}, {_percent(old, new)}, most of it in `{place.module}`"
    whole, there = _percent(old, new), _percent(place.before, place.after)
    # The bytes are the category's: where the module moved by another share, both are said, lest one be taken for both.
    text = text if whole == there else _moved(CATEGORY_WORDS[category], old, new, after, f" ({whole})")
    return f"{text}, {there} in `{place.module}`"


def phase(name: str, before: MemoryFigures, after: MemoryFigures) -> str:
    """Return the movement of a phase, and the category that explains it."""
    old, new = before.phases.get(name, {}), after.phases.get(name, {})
    change = sum(new.values()) - sum(old.values())
    text = plain(name, sum(old.values()), sum(new.values()), after)
    found = [one for one in Category if _is_most(new.get(one, 0) - old.get(one, 0), change)]
    return f"{text}, most of it {CATEGORY_WORDS[found[0]]}" if len(found) == 1 else text


def module(module: str | None, category: Category, before: MemoryFigures, after: MemoryFigures) -> str:
    """Return the movement of a module's share of a category."""
    old, new = (side.modules.get(category, {}).get(module, 0) for side in (before, after))
    name = f"`{module}` {CATEGORY_WORDS[category]}" if module else module_name(module, category)
    return plain(name, old, new, after)


def plain(name: str, before: int, after: int, memory: MemoryFigures | TrialFigures) -> str:
    """Return the movement of any figure."""
    text = _moved(name, before, after, memory)
    return f"{text}, {_percent(before, after)}" if before else text


def _moved(name: str, before: int, after: int, memory: MemoryFigures | TrialFigures, share: str = "") -> str:
    return f"{name} {format_signed_size(after - before)}{share} at micro-batch {memory.micro_batch}"


def _outside(category: Category, before: MemoryFigures, after: MemoryFigures) -> str:
    """When a category moved that no module accounts for, such as the temporaries of an optimizer."""
    change = after.categories.get(category, 0) - before.categories.get(category, 0)
    moved = {
        name: sizes.get(category, 0) - before.phases.get(name, {}).get(category, 0)
        for name, sizes in after.phases.items()
    }
    kinds = {name.rpartition(" ")[2] for name, moved_bytes in moved.items() if _is_most(moved_bytes, change)}
    return "".join(f" in {_PHASES[kind]}" for kind in kinds if len(kinds) == 1 and kind in _PHASES)


def _is_most(part: int, change: int) -> bool:
    return part * change > 0 and abs(part) >= _MOST * abs(change)


def _percent(before: int, after: int) -> str:
    if not before:
        return "new"
    if after > _TIMES * before:
        return "from next to nothing"
    percent = 100 * (after - before) / before
    if abs(percent) >= _MANY:
        return f"{percent:+.0f} %"
    return f"{percent:+.1f} %" if abs(percent) >= _FEW else f"{'+' if percent > 0 else '-'}<{_FEW} %"
