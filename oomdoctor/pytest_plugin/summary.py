"""The peaks of all measured tests, at the end of the session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oomdoctor.pytest_plugin.vocabulary import DEVICE, LIMIT, PEAK
from oomdoctor.reports.visible import visible
from oomdoctor.units import format_size

if TYPE_CHECKING:
    import pytest


def summarise(terminal: pytest.TerminalReporter) -> None:
    """List each test that was measured, the one with the highest peak first."""
    rows = sorted(_rows(terminal), key=lambda row: (-row[1][PEAK], row[0]))
    terminal.write_sep("=", "GPU memory")
    if not rows:
        terminal.write_line("no test was measured: mark one with `@pytest.mark.gpu_memory`")
        return
    terminal.write_line(f"{'peak':>11}  {'limit':>11}  {'share':>6}  test")
    for nodeid, found in rows:
        peak, limit = found[PEAK], found[LIMIT]
        share = f"{100 * peak // max(limit, 1)} %"
        terminal.write_line(
            f"{format_size(peak):>11}  {format_size(limit):>11}  {share:>6}  {visible(nodeid)}"
            f"  on {visible(found[DEVICE])}"
        )


def _rows(terminal: pytest.TerminalReporter) -> list[tuple[str, dict[str, Any]]]:
    reports = (report for reports in terminal.stats.values() for report in reports)
    rows = {}
    for report in reports:
        found = dict(getattr(report, "user_properties", None) or ())
        if getattr(report, "when", None) == "call" and PEAK in found:
            rows[report.nodeid] = found
    return list(rows.items())
