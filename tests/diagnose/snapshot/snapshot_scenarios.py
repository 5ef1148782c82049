"""A snapshot of a real training run, with what PyTorch itself counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomdoctor.diagnose.snapshot.layout import RawSnapshot
from oomdoctor.diagnose.snapshot.reading import read_snapshot
from oomdoctor.diagnose.snapshot.summary import summarise
from oomdoctor.results import Category, SnapshotSummary


@dataclass(frozen=True)
class Scenario:
    """A snapshot, and what PyTorch itself counted."""

    path: Path
    truth: dict[str, Any]
    raw: RawSnapshot
    summary: SnapshotSummary

    def addresses(self, when: str) -> dict[int, Category]:
        """What tensors were at which address."""
        return {address: Category(name) for name, found in self.truth[when]["addresses"].items() for address in found}


Load = Callable[[str], Scenario]


def load_scenario(path: Path) -> Scenario:
    """Read a snapshot and what was written beside it."""
    raw = read_snapshot(path, path.name)
    (summary,) = summarise(raw)
    return Scenario(path, json.loads(path.with_suffix(".json").read_text()), raw, summary)
