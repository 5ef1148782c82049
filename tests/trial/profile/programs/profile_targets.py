"""Profile targets in one process on a null GPU; what came of each goes to standard output as JSON, by name.

Usage: profile_targets.py JSON

The argument is a list of objects with `name`, `target` (a path) and what a trial takes.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

from oomdoctor.codec import encode
from oomdoctor.results import Variant
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.protocol import LoadTarget, ProfileTrial, RunTrial
from oomdoctor.trial.worker import Worker


def profile(case: dict[str, Any]) -> dict[str, object]:
    """Load a target, run a trial, and profile it twice."""
    gc.unfreeze()  # what the last target left
    worker = Worker()
    reference = parse_reference(case["target"], directory=Path.cwd())
    loaded = worker.load(LoadTarget(reference, Variant(precision=case["precision"]), memory_bytes=None, watched=False))
    question = RunTrial(case["micro_batch"], case["micro_steps"], loaded.capacity_bytes)
    trial = worker.run(question).trial
    frozen = gc.get_freeze_count()
    first, second = (worker.profile(ProfileTrial(question, trial.peak_allocated_bytes)) for _ in range(2))
    is_repeated = first == second
    return {"trial": encode(trial), "profiled": encode(first.profile), "is_repeated": is_repeated, "frozen": frozen}


if __name__ == "__main__":
    print(json.dumps({case["name"]: profile(case) for case in json.loads(sys.argv[1])}))
