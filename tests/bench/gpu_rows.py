"""What else `gpu_check.py` compares: libraries' workspaces, a CUDA graph, the context and published runs.

The measures of `gpu_measure.py` run in a process on the real card, and in one on the null GPU that has its properties.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fidelity
from zoo.cases import ZOO

from oomdoctor.engines.catalogue import all_cards
from oomdoctor.engines.choice import choose_engine
from oomdoctor.errors import OomdoctorError
from oomdoctor.request import build_request
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.client import WorkerTrialSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.choice import Engine

Row = dict[str, Any]
MEASURE = Path(__file__).with_name("gpu_measure.py")
CONVOLUTIONS = 200
LOADING, CONTEXT = "CUDA_MODULE_LOADING", "OOMDOCTOR_NULL_CONTEXT_BYTES"


LAZILY = {
    "context": "context, loaded lazily",
    "convolutions": "workspaces of convolutions",
    "transforms": "work areas of Fourier transforms",
    "decompositions": "work areas of decompositions",
    "graph": "CUDA graph",
    "benchmark": "workspaces with cudnn.benchmark",
}
EAGERLY = {"context": "context, loaded eagerly"}


def known_card(card: Card) -> Card:
    """Return the card of the catalogue with the name and, of several, the nearest memory; else the card itself."""
    alike = [one for one in all_cards() if one.name == card.name]
    return min(alike, key=lambda one: abs(one.total_bytes - card.total_bytes), default=card)


def measured(measures: Mapping[str, str], count: int, environment: Mapping[str, str]) -> dict[str, Row]:
    """Take measures in a process of their own; what each says, or its error."""
    command = [sys.executable, str(MEASURE), str(count), *measures]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        said = ended.stderr.strip().rpartition("\n")[2] or f"exit code {ended.returncode}"
        return {name: {"error": said} for name in measures}
    found: dict[str, Row] = json.loads(ended.stdout.splitlines()[-1])
    return found


def libraries(card: Card, null: Engine, convolutions: int, done: Callable[[str, Row], None]) -> None:
    """Take every measure on both devices, and hand over each row when it is there."""
    for mode, measures in (("LAZY", LAZILY), ("EAGER", EAGERLY)):
        loading = {LOADING: mode}
        context = {CONTEXT: str(known_card(card).with_loading(loading).context_bytes)}
        real = measured(measures, convolutions, os.environ | loading)
        ours = measured(measures, convolutions, null.environment | loading | context)
        for name, title in measures.items():
            row = {"real": real[name], "null": ours[name], "comparison": compared(real[name], ours[name])}
            done(title, row)


def compared(real: Row, ours: Row) -> Row | None:
    """Return how many of the figures are equal, and the relative errors of those that are not 0 on the real card."""
    if "error" in real or "error" in ours:
        return None
    errors = [(ours[label] - true) / true for label, true in real.items() if true]
    return {
        "figures": len(real),
        "equal": sum(ours[label] == true for label, true in real.items()),
        "median_relative_error": round(statistics.median(map(abs, errors)), 6) if errors else 0.0,
        "worst_relative_error": round(max(errors, key=abs), 6) if errors else 0.0,
    }


def published(card: Card, null: Engine, most: int, done: Callable[[str, Row], None]) -> None:
    """Run published runs that this card has room for, on it and on the null GPU: most bytes held by PyTorch."""
    rows = [row for row in fidelity.read_truth() if not row["real_oom"]]
    rows = [row for row in rows if row["measured_nvml_delta_bytes"] < card.capacity_bytes]
    rows.sort(key=lambda row: row["measured_nvml_delta_bytes"])
    for row in rows[:: max(1, len(rows) // most)][:most] if most else []:
        real, ours = (reserved(row, engine) for engine in (None, null))
        done(f"published: {fidelity.key(row)}", {"real": real, "null": ours, "comparison": compared(real, ours),
                                                 "published_bytes": row["measured_nvml_delta_bytes"]})  # fmt: skip


def reserved(row: Row, engine: Engine | None) -> Row:
    """Run a published run; the most bytes that PyTorch held, or the error. No engine stands for the real card."""
    target = fidelity.target_of(row)
    request = build_request(target, directory=ZOO, engine="cuda")
    shown = engine or choose_engine(engine="cuda", gpu=None, device=None, memory_bytes=None, base=os.environ)
    try:
        with WorkerTrialSource(request, parse_reference(target, directory=ZOO), shown.environment) as source:
            source.load()
            trial = source.run(row["batch"], micro_steps=1, allowed_bytes=source.capacity_bytes)
    except (OomdoctorError, RuntimeError) as error:  # the latter is how a worker tells of a bug of ours
        return {"error": f"{type(error).__name__}: {error}"}
    return {"reserved": trial.peak_reserved_bytes}


def lines(rows: Mapping[str, Row]) -> list[str]:
    """Return the comparisons as a table."""
    found = ["| measurement | figures | equal | median error | worst error |", "|---|---|---|---|---|"]
    for name, row in rows.items():
        said = row["comparison"]
        if said is None:
            found.append(f"| {name} | | | | {row['real'].get('error') or row['null'].get('error')} |")
            continue
        errors = f"{said['median_relative_error']:.2%} | {said['worst_relative_error']:+.2%}"
        found.append(f"| {name} | {said['figures']} | {said['equal']} | {errors} |")
    return found
