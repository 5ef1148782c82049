"""What the null GPU says of runs that others measured on real GPUs, beside what xMem and DNNMem say of the same runs.

Each row is run with its own settings: on its card, and again under each cap that was set on the real run. The file is
written after every row, and what it has from the same versions is kept, so that a run that was cut short goes on.

Usage: python tests/bench/fidelity.py [--only MODEL...] [--anew]
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

from fidelity_scores import page_block, summary
from measuring import RESULTS, machine, replace_block, save
from zoo.cases import ZOO

from oomdoctor.engines.cudnn_library import cudnn_version
from oomdoctor.errors import OomdoctorError
from oomdoctor.request import build_request
from oomdoctor.results import Outcome, Trial
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.client import WorkerTrialSource
from oomdoctor.trial.probe import engine_for

Row = dict[str, Any]
FILE = RESULTS / "fidelity.json"
TRUTH = Path(__file__).parent / "truth" / "xmem_runs.csv"
PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
LATE = "before backward"
"""What the table calls gradients that are dropped between the forward and the backward."""
PACKAGES = ("torch", "torchvision", "transformers")


def versions() -> Row:
    """Versions that decide the answers; None for what is not installed."""
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_truth(path: Path = TRUTH) -> list[Row]:
    """Read the published runs; bytes are integers, and what was not recorded is None."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_typed(row) for row in csv.DictReader(file)]


def _typed(row: dict[str, str]) -> Row:
    numbers = ("batch", "card_total_bytes", "real_oom")
    return {
        name: None if not text else int(text) if name in numbers or name.endswith("_bytes") else text
        for name, text in row.items()
    }


def key(row: Row) -> str:
    """Name of a row in the results."""
    return f"{row['model']} {row['optimizer']} {row['batch']} {row['card']}"


def target_of(row: Row) -> str:
    """Return the reference of a row's model."""
    late = ", late=True" if row["zero_grad"] == LATE else ""
    return f"published.py:build_model('{row['model']}', '{row['optimizer']}'{late})"


def answer(row: Row) -> Row:
    """Run a row: its peak on its card, and whether it fits each cap; where that fails, why."""
    target = target_of(row)
    question = build_request(target, directory=ZOO, gpu=row["card"], memory=row["card_total_bytes"], engine="null")
    found: Row = {"caps": {}}
    try:
        engine = engine_for(question)
        found["cudnn"] = cudnn_version(engine.environment)
        with WorkerTrialSource(question, parse_reference(target, directory=ZOO), engine.environment) as source:
            source.load()
            trial = source.run(row["batch"], micro_steps=1, allowed_bytes=source.capacity_bytes)
            found["oom"] = int(runs_out(trial))
            found["reserved_bytes"] = trial.peak_reserved_bytes
            for tool in ("dnnmem", "xmem"):
                if row[f"{tool}_cap_outcome"]:
                    allowed = min(row[f"{tool}_bytes"], source.capacity_bytes)
                    capped = source.run(row["batch"], micro_steps=1, allowed_bytes=allowed)
                    found["caps"][tool] = int(runs_out(capped))
    except (OomdoctorError, RuntimeError) as error:  # the latter is how a worker tells of a bug of ours
        found["problem"] = f"{type(error).__name__}: {error}"
    return found


def runs_out(trial: Trial) -> bool:
    """Return whether a trial ran out of memory.

    Raises:
        RuntimeError: It ended in another way than by that, or by fitting.
    """
    if trial.outcome not in (Outcome.FITS, Outcome.OOM):
        raise RuntimeError(f"a trial ended as `{trial.outcome.value}`: {trial.error}")
    return trial.outcome is Outcome.OOM


def earlier(path: Path, definition: Row) -> dict[str, Row]:
    """Return the answers of an earlier run with the same versions and models; none where they differ."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return dict(found["answers"]) if found["definition"] == definition else {}


def definition() -> Row:
    """What an answer depends on besides its row."""
    source = hashlib.sha256((ZOO / "published.py").read_bytes()).hexdigest()[:12]
    return {"versions": versions(), "models": source}


def document(answers: dict[str, Row]) -> Row:
    """All that is published: the answers, and their scores against the truth."""
    scored = [row | {"ours": answers[key(row)]} for row in read_truth() if key(row) in answers]
    return {"machine": machine(), "definition": definition(), "summary": summary(scored), "answers": answers}


def main() -> int:
    """Run the bench and write the page; 1 where a row has no answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="MODEL", help="models by their published names")
    parser.add_argument("--anew", action="store_true", help="keep no earlier answer")
    parser.add_argument("--results", type=Path, default=FILE, help="file to go on from and to write")
    arguments = parser.parse_args()
    answers = {} if arguments.anew else earlier(arguments.results, definition())
    for row in read_truth():
        if key(row) in answers or (arguments.only and row["model"] not in arguments.only):
            continue
        answers[key(row)] = answer(row)
        print(key(row), answers[key(row)], flush=True)
        save(arguments.results, document(answers))
    found = document(answers)
    save(arguments.results, found)
    if arguments.results == FILE:
        page = replace_block(PAGE.read_text(encoding="utf-8"), "fidelity", page_block(found))
        PAGE.write_text(page, encoding="utf-8")
    return int(any("problem" in one for one in answers.values()))


if __name__ == "__main__":
    sys.exit(main())
