"""The answer of each entry: from the cache, or from a probe in a worker of its own."""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

from oomdoctor.checking.commands import check_program
from oomdoctor.checking.crew import run_all
from oomdoctor.devices.monitor import has_local_gpu
from oomdoctor.errors import OomdoctorError
from oomdoctor.probing.found import Probe
from oomdoctor.probing.probe import engine_for, probe
from oomdoctor.progress import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from oomdoctor.checking.cache.store import Cache
    from oomdoctor.checking.progress import CheckProgress
    from oomdoctor.probing.request import ProbeRequest
    from oomdoctor.probing.stopping import Stop

Answer: TypeAlias = Probe | OomdoctorError
"""What a probe found, or why it has no answer."""


@dataclass(frozen=True, slots=True)
class Answerer:
    """Has questions answered.

    Attributes:
        jobs: Most probes at once.
        progress: Told of each question.
        cache: Answers that are known; None to ask anew and to keep nothing.
        not_kept: Why an answer cannot be used again, by name, where its target is the reason.
    """

    jobs: int
    progress: CheckProgress
    cache: Cache | None = None
    not_kept: dict[str, str] = field(default_factory=dict)

    def answers(self, requests: Mapping[str, ProbeRequest]) -> dict[str, Answer]:
        """The answers to questions by their names, in their order.

        Errors in one target leave the others alone; an interrupt ends all.
        """
        # To watch a command costs a little, which only an answer that is kept is worth.
        requests = {name: replace(one, watched=self.cache is not None) for name, one in requests.items()}
        known = {name: found for name, request in requests.items() if (found := self._known(name, request))}
        open_names = [name for name in requests if name not in known]
        _prepare([requests[name] for name in open_names])
        local = Lock() if any(requests[name].gpu is None for name in open_names) and has_local_gpu() else None
        work = [partial(self._asked, name, requests[name], local) for name in open_names]
        asked = dict(zip(open_names, run_all(work, min(self.jobs, len(work))) if work else [], strict=True))
        return {name: known.get(name) or asked[name] for name in requests}

    def _known(self, name: str, request: ProbeRequest) -> Probe | None:
        started = time.monotonic()
        found = None if self.cache is None else self.cache.find(request)
        if found is not None:
            self.progress.finished(name, found.result, seconds=time.monotonic() - started, is_cached=True)
        return found

    def _asked(self, name: str, request: ProbeRequest, local: Lock | None, stop: Stop) -> Answer:
        with _alone(local if request.gpu is None else None):
            if stop.is_set:
                raise KeyboardInterrupt
            started = time.monotonic()
            self.progress.started(name)
            answer = self._probed(name, request, stop)
        result = answer.result if isinstance(answer, Probe) else answer
        self.progress.finished(name, result, seconds=time.monotonic() - started, is_cached=False)
        return answer

    def _probed(self, name: str, request: ProbeRequest, stop: Stop) -> Answer:
        try:
            check_program(request)
            found = probe(request, SilentProgress(), stop=stop)
        except OomdoctorError as error:
            return error
        reason = None if self.cache is None else self.cache.keep(request, found)
        if reason is not None:
            self.not_kept[name] = reason
        return found


def _alone(lock: Lock | None) -> AbstractContextManager[object]:
    """Two probes on one real GPU would take memory from each other."""
    return nullcontext() if lock is None else lock


def _prepare(requests: Sequence[ProbeRequest]) -> None:
    """Compile the null GPU where that is to be done, once and where an interrupt is heard."""
    for request in requests[:1]:
        # What is wrong is said of each entry by its own probe.
        with suppress(OomdoctorError):
            engine_for(request)
