"""What a log gives as evidence besides its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oomdoctor.diagnose.diagnose import read_sources
from oomdoctor.diagnose.sources import sources

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("readings", "expected"), [(1, None), (2, None), (3, 3)])
def test_a_trend_needs_three_readings(tmp_path: Path, readings: int, expected: int | None) -> None:
    """One or two readings of memory are points, and only three can be a line."""
    log = tmp_path / "train.log"
    log.write_text("".join(f"step {number * 10} mem {1000 + number} MiB\n" for number in range(readings)))
    trend = read_sources(sources([str(log)])).trend
    assert (trend and trend.readings) == expected
