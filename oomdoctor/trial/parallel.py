"""Work side by side in threads: probes wait for their workers, and all are ended together."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from oomdoctor.trial.process import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from threading import Lock
    from types import FrameType

    from oomdoctor.progress import Progress
    from oomdoctor.results import Trial

T = TypeVar("T")

_MOST_JOBS: Final = 8
"""Each job holds a model in the host's memory, and few machines have that for every core."""


def default_jobs(pieces: int) -> int:
    """Return how many pieces of work to run at once where nobody says: one for each core that this process may use."""
    return max(1, min(pieces, len(os.sched_getaffinity(0)), _MOST_JOBS))


def run_all(pieces: Sequence[Callable[[CancelToken], T]], jobs: int, stop: CancelToken | None = None) -> list[T]:
    """Run all pieces of work in threads, so many at once.

    Args:
        pieces: The work; each is handed the token that tells it to end.
        jobs: Most pieces at once.
        stop: The token, which is set in the end; None to make one.

    Returns:
        The pieces' results, in their order.

    Raises:
        BaseException: The exception of a piece, or an interrupt; the other pieces have been stopped.
    """
    stop = stop or CancelToken()
    with interrupts_set(stop):
        pool = ThreadPoolExecutor(jobs, thread_name_prefix="oomdoctor-probe")
        try:
            return all_results([pool.submit(piece, stop) for piece in pieces])
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


@contextmanager
def interrupts_set(stop: CancelToken) -> Iterator[None]:
    """Have an interrupt set a token while the block runs, and raise the interrupt once the block has ended.

    Python raises an interrupt between any two instructions of its main thread. In `concurrent.futures` that may be
    while a lock is held which every thread needs to hand in its result, and all of them would wait for ever. A second
    interrupt is raised at once.

    Args:
        stop: The token; what runs in the block ends once it is set.

    Raises:
        BaseException: What the handlers of the signals raise, `KeyboardInterrupt` as a rule.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone is interrupted
        yield
        return
    handlers = {
        number: handler for number in (signal.SIGINT, signal.SIGTERM) if callable(handler := signal.getsignal(number))
    }
    received: list[BaseException] = []

    def set_stop(number: int, frame: FrameType | None) -> None:
        try:
            handlers[signal.Signals(number)](number, frame)
        except BaseException as interrupt:
            if received:
                raise
            received.append(interrupt)
            stop.set()

    try:
        for number in handlers:
            signal.signal(number, set_stop)
        yield
    except BaseException:
        if not received:
            raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if received:
        raise received[0]


def all_results(futures: Sequence[Future[T]]) -> list[T]:
    """Return the results in order, once all are there; the first exception is raised at once."""
    for future in as_completed(futures):
        future.result()  # the first that failed ends the rest
    return [future.result() for future in futures]


class NamedProgress:
    """Tells a progress, which hears one thread at a time, of one probe among several, a line a trial.

    Args:
        progress: The progress.
        name: What the probe is called, before each line.
        lock: Held while the progress is told; the same for all of its probes.
    """

    def __init__(self, progress: Progress, name: str, lock: Lock) -> None:
        self._progress = progress
        self._name = name
        self._lock = lock

    def stage(self, text: str) -> None:
        """Tell of the stage."""
        with self._lock:
            self._progress.stage(f"{self._name}: {text}")

    def trial_started(self, micro_batch: int, low: int, high: int) -> None:
        """Pass over it: brackets of several searches would be taken for one."""

    def trial_finished(self, trial: Trial) -> None:
        """Tell the size and its outcome."""
        self.stage(f"micro-batch {trial.micro_batch}, {trial.outcome.value.replace('_', ' ')}, {trial.seconds:.2f} s")

    def close(self) -> None:
        """Do nothing: the others go on."""
