"""The search over sets of remedies: greedy, since remedies do not add up and the peak moves between phases.

Each remedy is measured alone; the best is taken, all others are measured again on top of it, and so on until the size
that is needed is reached or nothing gains a sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from oomdoctor.prescription.measuring import order, price
from oomdoctor.remedies.catalogue import BY_ID, EXACTNESS, REMEDIES, remedy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from oomdoctor.results.prescribe import MeasuredRemedies

    Names = tuple[str, ...]
    Measure = Callable[[Sequence[Names]], list[MeasuredRemedies]]

Keep: TypeAlias = Literal["same", "rounding", "any"]


@dataclass(frozen=True, slots=True)
class Found:
    """What the search found.

    Attributes:
        alone: A row for each remedy.
        combined: Rows of several, in the order in which they were measured.
        chosen: The row to prescribe; None where nothing gains.
    """

    alone: tuple[MeasuredRemedies, ...]
    combined: tuple[MeasuredRemedies, ...]
    chosen: MeasuredRemedies | None


def search(  # noqa: PLR0913 - each is a fact of its own
    measure: Measure,
    plain: MeasuredRemedies,
    *,
    need: int | None,
    keep: Keep,
    without: Iterable[str] = (),
    beside: Iterable[str] = (),
    blocks: Callable[[Names], int],
) -> Found:
    """Measure remedies and their combinations.

    Args:
        measure: Returns a row for each set.
        plain: The target as it is.
        need: The size that is enough; None for as much as possible.
        keep: What combinations leave the same.
        without: Remedies to leave out.
        beside: Remedies to measure although they are measured on request only.
        blocks: Returns how many blocks a measured set checkpoints at most.
    """
    asked = _asked(beside)
    alone = measure([(name,) for name in names_alone(without, beside)])
    rows = [
        row
        for row in alone
        if row.outcome == "measured"
        and _is_kept(row, keep)
        and (row.remedies[0] in asked or not BY_ID[row.remedies[0]].alone)
    ]
    useful = [row.remedies[0] for row in rows]
    first, best, combined = rows, plain, []
    while rows and not _is_enough(best, need):
        # Less room at the edge is no gain: a larger maximum with a smaller recommended size is passed over.
        gains = [row for row in rows if row.recommended >= best.recommended or _is_enough(row, need)]
        winner = max(gains, key=order, default=best)
        if winner.maximum <= best.maximum:
            break
        best = winner
        kinds = {remedy(name).kind for name in best.remedies}
        if _is_enough(best, need):
            break
        rows = measure([(*best.remedies, name) for name in useful if BY_ID[name].kind not in kinds])
        combined += rows
        rows = [row for row in rows if row.outcome == "measured"]
    if not best.remedies:
        return Found(tuple(alone), tuple(combined), None)
    chosen, more = _cheapest(measure, [*first, *combined], best, need, keep, blocks)
    return Found(tuple(alone), (*combined, *more), chosen)


def names_alone(without: Iterable[str], beside: Iterable[str]) -> list[str]:
    """Return the ids of the remedies that are measured alone, in the catalogue's order."""
    left_out, asked = {*without}, _asked(beside)
    return [one.id for one in REMEDIES if one.id not in left_out and (not one.on_request or one.id in asked)]


def _asked(beside: Iterable[str]) -> set[str]:
    """Return what `--with` asks for, and what is asked for by the same name."""
    named = {*beside}
    return named | {one.id for one in REMEDIES if one.asked_with in named}


def _is_kept(row: MeasuredRemedies, keep: Keep) -> bool:
    return keep == "any" or EXACTNESS.index(row.exactness) <= EXACTNESS.index(keep)


def _is_enough(row: MeasuredRemedies, need: int | None) -> bool:
    return row.limited_by == "target" or (need is not None and row.maximum >= need)


def _cheapest(  # noqa: PLR0913, PLR0917 - what the search knows
    measure: Measure,
    rows: Sequence[MeasuredRemedies],
    best: MeasuredRemedies,
    need: int | None,
    keep: Keep,
    blocks: Callable[[Names], int],
) -> tuple[MeasuredRemedies, list[MeasuredRemedies]]:
    """Return the cheapest row that is as good as the best, and rows that were measured for that.

    As good is to reach what is needed, or else as much as the best, with headroom and without.
    """

    def is_as_good(row: MeasuredRemedies) -> bool:
        return row.maximum >= enough and (need is not None or row.recommended >= best.recommended)

    enough = best.maximum if need is None else min(need, best.maximum)
    measured = [row for row in rows if row.outcome == "measured" and _is_kept(row, keep)]
    chosen = min(filter(is_as_good, measured), key=price)
    more: list[MeasuredRemedies] = []
    for name in sorted(chosen.remedies, key=lambda name: -remedy(name).rank):
        rest = tuple(other for other in chosen.remedies if other != name)
        if rest:
            row = measure([rest])[0]
            more += [row]
            chosen = row if is_as_good(row) else chosen
    whole = next((name for name in chosen.remedies if remedy(name).kind == "checkpoint"), None)
    if whole is not None and _is_enough(chosen, need):
        fewer = _fewest_blocks(measure, chosen, whole, enough, blocks(chosen.remedies))
        more += fewer
        chosen = min((row for row in (chosen, *fewer) if row.maximum >= enough), key=price)
    return chosen, [row for row in more if row not in rows]


def _fewest_blocks(
    measure: Measure, chosen: MeasuredRemedies, whole: str, enough: int, total: int
) -> list[MeasuredRemedies]:
    """Bisect for the least number of blocks whose checkpointing is enough; return every row on the way."""
    rows: list[MeasuredRemedies] = []
    low, high = 0, total
    while high - low > 1:
        middle = (low + high) // 2
        names = tuple(f"checkpoint-first-{middle}" if name == whole else name for name in chosen.remedies)
        row = measure([names])[0]
        rows.append(row)
        low, high = (low, middle) if row.maximum >= enough else (middle, high)
    return rows


def with_front(rows: Sequence[MeasuredRemedies]) -> list[MeasuredRemedies]:
    """Return the rows with those marked that nothing cheaper reaches: the front of maximum against cost."""
    measured = [row for row in rows if row.outcome == "measured"]

    def is_beaten(row: MeasuredRemedies) -> bool:
        return any(other.maximum >= row.maximum and price(other) < price(row) for other in measured)

    return [replace(row, on_front=row in measured and not is_beaten(row)) for row in rows]
