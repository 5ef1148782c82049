"""A table of what fits each card, made by a probe of each on a null GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oomdoctor.errors import OomdoctorError
from oomdoctor.multi_card.fit import FitTable
from oomdoctor.multi_card.pool import Case, StagedProgress, default_jobs, probe_all
from oomdoctor.results.fit import CardFit
from oomdoctor.search.accumulation import per_device_target
from oomdoctor.trial.answer import ProbeRun

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.multi_card.pool import Answer
    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest


def probe_cards(
    request: ProbeRequest,
    cards: Sequence[Card],
    progress: Progress,
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> FitTable:
    """Probe the target on each of some cards, several at once; the first error ends all.

    Args:
        request: The question; what it says of a card is passed over.
        cards: The cards.
        progress: Told of each.
        jobs: Most probes at once; None for one a core.
        executor: Runs the probes elsewhere; see `oomdoctor.multi_card.pool.probe_all`.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The target is at fault.
        NoAnswerError: The null GPU cannot run, a crash, or a time limit.
    """
    per_device_target(request.target_batch, request.world_size)
    cases = [Case(card.key, replace(request, gpu=card.key)) for card in cards]
    told = _CardProgress(progress, len(cases))
    answers = probe_all(cases, told, jobs=jobs or default_jobs(len(cases)), executor=executor)
    found = [answer for answer in answers if isinstance(answer, ProbeRun)]
    rows = tuple(_row(card, answer) for card, answer in zip(cards, found, strict=True))
    last = found[-1]
    reasons = tuple(reason for reason in last.result.reasons if reason.subject == "allocator")
    return FitTable(rows, last.result.weights_bytes or 0, dict(last.versions), reasons, ())


class _CardProgress(StagedProgress):
    """Ends all probes at the first error: a target that is wrong is wrong on every card."""

    words = "probing {target} on {name}"

    def finished(self, case: Case, answer: Answer, *, seconds: float) -> None:
        """Raise an error."""
        del case, seconds
        if isinstance(answer, OomdoctorError):
            raise answer


def _row(card: Card, answer: ProbeRun) -> CardFit:
    result = answer.result
    sizes = result.micro_batch
    limited_by = sizes.limited_by if result.trials else "model"
    return CardFit(card.key, sizes.maximum, sizes.recommended, limited_by, result.accumulation, result.warnings)
