"""Every row of `oomdoctor prescribe` beside a probe of the file that a hand has edited for the same remedy.

    .venv/bin/python tests/bench/prescribe_tables.py
    .venv/bin/python tests/bench/prescribe_tables.py --only gpt2 vit
    .venv/bin/python tests/bench/prescribe_tables.py --only gpt2 --rows bf16 checkpoint
    .venv/bin/python tests/bench/prescribe_tables.py --only gpt2 --rows compile

The table is measured with the remedy applied to the unedited file in the worker; the edited file, of
`prescribe_models.py`, is a plain target of a probe. Both run on a null GPU. A row is proven where the two have the same
maximum and the same recommended size; whether the peak at the maximum is the same to the byte is told, too. The bench
fails where one is not, where an edit has no row, and where a remedy that was measured has no edit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measuring import RESULTS, machine, save
from prescribe_edits import Edit
from prescribe_models import MODELS, Model

import oomdoctor
from oomdoctor.multi_card.pool import PooledProbe, StagedProgress, probe_all
from oomdoctor.progress import SilentProgress
from oomdoctor.remedies.catalogue import BY_ID, REMEDIES
from oomdoctor.request import build_request
from oomdoctor.results import Outcome
from oomdoctor.trial.answer import ProbeRun

if TYPE_CHECKING:
    from oomdoctor.multi_card.pool import Answer
    from oomdoctor.results import MeasuredRemedies, PrescribeResult
    from oomdoctor.results.variant import Precision

RESULT = RESULTS / "prescribe_tables.json"
CARD = "rtx-4090"
JOBS = 2
WITHOUT_EDIT = {"fp16": "`--precision fp16`, since its scaler belongs to the loop"}
"""Remedies that are proven in another way than by an edit."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What was found of one program.

    Attributes:
        maximum: Largest micro-batch that fits.
        recommended: Largest that leaves the headroom.
        peak_bytes: Live tensors at the maximum.
    """

    maximum: int
    recommended: int
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """One remedy, or several at once, of one model.

    Attributes:
        remedy: Its id, or ids with ` + ` between them.
        applied: By `prescribe`; None where it does not apply.
        by_hand: Of the edited file; None without an edit.
        problem: Why there is nothing to compare.
    """

    remedy: str
    applied: Sizes | None
    by_hand: Sizes | None
    problem: str | None = None

    @property
    def is_compared(self) -> bool:
        """Whether there is a size on either side; a remedy that does not apply has none."""
        return self.applied is not None or self.by_hand is not None

    @property
    def is_proven(self) -> bool:
        """Whether both have a size, and the same."""
        if self.applied is None or self.by_hand is None:
            return False
        return (self.applied.maximum, self.applied.recommended) == (self.by_hand.maximum, self.by_hand.recommended)


def edited(source: str, edit: Edit) -> str:
    """Return a file with an edit.

    Raises:
        ValueError: The file has no such text.
    """
    for old, new in edit:
        if old not in source:
            raise ValueError(f"the file has no `{old}`")
        source = source.replace(old, new)
    return source


def _proven(name: str, model: Model, folder: Path, only: list[str]) -> tuple[list[Row], dict[str, object]]:
    """Measure a model's table and its edited files."""
    (folder / f"{name}.py").write_text(model.source, encoding="utf-8")
    began, used = time.perf_counter(), _processor_seconds()
    document = oomdoctor.prescribe(
        f"{folder / name}.py:{model.builder}",
        target_batch=model.target_batch,
        gpu=CARD,
        capacity=model.capacity,
        beside=_beside(model, only),
        without=[one.id for one in REMEDIES if only and one.id not in only and not one.on_request],
        budget=60 if model.capacity is None else 24,
        jobs=JOBS,
    )
    seconds, processor_seconds = time.perf_counter() - began, _processor_seconds() - used
    rows = _rows(document.result)
    asked = [remedy for remedy in ("", *model.edits, "fp16") if remedy in rows or remedy == ""]
    answers = dict(zip(asked, _by_hand(model, asked, folder), strict=True))
    found = [_row(remedy, row, answers.get(remedy)) for remedy, row in rows.items()]
    about = {
        "prescribed": _ids(document.result.prescribed),
        "patch_maximum": document.result.patch.maximum if document.result.patch else None,
        "patch_problem": document.result.patch_problem,
        "probes": document.result.probes,
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor_seconds, 1),
    }
    return found, about


