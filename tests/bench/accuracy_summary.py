"""What one engine's answers are off another's: signed errors, and how many of them keep to what is promised. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Row = dict[str, Any]
Errors = dict[str, dict[str, float]]
"""Signed errors by kind (`allocated`, `reserved`, `maxima`), then by micro-batch or capacity."""

TRUTH = "null"
KINDS = ("allocated", "reserved", "maxima")


@dataclass(frozen=True)
class Promise:
    """What is promised of errors.

    Attributes:
        text: As a reader is told it.
        kind: Which errors.
        least: Smallest signed error that keeps to it.
        most: Largest one.
        share: Part that has to keep to it: of the cases for peaks, of all questions for maxima.
    """

    text: str
    kind: str
    least: float
    most: float
    share: float

    def verdicts(self, errors: Errors) -> list[bool]:
        """Whether a case's errors keep to it: the worst of its peaks, and each of its maxima."""
        kept = [self.least <= error <= self.most for error in errors[self.kind].values()]
        return kept if self.kind == "maxima" else [all(kept)]


PROMISES = (
    Promise("peak allocated equal to the byte", "allocated", 0.0, 0.0, 0.5),
    Promise("peak allocated within 0.5 %", "allocated", -0.005, 0.005, 0.95),
    Promise("peak allocated within 3 %", "allocated", -0.03, 0.03, 1.0),
    Promise("peak reserved within 1 %", "reserved", -0.01, 0.01, 0.95),
    Promise("maximum micro-batch equal", "maxima", 0.0, 0.0, 0.9),
    Promise("maximum micro-batch at most 2 % above", "maxima", -math.inf, 0.02, 1.0),
)


def relative(found: int | None, truth: int) -> float:
    """Signed error as a part of the truth, or of 1 where that is 0; infinite where nothing was found."""
    return math.inf if found is None else (found - truth) / max(truth, 1)


def errors(found: Row, truth: Row) -> Errors:
    """Signed errors of one engine's answer to a case, at all that the other one's says."""
    peaks = {
        kind: {
            size: relative(found["peaks"].get(size, {}).get(f"{kind}_bytes"), peak[f"{kind}_bytes"])
            for size, peak in truth["peaks"].items()
        }
        for kind in ("allocated", "reserved")
    }
    maxima = truth["maxima"].items()
    return peaks | {"maxima": {capacity: relative(found["maxima"].get(capacity), size) for capacity, size in maxima}}


def compared(rows: Iterable[Row], engine: str) -> dict[str, Errors]:
    """Errors of an engine by case, over the cases that it was asked and the truth has an answer to."""
    return {
        row["name"]: errors(row["engines"][engine], row["engines"][TRUTH])
        for row in rows
        if engine in row["engines"] and is_answered(row, TRUTH)
    }


def is_answered(row: Row, engine: str) -> bool:
    """Whether an engine was asked a case and had all of the answer."""
    return engine in row["engines"] and "problem" not in row["engines"][engine]


def summary(rows: Sequence[Row], engine: str) -> Row:
    """How an engine keeps the promises, over all cases that the truth answers; where it has no answer it keeps none."""
    found = compared(rows, engine)
    asked = [row for row in rows if row["name"] in found]
    verdicts = [(promise, [kept for each in found.values() for kept in promise.verdicts(each)]) for promise in PROMISES]
    return {
        "cases": len(asked),
        "unanswered": [row["name"] for row in asked if not is_answered(row, engine)],
        "promises": [_row(promise, kept) for promise, kept in verdicts],
        "cases_with_all_maxima_equal": share([not any(each["maxima"].values()) for each in found.values()]),
        "worst": {kind: worst(found, kind) for kind in KINDS},
        "median_seconds": {name: _median_seconds(asked, name) for name in (engine, TRUTH)},
    }


def share(kept: Sequence[bool]) -> float | None:
    """Part that is true; None of nothing."""
    return round(sum(kept) / len(kept), 4) if kept else None


def worst(found: dict[str, Errors], kind: str) -> Row | None:
    """The largest error that is finite, and where it is; None where there is none."""
    finite: list[Row] = [
        {"error": error, "case": name, "at": at}
        for name, each in found.items()
        for at, error in each[kind].items()
        if math.isfinite(error)
    ]
    return max(finite, key=lambda each: abs(each["error"]), default=None)


def _row(promise: Promise, kept: Sequence[bool]) -> Row:
    # Not of the rounded share: 0.99996 is not all.
    holds = bool(kept) and sum(kept) >= promise.share * len(kept)
    return {"promise": promise.text, "of": len(kept), "share": share(kept), "promised": promise.share, "holds": holds}


def _median_seconds(rows: Iterable[Row], engine: str) -> float | None:
    seconds = [row["engines"][engine]["seconds"] for row in rows]
    return round(statistics.median(seconds), 2) if seconds else None
