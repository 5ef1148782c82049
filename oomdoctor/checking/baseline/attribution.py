"""Which part of a model explains that a category grew or fell: the deepest module that covers most of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    Rows = Mapping[str | None, int]

# More than two thirds, which a transformer's feed-forward layers are of each block: a block more is no wider layer.
_MOST: Final = Fraction(3, 4)
_DEEPEST: Final = 30


@dataclass(frozen=True, slots=True)
class Place:
    """A part of the model, with all modules below it.

    Attributes:
        module: Path of the module; empty for the whole model; None for what no module accounts for.
        before: Bytes of the category there, in the baseline.
        after: Bytes of the category there, now.
    """

    module: str | None
    before: int
    after: int


def explain(before: Rows, after: Rows) -> Place | None:
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
    places = [Place(module, old.get(module, 0), new.get(module, 0)) for module in sorted({**old, **new}, key=str)]
    below: defaultdict[str | None, list[Place]] = defaultdict(list)
    for place in places:
        if _covers(place, change):
            below[_parent(place.module)].append(place)
    return _deepest(below)


def _deepest(below: Mapping[str | None, list[Place]]) -> Place | None:
    """Go down from the whole to the part of it that changed most, and on from there."""
    found, parts = None, below.get(None, [])
    while parts:
        found = max(parts, key=lambda place: abs(place.after - place.before))
        parts = [] if found.module is None else below.get(found.module, [])
    return found


def _with_parents(rows: Rows) -> dict[str | None, int]:
    """Bytes of each module with all that is below it, up to the whole model's."""
    found: defaultdict[str | None, int] = defaultdict(int)
    for module, size in rows.items():
        for path in _paths(module):
            found[path] += size
    return found


def _paths(module: str | None) -> tuple[str | None, ...]:
    """The module, each that it is in, and the whole model."""
    if not module:
        return (module,)
    return ("", *accumulate(module.split(".", _DEEPEST), "{}.{}".format))


def _parent(module: str | None) -> str | None:
    """The module that a module is in; None above the whole model, and for what is outside of it."""
    return module.rpartition(".")[0] if module else None


def _covers(place: Place, change: int) -> bool:
    sign = 1 if change > 0 else -1
    return (place.after - place.before) * sign >= _MOST * abs(change)
