"""Workers that probes of one file share, one after the other: what they import is imported once. No torch here."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.target.reference import Reference
    from oomdoctor.trial.worker_process import WorkerHandle, WorkerProcess, WorkerStarter

_MOST_IDLE: Final = 8
"""Workers that wait for another probe; each holds what its file imports."""


@dataclass(frozen=True, slots=True)
class _Idle:
    """A worker whose target was released.

    Attributes:
        worker: The worker.
        environment: Its environment, which names its card.
        origin: The file or module that it has imported, and the directory that this was found from.
        sources: The user's files among what it has imported, each with the time of its last change in ns.
    """

    worker: WorkerProcess
    environment: Mapping[str, str]
    origin: tuple[str, ...]
    sources: Mapping[str, int]

    def suits(self, reference: Reference, environment: Mapping[str, str]) -> bool:
        """Return whether a target finds here what it would find in a new worker."""
        is_same = self.origin == _origin(reference) and self.environment == environment
        return is_same and all(_changed_at(path) == time for path, time in self.sources.items())


class SharedWorkers:
    """Keeps workers from one probe to the next, for several threads.

    Args:
        start: Starts those that are missing.
    """

    def __init__(self, start: WorkerStarter) -> None:
        self._start = start
        self._idle: deque[_Idle] = deque()
        self._lock = Lock()

    def for_probe(self) -> WorkersOfProbe:
        """Return what starts the workers of one probe."""
        return WorkersOfProbe(self, self._start)

    def take(self, reference: Reference, environment: Mapping[str, str]) -> WorkerProcess | None:
        """Return an idle worker that a target can be loaded in; None where there is none."""
        with self._lock:
            found = next((idle for idle in self._idle if idle.suits(reference, environment)), None)
            if found is not None:
                self._idle.remove(found)
        return None if found is None else found.worker

    def keep(
        self, worker: WorkerProcess, reference: Reference, environment: Mapping[str, str], sources: Mapping[str, int]
    ) -> None:
        """Keep a worker whose target was released; the one that was kept first makes room where there are many."""
        with self._lock:
            self._idle.append(_Idle(worker, environment, _origin(reference), sources))
            oldest = self._idle.popleft() if len(self._idle) > _MOST_IDLE else None
        if oldest is not None:
            oldest.worker.close()

    def close(self) -> None:
        """End all that are idle."""
        with self._lock:
            idle, self._idle = self._idle, deque()
        for each in idle:
            each.worker.close()


class WorkersOfProbe:
    """Starts the workers of one probe, the first of which may be one that another probe has left.

    Args:
        shared: Workers that are kept.
        start: Starts those that are missing.

    Attributes:
        has_shared: Whether the probe ran in a worker that another one has left.
    """

    def __init__(self, shared: SharedWorkers, start: WorkerStarter) -> None:
        self._shared = shared
        self._start = start
        self.has_shared = False

    def __call__(self, environment: Mapping[str, str], questions_fd: int, answers_fd: int) -> WorkerHandle:
        """Start a new worker; see `oomdoctor.trial.worker_process.WorkerStarter`."""
        return self._start(environment, questions_fd, answers_fd)

    def take(self, reference: Reference, environment: Mapping[str, str]) -> WorkerProcess | None:
        """Return a worker that another probe has left; None where there is none."""
        worker = self._shared.take(reference, environment)
        self.has_shared = self.has_shared or worker is not None
        return worker

    def keep(
        self, worker: WorkerProcess, reference: Reference, environment: Mapping[str, str], sources: Mapping[str, int]
    ) -> None:
        """Leave a worker whose target was released to other probes."""
        self._shared.keep(worker, reference, environment, sources)


def _origin(reference: Reference) -> tuple[str, ...]:
    return (reference.directory, reference.path or reference.module or reference.location)


def _changed_at(path: str) -> int | None:
    with suppress(OSError):
        return Path(path).stat().st_mtime_ns
    return None
