"""One case of the zoo on one engine: its peaks at two sizes, and the largest micro-batch for several capacities.

One worker answers all of it: it loads the target once, and a smaller card is the largest one with a limit on what the
allocator may hold. The search is the probe's own.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any, cast

from measuring import CAPACITIES_GIB, TARGET_BATCH, gibibytes
from zoo.cases import ZOO, Case

from oomdoctor.engines.catalogue import emulated_environment
from oomdoctor.engines.choice import Engine
from oomdoctor.engines.installed import find_torch
from oomdoctor.engines.null_gpu.library import environment as null_gpu_environment
from oomdoctor.errors import OomdoctorError, UsageError
from oomdoctor.progress import SilentProgress
from oomdoctor.request import ProbeRequest
from oomdoctor.results import Outcome, Trial, Variant
from oomdoctor.search.probe_search import ProbeSearch
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.client import WorkerTrialSource
from oomdoctor.trial.probe import engine_for
from oomdoctor.trial.worker_answers import LoadedTarget

Row = dict[str, Any]
LARGEST_GIB = max(CAPACITIES_GIB)


def request(case: Case, engine: str) -> ProbeRequest:
    """The question as `oomdoctor probe` asks it."""
    return ProbeRequest(
        target=case.target,
        directory=ZOO,
        target_batch=TARGET_BATCH,
        variant=Variant(precision=case.precision, optimizer=case.optimizer),
        gpu=case.gpu,
        engine=cast("Any", engine),  # a name from the command line; `_engine` sees that there is such a one
    )


def definition(case: Case) -> Row:
    """What a case is, to tell whether an answer that is there is one to the same question."""
    return {
        "name": case.name,
        "family": case.family,
        "target": case.target,
        "precision": case.precision,
        "optimizer": case.optimizer,
        "gpu": case.gpu,
        "sizes": list(case.sizes),
        "source": hashlib.sha256(case.path.read_bytes()).hexdigest()[:12],
    }


def answer(case: Case, engine: str) -> Row:
    """What an engine says of a case; where it cannot, why."""
    started, row = time.monotonic(), Row(peaks={}, maxima={})
    question = request(case, engine)
    try:
        reference = parse_reference(case.target, directory=ZOO)
        with WorkerTrialSource(question, reference, _engine(question).environment) as supervisor:
            _ask(case, supervisor, row)
    except (OomdoctorError, RuntimeError) as error:  # the latter is how a worker tells of a bug of ours
        row["problem"] = f"{type(error).__name__}: {error}"
    return row | {"seconds": round(time.monotonic() - started, 2)}


def _engine(question: ProbeRequest) -> Engine:
    """The engine that was asked for, with more memory than some of the cards are ever sold with.

    Raises:
        UsageError: There is none of that name; another one's answers would stand under it.
    """
    engine = engine_for(question)
    if engine.kind != question.engine:
        raise UsageError(f"there is no engine `{question.engine}`")
    card = replace(engine.card, total_bytes=gibibytes(LARGEST_GIB) + engine.card.context_bytes)
    build = find_torch()
    if engine.kind == "null" and build is not None:
        return replace(engine, card=card, environment=null_gpu_environment(card, build, os.environ))
    return replace(engine, card=card, environment={**engine.environment, **emulated_environment(card, os.environ)})


def _ask(case: Case, supervisor: WorkerTrialSource, row: Row) -> None:
    """Fill the row, so that what was found before a failure stays in it."""
    started = time.monotonic()
    loaded = supervisor.load()
    row["load_seconds"] = round(time.monotonic() - started, 2)
    trials: list[Trial] = []
    for size in case.sizes:
        trials.append(supervisor.run(size, micro_steps=2, allowed_bytes=supervisor.capacity_bytes))
        row["peaks"][str(size)] = peaks_of(trials[-1])
    for capacity in CAPACITIES_GIB:
        row["maxima"][str(capacity)] = _maximum(supervisor, loaded, gibibytes(capacity), trials)
    row |= {
        "trials": len(trials),
        "trial_seconds": round(statistics.median(trial.seconds for trial in trials), 3),
        "optimizer": supervisor.notes.optimizer_name,
        "zeros_read": supervisor.notes.zeros_read,
        "workers_replaced": supervisor.notes.replaced,
    }


def peaks_of(trial: Trial) -> Row:
    """Return the peaks of a trial.

    Raises:
        RuntimeError: It did not fit.
    """
    if trial.outcome is not Outcome.FITS:
        raise RuntimeError(f"micro-batch {trial.micro_batch} ends as `{trial.outcome.value}`: {trial.error}")
    return {"allocated_bytes": trial.peak_allocated_bytes, "reserved_bytes": trial.peak_reserved_bytes}


def _maximum(supervisor: WorkerTrialSource, loaded: LoadedTarget, capacity_bytes: int, trials: list[Trial]) -> int:
    """The largest micro-batch that fits a capacity; trials of other capacities are proof where they can be."""
    session = ProbeSearch(Capped(supervisor, capacity_bytes), SilentProgress(), TARGET_BATCH)
    session.trials = list(trials)
    search = session.find_maximum(loaded.weights_bytes or 0)
    trials[:] = session.trials
    if search.limited_by != "memory":
        raise RuntimeError(f"{search.maximum} is limited by `{search.limited_by}`, which says nothing about memory")
    return search.maximum


@dataclass
class Capped:
    """A worker's trials on a smaller card; what a search asks of whoever runs the trials.

    Attributes:
        supervisor: Has the worker.
        capacity_bytes: What the smaller card lets PyTorch take.
    """

    supervisor: WorkerTrialSource
    capacity_bytes: int

    def __getattr__(self, name: str) -> Any:
        """All else is the worker's."""
        return getattr(self.supervisor, name)

    def run(self, micro_batch: int, *, micro_steps: int, allowed_bytes: int) -> Trial:
        """Run one trial."""
        return self.supervisor.run(micro_batch, micro_steps=micro_steps, allowed_bytes=allowed_bytes)

    def predict_max(self, low: int, high: int, *, allowed_bytes: int, retries: bool) -> int | None:
        """The largest size between two that should fit; None where nobody can say."""
        return self.supervisor.predict_max(low, high, allowed_bytes=allowed_bytes, retries=retries)
