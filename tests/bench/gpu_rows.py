"""What else `gpu_check.py` compares: libraries' workspaces, a CUDA graph, the context and published runs.

The measures of `gpu_measure.py` run in a process on the real card, and in one on the null GPU that has its properties.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
BOTH = ("real", "null")
Sides = tuple[str, ...]
"""The devices that are asked: `real`, `null` or both."""
NOT_ASKED: Row = {"error": "not asked yet"}
MEASURE = Path(__file__).with_name("gpu_measure.py")
CONVOLUTIONS = 200
CORES_OF_ONE = 5
"""Processor cores for each question that is put to both devices at the same time as others."""
LOADING, CONTEXT = "CUDA_MODULE_LOADING", "OOMDOCTOR_NULL_CONTEXT_BYTES"


LAZILY = {
    "context": "context, loaded lazily",
    "graph": "CUDA graph",
    "products": "matrix products",
    "attention": "attention",
    "normalizations": "normalizations",
    "recurrent": "recurrent layers",
    "compiled": "compiled steps",
    "operators": "other operators",
    "convolutions": "workspaces of convolutions",
    "transforms": "work areas of Fourier transforms",
    "decompositions": "work areas of decompositions",
    "benchmark": "workspaces with cudnn.benchmark",
}
EAGERLY = {"context": "context, loaded eagerly"}
UNSPLIT_BYTES = 1 << 20
"""What PyTorch may leave unsplit of a cached block that it takes: which block that is, addresses decide as well."""


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


def described(card: Card) -> Row:
    """Compare what this GPU says of itself with the card of the catalogue that has its name."""
    numbers = (
        "total_bytes", "sm_count", "max_threads_per_sm", "shared_memory_per_block_bytes", "l2_bytes", "context_bytes",
    )  # fmt: skip
    real, ours = ({name: getattr(each, name) for name in numbers} for each in (card, known_card(card)))
    return {"real": real, "null": ours, "comparison": compared(real, ours)}


def libraries(  # noqa: PLR0913, PLR0917 - the question, and what an earlier run knows
    card: Card,
    null: Engine,
    convolutions: int,
    sides: Sides,
    known: Mapping[str, Row],
    done: Callable[[str, Row], None],
) -> None:
    """Take every measure on each device that is asked, at the same time, and hand over each row when it is there.

    Args:
        card: The GPU.
        null: The null GPU that has its properties.
        convolutions: How many random ones.
        sides: The devices to ask.
        known: Rows of an earlier run, for the device that is not asked.
        done: Is given each row.
    """
    done("the card in the catalogue", described(card))
    for mode, measures in (("EAGER", EAGERLY), ("LAZY", LAZILY)):
        loading = {LOADING: mode}
        context = {CONTEXT: str(known_card(card).with_loading(loading).context_bytes)}
        environments = {"real": os.environ | loading, "null": null.environment | loading | context}
        taken = ask_sides({side: partial(measured, measures, convolutions, environments[side]) for side in sides})
        for name, title in measures.items():
            row = {side: rows[name] for side, rows in taken.items()}
            done(title, completed(row, known.get(title, {}), compared))


def ask_sides(questions: Mapping[str, Callable[[], Row]]) -> dict[str, Row]:
    """Ask several devices at the same time."""
    with ThreadPoolExecutor() as pool:
        asked = {side: pool.submit(question) for side, question in questions.items()}
        return {side: answer.result() for side, answer in asked.items()}


def completed(row: Row, known: Row, compare: Callable[[Row, Row], Row | None]) -> Row:
    """Return the answers of both devices, of which one may be known from an earlier run, and their comparison."""
    whole = {side: row.get(side) or known.get(side) or NOT_ASKED for side in BOTH}
    return known | whole | {"comparison": compare(whole["real"], whole["null"])}


def compared(real: Row, ours: Row) -> Row | None:
    """Return how many of the figures are equal, and the relative errors of those that are not 0 on the real card.

    Returns:
        Counts, near ones being equal but for an unsplit block (`UNSPLIT_BYTES`), and relative errors of those that are
        not 0 on the real card; where a device refused some, their labels; None where one gave no figure at all.
    """
    if "error" in real or "error" in ours:
        return None
    real = {label: true for label, true in real.items() if label in ours}
    refused = [label for label in real if isinstance(real[label], str) or isinstance(ours.get(label, ""), str)]
    both = [(true, ours[label]) for label, true in real.items() if label not in refused]
    errors = [(mine - true) / true for true, mine in both if true]
    return {
        "figures": len(real),
        "equal": sum(mine == true for true, mine in both),
        "near": sum(abs(mine - true) <= UNSPLIT_BYTES for true, mine in both),
        "refused": refused,
        "median_relative_error": round(statistics.median(map(abs, errors)), 6) if errors else 0.0,
        "worst_relative_error": round(max(errors, key=abs), 6) if errors else 0.0,
    }


def published(  # noqa: PLR0913, PLR0917 - as `libraries`
    card: Card, null: Engine, most: int, sides: Sides, known: Mapping[str, Row], done: Callable[[str, Row], None]
) -> None:
    """Run published runs that this card has room for, on it and on the null GPU: most bytes held by PyTorch."""
    rows = [row for row in fidelity.read_truth() if not row["real_oom"]]
    rows = [row for row in rows if row["measured_nvml_delta_bytes"] < card.capacity_bytes]
    rows.sort(key=lambda row: row["measured_nvml_delta_bytes"])
    if "real" in sides:
        rows = rows[:: max(1, len(rows) // most)][:most]
    else:
        rows = [row for row in rows if title_of(row) in known]

    def ask(row: Row) -> Row:
        engines = {"real": None, "null": null}
        return ask_sides({side: partial(reserved, row, engines[side]) for side in sides})

    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // CORES_OF_ONE)) as together:
        for row, answers in zip(rows, together.map(ask, rows), strict=True):
            whole = completed(answers, known.get(title_of(row), {}), compared)
            done(title_of(row), whole | {"published_bytes": row["measured_nvml_delta_bytes"]})


def title_of(row: Row) -> str:
    """Name of a published run in the results."""
    return f"published: {fidelity.key(row)}"


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
    titles = "measurement", "figures", "equal", "within 1 MiB", "refused", "median error", "worst error"
    found = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for name, row in rows.items():
        said = row["comparison"]
        if said is None:
            found.append(f"| {name} | | | | | | {row['real'].get('error') or row['null'].get('error')} |")
            continue
        errors = f"{said['median_relative_error']:.2%} | {said['worst_relative_error']:+.2%}"
        counts = said["figures"], said["equal"], said["near"], len(said["refused"])
        found.append(f"| {name} | {' | '.join(map(str, counts))} | {errors} |")
    return found
