"""Fit one target to many cards, as it is or at each of several sizes besides the batch: cards by lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from oomdoctor.engines.choice import reserve_reasons
from oomdoctor.errors import MemoryGrowsError, OomdoctorError, TargetError, UsageError
from oomdoctor.multi_card.fit import FitTable, fit_cards
from oomdoctor.multi_card.frontier import named, questions
from oomdoctor.multi_card.pool import PooledProbe, StagedProgress, probe_cards, run_elsewhere
from oomdoctor.multi_card.workers import WorkerPool
from oomdoctor.progress import SilentProgress
from oomdoctor.results import Axis, CardMicroBatch, FitResult, FittedCard, Reason
from oomdoctor.results.fit import CardFit
from oomdoctor.trial.parallel import default_jobs, run_all
from oomdoctor.trial.process import CancelToken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.multi_card.frontier import FrontierRequest
    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.trial.worker_process import WorkerStarter

_MOST_ROWS = 2000

Answer: TypeAlias = FitTable | OomdoctorError
"""What fits each card at one combination of sizes, or the reason why nobody knows."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A finished fit.

    Attributes:
        result: The question, and what fits each card at each combination of sizes.
        versions: Version by name, of what answered.
    """

    result: FitResult
    versions: dict[str, str]


def fit_sizes(request: FrontierRequest, cards: Sequence[Card], progress: Progress) -> Fit:
    """Find what fits each of some cards at each combination of sizes.

    Args:
        request: The question; what it says of a card is passed over.
        cards: The cards.
        progress: Told of each combination.

    Raises:
        UsageError: The question contradicts itself, or has too many rows.
        TargetError: The user's file is at fault at every combination.
        NoAnswerError: The step cannot be traced, a crash, or a time limit.
    """
    asked = questions(request)
    grid = [sizes for sizes, _ in asked]
    if len(grid) * len(cards) > _MOST_ROWS:
        hint = "name the cards with `--gpu`, or give fewer sizes"
        raise UsageError(f"{len(grid) * len(cards)} rows are asked about, more than {_MOST_ROWS}", hint=hint)
    cases = [PooledProbe(named(sizes), question) for sizes, question in asked]
    answers = _answers(cases, cards, progress, request)
    tables = [answer for answer in answers if isinstance(answer, FitTable)]
    for answer in answers:
        if isinstance(answer, OomdoctorError) and not (tables and isinstance(answer, TargetError)):
            raise answer
    unit = 1 if request.searched is None else request.searched.multiple_of
    rows = [
        _card(card, sizes, answer.rows[place] if isinstance(answer, FitTable) else _unknown(card, answer), unit)
        for place, card in enumerate(cards)
        for sizes, answer in zip(grid, answers, strict=True)
    ]
    return Fit(_result(request, cases[0].request, tables, rows), tables[-1].versions)


def _answers(
    cases: Sequence[PooledProbe], cards: Sequence[Card], progress: Progress, request: FrontierRequest
) -> list[Answer]:
    if cases[0].request.engine == "null":
        return [_probed(case.request, cards, progress, request) for case in cases]
    if len(cases) == 1 and request.executor is None:
        found = [_traced(cases[0].request, cards, progress)]
    else:
        found = _all_traced(cases, cards, StagedProgress(progress, len(cases)), request)
    return [
        _trials_of_each(case.request, cards, progress, request) if isinstance(answer, MemoryGrowsError) else answer
        for case, answer in zip(cases, found, strict=True)
    ]


def _all_traced(
    cases: Sequence[PooledProbe], cards: Sequence[Card], progress: StagedProgress, request: FrontierRequest
) -> list[Answer]:
    """Trace several combinations at once, in workers that are forked or elsewhere."""
    executor = request.executor

    def traced(case: PooledProbe, start: WorkerStarter, stop: CancelToken) -> Answer:
        progress.started(case)
        if executor is not None:
            return run_elsewhere(executor, _traced, case.request, cards, SilentProgress(), stop=stop)
        return _traced(case.request, cards, SilentProgress(), stop, start)

    stop = CancelToken()
    jobs = len(cases) if executor is not None else request.jobs or default_jobs(len(cases))
    with WorkerPool(stop) as workers:
        return run_all([partial(traced, case, workers.start) for case in cases], jobs, stop)


def _traced(
    request: ProbeRequest,
    cards: Sequence[Card],
    progress: Progress,
    stop: CancelToken | None = None,
    start: WorkerStarter | None = None,
) -> Answer:
    try:
        return fit_cards(request, cards, progress, stop=stop, start=start)
    except OomdoctorError as error:
        return error


def _probed(request: ProbeRequest, cards: Sequence[Card], progress: Progress, asked: FrontierRequest) -> Answer:
    try:
        return probe_cards(request, cards, progress, jobs=asked.jobs, executor=asked.executor)
    except OomdoctorError as error:
        return error


def _trials_of_each(request: ProbeRequest, cards: Sequence[Card], progress: Progress, asked: FrontierRequest) -> Answer:
    """Trace the trials of each card, where what a step does depends on those before it."""
    found = _probed(request, cards, progress, asked)
    text = "each card had trials of its own, since the target keeps memory from step to step"
    return replace(found, reasons=(*found.reasons, Reason("trials", text))) if isinstance(found, FitTable) else found


def _unknown(card: Card, error: OomdoctorError) -> CardFit:
    return CardFit(card.key, 0, 0, "unknown", None, (error.message,))


def _card(card: Card, sizes: Mapping[str, int], row: CardFit, unit: int) -> FittedCard:
    return FittedCard(
        gpu=card.key,
        name=card.name,
        total_bytes=card.total_bytes,
        capacity_bytes=card.capacity_bytes,
        compute_capability=".".join(map(str, card.compute_capability)),
        micro_batch=CardMicroBatch(row.maximum * unit, row.recommended * unit, row.limited_by),
        accumulation=row.plan,
        notes=row.notes,
        at_sizes=tuple(Axis(name, size) for name, size in sizes.items()),
    )


def _result(
    request: FrontierRequest, asked: ProbeRequest, tables: Sequence[FitTable], rows: Sequence[FittedCard]
) -> FitResult:
    reasons = dict.fromkeys(reason for table in tables for reason in table.reasons)
    return FitResult(
        target=asked.target,
        target_batch=asked.target_batch,
        world_size=asked.world_size,
        precision=asked.variant.precision,
        optimizer=asked.variant.optimizer,
        headroom=asked.headroom,
        engine="null" if asked.engine == "null" else "trace",
        weights_bytes=max(table.weights_bytes for table in tables),
        questions=tuple(dict.fromkeys(question for table in tables for question in table.questions)),
        reasons=(*reasons, *reserve_reasons(asked.reserve_bytes)),
        cards=tuple(rows),
        given_sizes=tuple(Axis(name, size) for name, size in request.given.items()),
        varied_sizes=tuple(request.over),
        variant=asked.variant,
    )
