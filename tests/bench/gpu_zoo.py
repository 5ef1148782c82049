"""The models of the zoo on the GPU of this machine and on a null GPU of its properties: peaks of two micro-batches."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from accuracy import is_runnable
from accuracy_trials import peaks_of, request
from zoo.cases import CASES, ZOO, Case

from oomdoctor.engines.choice import choose_engine
from oomdoctor.errors import OomdoctorError
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.client import WorkerTrialSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.engines.choice import Engine

Row = dict[str, Any]
AT_ONCE_BYTES = 26 << 30
"""Room on the GPU for each model, so that several are run at once and none is in the way of another."""


def names(most: int) -> list[str]:
    """Return the first names of what is installed here."""
    return [case.name for case in CASES if is_runnable(case)][:most]


def compare(
    chosen: list[str], capacity_bytes: int, null: Engine, deadline: float, done: Callable[[str, Row], None]
) -> None:
    """Run models on both devices, several at once, and hand over each row when it is there; none after a moment."""
    cases = [case for case in CASES if case.name in chosen]
    together = max(1, min(capacity_bytes // AT_ONCE_BYTES, (os.cpu_count() or 1) // 4))

    def both(case: Case) -> tuple[Row, Row] | None:
        if time.monotonic() > deadline:
            return None
        with ThreadPoolExecutor() as devices:
            real, ours = devices.map(lambda engine: peaks(case, engine), (None, null))
        return real, ours

    with ThreadPoolExecutor(together) as pool:
        for case, answers in zip(cases, pool.map(both, cases), strict=True):
            if answers is not None:
                real, ours = answers
                done(case.name, {"real": real, "null": ours, "comparison": relative(real, ours)})


def peaks(case: Case, engine: Engine | None) -> Row:
    """Return the peaks of a model by micro-batch, and where it fails, the problem; no engine is the real card."""
    row: Row = {}
    question = replace(request(case, "cuda"), gpu=None, memory_bytes=AT_ONCE_BYTES)
    shown = engine or choose_engine(engine="cuda", gpu=None, device=None, memory_bytes=AT_ONCE_BYTES, base=os.environ)
    try:
        with WorkerTrialSource(question, parse_reference(case.target, directory=ZOO), shown.environment) as source:
            source.load()
            for size in case.sizes:
                trial = source.run(size, micro_steps=2, allowed_bytes=source.capacity_bytes)
                row[str(size)] = peaks_of(trial)
    except (OomdoctorError, RuntimeError) as error:  # the latter is how a worker tells of a bug of ours
        row["problem"] = f"{type(error).__name__}: {error}"
    return row


def relative(real: Row, ours: Row) -> Row | None:
    """Return the null GPU's relative errors by kind of peak; None where a device could not run the model."""
    if "problem" in real or "problem" in ours:
        return None
    return {
        kind: [round((ours[size][kind] - truth[kind]) / truth[kind], 6) for size, truth in real.items()]
        for kind in ("allocated_bytes", "reserved_bytes")
    }


def lines(rows: dict[str, Row]) -> list[str]:
    """Return the relative errors as a table."""
    found = ["| model | allocated | reserved |", "|---|---|---|"]
    for name, row in rows.items():
        said = row["comparison"]
        if said is None:
            found.append(f"| {name} | | {row['real'].get('problem') or row['null'].get('problem')} |")
            continue
        shown = (" and ".join(f"{error:+.2%}" for error in errors) for errors in said.values())
        found.append(f"| {name} | {' | '.join(shown)} |")
    return found
