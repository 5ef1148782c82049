"""Arithmetic on sketches of gradients, in plain Python: the parent has no torch."""

from __future__ import annotations

import array
import base64
import math
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import Final, TypeAlias

Sketch: TypeAlias = Sequence[float]
BUCKETS: Final = 512
_LEAST_PIVOT: Final = 1e-9


@lru_cache(maxsize=1024)
def numbers(text: str) -> tuple[float, ...]:
    """Return the numbers of a sketch that the agent sent.

    Raises:
        ValueError: The text is none, as the command's own code could send.
    """
    found = array.array("d", base64.b64decode(text, validate=True))
    if len(found) != BUCKETS or not all(map(math.isfinite, found)):
        raise ValueError("a sketch has other numbers")
    return tuple(found)


def dot(first: Sketch, second: Sketch) -> float:
    """Return the inner product of two sketches."""
    return math.fsum(map(mul, first, second))


def norm(sketch: Sketch) -> float:
    """Return the norm of a sketch, that of the gradient but for a few per cent."""
    return math.sqrt(dot(sketch, sketch))


def scaled(sketch: Sketch, factor: float) -> list[float]:
    """Return a sketch times a factor."""
    return [factor * number for number in sketch]


def difference(first: Sketch, second: Sketch) -> list[float]:
    """Return the sketch of a difference."""
    return [a - b for a, b in zip(first, second, strict=True)]


def error(ours: Sketch, true: Sketch) -> float:
    """Return the relative error: norm of the difference over norm of the truth."""
    wrong, right = norm(difference(ours, true)), norm(true)
    return wrong / (right or wrong) if wrong else 0.0


def common_scale(ours: Sketch, true: Sketch, tolerance: float) -> float | None:
    """Return by what factor `ours` is larger than `true`; None where they point elsewhere."""
    square = dot(true, true)
    factor = dot(ours, true) / square if square else 0.0
    return factor if factor and error(scaled(ours, 1 / factor), true) <= tolerance else None


def fitted_weights(parts: Sequence[Sketch], whole: Sketch, tolerance: float) -> list[float] | None:
    """Return the weights with which the parts add up to the whole; None where none do, or several."""
    lengths = [norm(part) for part in parts]
    if not parts or not all(lengths):
        return None
    columns = [scaled(part, 1 / length) for part, length in zip(parts, lengths, strict=True)]
    solved = _solve([[dot(a, b) for b in columns] + [dot(a, whole)] for a in columns])
    if solved is None:
        return None
    total = [math.fsum(map(mul, solved, row)) for row in zip(*columns, strict=True)]
    if error(total, whole) > tolerance:
        return None
    return [weight / length for weight, length in zip(solved, lengths, strict=True)]


def _solve(rows: list[list[float]]) -> list[float] | None:
    """Solve linear equations, each a row with its right side at its end; None where they are too alike."""
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        if abs(rows[column][column]) < _LEAST_PIVOT:
            return None
        for row in range(size):
            if row != column:
                factor = rows[row][column] / rows[column][column]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column], strict=True)]
    return [row[-1] / row[index] for index, row in enumerate(rows)]