def _beside(model: Model, only: list[str]) -> list[str]:
    """Return the remedies that are measured on request, of those that are asked for; compiling takes half an hour."""
    usual = [remedy for remedy in ("freeze-half", "lora") if remedy in model.edits and (not only or remedy in only)]
    return [*usual, *(["compile"] if "compile" in only else [])]


def _rows(result: PrescribeResult) -> dict[str, MeasuredRemedies]:
    rows = {_ids(row) or "": row for row in (result.plain, *result.alone, *result.combined)}
    return {name: row for name, row in rows.items() if " + " not in name or name in _combinations()}


def _combinations() -> set[str]:
    return {name for model in MODELS.values() for name in model.edits if " + " in name}


def _ids(row: MeasuredRemedies | None) -> str | None:
    return None if row is None else " + ".join(row.remedies)


def _by_hand(model: Model, asked: list[str], folder: Path) -> list[Answer]:
    """Probe the file as it is and as it is edited for each remedy."""
    cases = []
    for number, remedy in enumerate(asked):
        path = folder / f"edited_{number}.py"
        path.write_text(edited(model.source, model.edits.get(remedy, ())), encoding="utf-8")
        precision: Precision = "fp16" if remedy == "fp16" else "fp32"
        request = build_request(
            f"{path}:{model.builder}",
            target_batch=model.target_batch,
            gpu=CARD,
            capacity=model.capacity,
            precision=precision,
        )
        cases.append(PooledProbe(remedy, replace(request, profiles=False)))
    return probe_all(cases, StagedProgress(SilentProgress(), len(cases)), jobs=JOBS)


def _row(remedy: str, row: MeasuredRemedies, answer: Answer | None) -> Row:
    applied = Sizes(row.maximum, row.recommended, row.peak_bytes) if row.outcome == "measured" else None
    if isinstance(answer, ProbeRun):
        return Row(remedy or "as it is", applied, _sizes(answer), row.problem)
    return Row(remedy or "as it is", applied, None, row.problem if answer is None else str(answer))


def _sizes(answer: ProbeRun) -> Sizes:
    found = answer.result.micro_batch
    fitting = [t for t in answer.result.trials if t.micro_batch == found.maximum and t.outcome is Outcome.FITS]
    return Sizes(found.maximum, found.recommended, fitting[0].peak_allocated_bytes if fitting else None)


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _shown(name: str, rows: list[Row]) -> None:
    for row in rows:
        applied, by_hand = (
            "-" if one is None else f"{one.maximum}/{one.recommended}" for one in (row.applied, row.by_hand)
        )
        same = row.applied and row.by_hand and row.applied.peak_bytes == row.by_hand.peak_bytes
        verdict = "" if row.is_proven or not row.is_compared else "  NOT PROVEN"
        detail = "same bytes" if same else row.problem or ""
        print(f"{name:9} {row.remedy:34} {applied:>11} {by_hand:>11}{verdict}  {detail}", flush=True)


def main() -> int:
    """Prove the tables, write the results, and return 1 where a row is not proven."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=BY_ID, default=[], help="measure these rows, and keep the others")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=[*MODELS])
    asked = parser.parse_args()
    document = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    models: dict[str, Any] = document.get("models", {})
    fails = 0
    for name in asked.only:
        model = MODELS[name]
        if model.needs is not None and find_spec(model.needs) is None:
            print(f"{name}: {model.needs} is not installed")
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows, about = _proven(name, model, Path(folder), asked.rows)
        _shown(name, rows)
        fails += sum(row.is_compared and not row.is_proven for row in rows)
        found = {row.remedy: {**asdict(row), "is_proven": row.is_proven} for row in rows}
        before = models.get(name, {})
        kept = {row["remedy"]: row for row in before.get("rows", ())} if asked.rows else {}
        models[name] = {**(before if asked.rows else about), "rows": [*(kept | found).values()]}
        save(RESULT, {"machine": machine(), "card": CARD, "by_hand": WITHOUT_EDIT, "models": models})
    return 1 if fails else 0


if __name__ == "__main__":
    sys.exit(main())
