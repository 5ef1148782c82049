"""The bench's results as Markdown: how the promises are kept, and each case with its signed errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from accuracy_summary import KINDS, TRUTH, compared, is_answered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Row = dict[str, Any]


def promises(summary: Row) -> Iterator[str]:
    """Lines of the table of promises."""
    yield "| promise | promised of | kept by | of |"
    yield "| --- | ---: | ---: | ---: |"
    for each in summary["promises"]:
        kept = "-" if each["share"] is None else f"{each['share']:.1%}"
        missed = "" if each["holds"] else " (missed)"
        yield f"| {each['promise']} | {each['promised']:.0%} | {kept}{missed} | {each['of']} |"


def cases(rows: Sequence[Row], engine: str) -> Iterator[str]:
    """Lines of the table of cases: the truth's figures, and beside each the other engine's signed error."""
    figures = "peak allocated | error | peak reserved | error | maximum by capacity | error"
    yield f"| model | precision | optimizer | {figures} |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | --- | ---: |"
    found = compared(rows, engine) if engine != TRUTH else {}
    for row in rows:
        if is_answered(row, TRUTH):
            yield _line(row, found.get(row["name"]))


def _line(row: Row, errors: Mapping[str, Mapping[str, float]] | None) -> str:
    truth = row["engines"][TRUTH]
    size, peak = max(truth["peaks"].items(), key=lambda each: int(each[0]))
    figures = (
        f"{peak['allocated_bytes'] / 2**30:.2f} GiB at {size}",
        f"{peak['reserved_bytes'] / 2**30:.2f} GiB",
        " / ".join(str(maximum) for maximum in truth["maxima"].values()),
    )
    said = [_worst(errors[kind]) if errors else "" for kind in KINDS]
    cells = [cell for pair in zip(figures, said, strict=True) for cell in pair]
    return "| " + " | ".join([row["name"], row["precision"], truth["optimizer"], *cells]) + " |"


def _worst(errors: Mapping[str, float]) -> str:
    worst = max(errors.values(), key=abs)
    if not math.isfinite(worst):
        return "no answer"
    return "0" if worst == 0 else f"{worst:+.3%}"
