"""`oomdoctor lint --statistics`: findings counted by rule."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from oomdoctor.reports.rule.wording import FIXABLE

if TYPE_CHECKING:
    from oomdoctor.results import LintResult

_UNFIXABLE = "[ ]"


def render(result: LintResult) -> str:
    """One line a rule, the most frequent first; `[*]` where `--fix` can put at least one of its findings right."""
    counts = Counter((finding.code, finding.name) for finding in result.findings)
    fixable = {finding.code for finding in result.findings if finding.fixable}
    rows = [
        (str(count), code, name) for (code, name), count in sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    ]
    if result.unreadable:
        rows.append((str(len(result.unreadable)), "", "unreadable"))
    width, widest = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    lines = [f"{count:>{width}}  {code:<{widest}}  {_mark(code, fixable)}{name}" for count, code, name in rows]
    return "".join(f"{line}\n" for line in lines) or "no findings\n"


def _mark(code: str, fixable: set[str]) -> str:
    """Nothing at all where no finding can be fixed."""
    if not fixable:
        return ""
    return f"{FIXABLE if code in fixable else _UNFIXABLE} "
