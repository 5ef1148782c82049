"""Probes side by side: one target under many variants and on many cards, or many targets.

Workers are forked from a process that has imported torch (`oomdoctor.multi_card.workers`). All probes are ended
together when one raises what is no answer, or somebody interrupts.
"""

from __future__ import annotations

import time
from concurrent.futures import wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from oomdoctor.engines.monitor import has_local_gpu
from oomdoctor.errors import OomdoctorError
from oomdoctor.multi_card.fit import FitTable
from oomdoctor.multi_card.workers import WorkerPool
from oomdoctor.progress import SilentProgress
from oomdoctor.results.fit import CardFit
from oomdoctor.search.probe_search import limit_notes, share_of
from oomdoctor.trial.answer import ProbeRun
from oomdoctor.trial.parallel import all_results, default_jobs, run_all
from oomdoctor.trial.probe import engine_for, probe
from oomdoctor.trial.process import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor, Future

    from oomdoctor.command.fork_server import KeptForkServer
    from oomdoctor.engines.catalogue import Card
    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.trial.worker_process import WorkerStarter


T = TypeVar("T")

Answer: TypeAlias = ProbeRun | OomdoctorError
"""A finished probe, or the reason why there is none."""

_LOOKS_FOR_STOP_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class PooledProbe:
    """One probe of many.

    Attributes:
        name: What to call it.
        request: The question: the target, the card and the variant.
    """

    name: str
    request: ProbeRequest


class CasesProgress(Protocol):
    """Told of each case when it begins and when it ends, from several threads at once."""

    def started(self, case: PooledProbe) -> None:
        """A case began; not told of a case that runs elsewhere."""

    def finished(self, case: PooledProbe, answer: Answer, *, seconds: float) -> None:
        """A case ended.

        Args:
            case: The case.
            answer: What was found, or why nothing could be.
            seconds: Since it began.
        """


class StagedProgress:
    """Tells a progress, which hears one thread at a time, of each case that begins.

    Args:
        progress: The progress.
        cases: How many there are.
    """

    words = "probing {target}: {name}"
    """Text about a case, before its number."""

    def __init__(self, progress: Progress, cases: int) -> None:
        self._progress = progress
        self._cases = cases
        self._begun = 0
        self._lock = Lock()

    def started(self, case: PooledProbe) -> None:
        """Say which case is probed, and how many there are."""
        with self._lock:
            self._begun += 1
            text = self.words.format(target=case.request.target, name=case.name)
            self._progress.stage(f"{text}, {self._begun} of {self._cases}")

    def finished(self, case: PooledProbe, answer: Answer, *, seconds: float) -> None:
        """Pass over it."""


def probe_all(
    cases: Sequence[PooledProbe], progress: CasesProgress, *, jobs: int, executor: Executor | None = None
) -> list[Answer]:
    """Probe every case, so many at once; errors in one leave the others alone.

    Args:
        cases: The cases.
        progress: Told of each.
        jobs: Most probes at once in this process.
        executor: Runs the probes elsewhere, each as one picklable call of `probe_case`; None for this machine.

    Returns:
        An answer a case, in their order.

    Raises:
        BaseException: An exception that is no `OomdoctorError`, or an interrupt; the other probes have been stopped.
    """
    if executor is not None:
        return all_results([_submitted(executor, case, progress) for case in cases])
    stop = CancelToken()
    _build_null_gpu(cases)
    local = Lock() if any(case.request.gpu is None for case in cases) and has_local_gpu() else None
    with WorkerPool(stop) as workers:
        # Two probes on one real GPU would take memory from each other.
        pieces = [
            partial(_probed, case, progress, workers.start, local if case.request.gpu is None else None)
            for case in cases
        ]
        return run_all(pieces, max(1, min(jobs, len(cases))), stop)


def probe_case(
    case: PooledProbe,
    stop: CancelToken | None = None,
    start: WorkerStarter | None = None,
    kept: KeptForkServer | None = None,
    progress: Progress | None = None,
) -> Answer:
    """Probe one case; an error is an answer.

    Args:
        case: The case.
        stop: Ends the probe from another thread.
        start: Starts its workers; None for fresh interpreters.
        kept: The fork server of several probes of one command; None for one of its own.
        progress: Told of its trials.

    Raises:
        KeyboardInterrupt: The stop was set.
    """
    try:
        return probe(case.request, progress or SilentProgress(), stop=stop, start=start, kept=kept)
    except OomdoctorError as error:
        return error


def run_elsewhere(executor: Executor, function: Callable[..., T], *args: object, stop: CancelToken | None = None) -> T:
    """Run one picklable call elsewhere, and wait for it.

    Raises:
        KeyboardInterrupt: The stop was set meanwhile.
    """
    future = executor.submit(function, *args)
    while True:
        done, _ = wait([future], _LOOKS_FOR_STOP_SECONDS)
        if done:
            return future.result()
        if stop is not None and stop.is_set:
            future.cancel()
            raise KeyboardInterrupt


def _submitted(executor: Executor, case: PooledProbe, progress: CasesProgress) -> Future[Answer]:
    submitted = time.monotonic()

    def finished(future: Future[Answer]) -> None:
        if not future.cancelled() and future.exception() is None:
            progress.finished(case, future.result(), seconds=time.monotonic() - submitted)

    future = executor.submit(probe_case, case)
    future.add_done_callback(finished)
    return future


def _probed(
    case: PooledProbe, progress: CasesProgress, start: WorkerStarter, alone: Lock | None, stop: CancelToken
) -> Answer:
    with nullcontext() if alone is None else alone:
        if stop.is_set:
            raise KeyboardInterrupt
        started = time.monotonic()
        progress.started(case)
        answer = probe_case(case, stop, start)
    progress.finished(case, answer, seconds=time.monotonic() - started)
    return answer


def _build_null_gpu(cases: Sequence[PooledProbe]) -> None:
    """Compile the null GPU where that is to be done, once and where an interrupt is heard."""
    for case in cases[:1]:
        # Each case's probe reports the error itself.
        with suppress(OomdoctorError):
            engine_for(case.request)


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
        executor: Runs the probes elsewhere; None for this machine.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The target is at fault.
        NoAnswerError: The null GPU cannot run, a crash, or a time limit.
    """
    share_of(request.target_batch, request.world_size)
    cases = [PooledProbe(card.key, replace(request, gpu=card.key)) for card in cards]
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

    def finished(self, case: PooledProbe, answer: Answer, *, seconds: float) -> None:
        """Raise an error."""
        del case, seconds
        if isinstance(answer, OomdoctorError):
            raise answer


def _row(card: Card, answer: ProbeRun) -> CardFit:
    result = answer.result
    sizes = result.micro_batch
    limited_by = sizes.limited_by if result.trials else "model"
    searched = None if result.variant is None else result.variant.searched
    notes = result.warnings if searched is None else tuple(limit_notes(result.trials, limited_by, searched))
    return CardFit(card.key, sizes.maximum, sizes.recommended, limited_by, result.accumulation, notes)
