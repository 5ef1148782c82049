"""Memory by the user's line, as rows of a table."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.report.plain_text import CATEGORY_WORDS, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import LineBytes, StepMemory

_MOST_SHOWN: Final = 5
"""Lines that are shown; the HTML page has more, the JSON all."""

_LONGEST_NAME: Final = 120


@dataclass(frozen=True, slots=True)
class UserLineRow:
    """One of the user's lines, or all the others.

    Attributes:
        name: The line, or words.
        is_line: Whether it is a line.
        total_bytes: Bytes at the peak.
        mostly: Operator that holds most of them.
    """

    name: str
    is_line: bool
    total_bytes: int
    mostly: str


def line_rows(found: StepMemory, most: int) -> list[UserLineRow]:
    """Return the lines that hold most at the peak, and last the rest, so that the rows sum to the whole."""
    by_line: dict[str | None, list[LineBytes]] = defaultdict(list)
    for part in found.source_lines:
        by_line[part.line].append(part)
    unknown = by_line.pop(None, [])
    ordered = sorted(by_line.items(), key=lambda item: (-sum(p.allocated_bytes for p in item[1]), item[0] or ""))
    most = most if len(ordered) > most + 1 else len(ordered)  # a rest of one is a row of its own
    rest = [part for _, parts in ordered[most:] for part in parts]
    rows = [_line_row(line or "", parts, is_line=True) for line, parts in ordered[:most]]
    rows += [_line_row(f"{len(ordered) - most} smaller lines", rest, is_line=False)] if rest else []
    return rows + ([_line_row("outside your lines", unknown, is_line=False)] if unknown else [])


def memory_lines(found: StepMemory) -> list[UserLineRow]:
    """Return the lines of the user's code that hold most at the peak."""
    return [row for row in line_rows(found, _MOST_SHOWN)[:_MOST_SHOWN] if row.is_line]


def _line_row(name: str, parts: Sequence[LineBytes], *, is_line: bool) -> UserLineRow:
    sizes: Counter[str] = Counter()
    for part in parts:
        named = part.operator.removeprefix("aten::") if part.operator else CATEGORY_WORDS[part.category]
        sizes[visible(named, _LONGEST_NAME)] += part.allocated_bytes
    mostly = min(sizes, key=lambda operator: (-sizes[operator], operator), default="")
    return UserLineRow(visible(name, _LONGEST_NAME), is_line, sum(sizes.values()), mostly)
