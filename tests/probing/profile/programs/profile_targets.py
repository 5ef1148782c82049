"""Profile targets in one process on a null GPU; what came of each goes to standard output as JSON, by name.

Usage: profile_targets.py JSON

The argument is a list of objects with `name`, `target` (a path) and what a trial takes.
"""

import gc
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.worker import _OPERATIONS, _Worker


def profile(case: dict[str, Any]) -> dict[str, object]:
    """Load a target, run a trial, and profile it twice."""
    gc.unfreeze()  # what the last target left
    worker = _Worker()
    reference = parse_reference(case["target"], directory=Path.cwd())
    loading = {"reference": asdict(reference), "precision": case["precision"], "optimizer": None, "memory_bytes": None}
    loaded = _OPERATIONS["load"](worker, loading)
    question = {name: case[name] for name in ("micro_batch", "micro_steps")}
    question["allowed_bytes"] = loaded["capacity_bytes"]
    trial = _OPERATIONS["trial"](worker, question)["trial"]
    frozen = gc.get_freeze_count()
    question["peak_allocated_bytes"] = trial["peak_allocated_bytes"]
    first, second = (_OPERATIONS["profile"](worker, question) for _ in range(2))
    return {"trial": trial, "profiled": first, "is_repeated": first == second, "frozen": frozen}


if __name__ == "__main__":
    print(json.dumps({case["name"]: profile(case) for case in json.loads(sys.argv[1])}))
