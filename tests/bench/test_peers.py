"""The bench of other tools: how the truth is sought, what is said of an answer, and the page that shows both."""

from __future__ import annotations

import json
from typing import Any

import peers
import pytest


@pytest.mark.parametrize("guess", [1, 90, 100, 137, 140, 400])
def test_the_truth_is_found_from_any_guess(guess: int) -> None:
    """A size that fits alone, with others that do not in between, is the truth where it is near enough."""
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= 134 or size == 137

    assert peers.truth(fits, guess) == 137
    assert {138, 139, 140, 141} <= {*asked}
    assert peers.truth(lambda _: False, guess) == 0


def answer(size: int | None, **more: object) -> dict[str, Any]:
    """What a tool said."""
    said = {"answer": size, "error": None, "trials": 3, "cpu_seconds": 1.0, "left_bytes": 2 << 30, "runs_out": False}
    return said | more


def test_each_tool_has_a_line_of_what_it_answered() -> None:
    """Exact answers, those that run out, and none where none fits are counted; the plain size is compared."""
    tool, ours = "toma", peers.OURS
    found = {"oomdoctor": "1", "versions": {"toma": "1.1.0"}}
    rows = [
        {"truth": {"plain": 10}, "answers": {tool: answer(10), ours: answer(9, plain=10)}},
        {"truth": {"plain": 10}, "answers": {tool: answer(12, runs_out=True), ours: answer(10)}},
        {"truth": {"plain": 0}, "answers": {tool: answer(None, error="E"), ours: answer(0)}},
    ]
    assert peers.line(tool, rows, found) == "| toma 1.1.0 | 2 | 1 | 110 % | 3 | 1.0 | 2.0 GiB | no |"
    assert peers.line(ours, rows, found) == "| oomdoctor 1 | 3 | 0 | 100 % | 3 | 1.0 | 2.0 GiB | yes |"
    assert [peers.cell(tool, row) for row in rows] == ["10 / 3", "**12** / 3", "error / 3"]


def test_the_page_has_what_was_measured() -> None:
    """The tables are those of the results, with every case, every tool's version and every loop."""
    found = json.loads(peers.FILE.read_text(encoding="utf-8"))
    page = peers.PAGE.read_text(encoding="utf-8")
    assert "\n".join(peers.block(found)) in page
    assert len(found["cases"]) == 5 * 2 * len(peers.CARDS)
    assert {*peers.TOOLS.values()} <= {*found["versions"]}
    assert all(f"def {name}(" in peers.loops() for name in ("lightning", "hf_trainer", "toma", "batch_finder"))
