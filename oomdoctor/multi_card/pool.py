"""Probes side by side over a pool of workers, ended together when one fails or somebody interrupts."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Final, TypeVar

from oomdoctor.trial.process import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


T = TypeVar("T")

_MOST_JOBS: Final = 8
"""Each job holds a torch and a model in the host's memory, and few machines have that for every core."""


def default_jobs(pieces: int) -> int:
    """How many pieces of work to do at once where nobody says: one for each core that this process may use."""
    return max(1, min(pieces, len(os.sched_getaffinity(0)), _MOST_JOBS))


def run_all(work: Sequence[Callable[[CancelToken], T]], jobs: int) -> list[T]:
    """Do all of the work, so many pieces at once.

    Args:
        work: Each is handed the word at which it has to end.
        jobs: Most pieces at once.

    Returns:
        What each piece returned, in their order.

    Raises:
        BaseException: Whatever a piece raised, or an interrupt; then the others were ended and are gone.
    """
    stop = CancelToken()
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="oomdoctor-check")
    try:
        futures = [pool.submit(piece, stop) for piece in work]
        for future in as_completed(futures):
            future.result()  # the first that failed ends the rest
        return [future.result() for future in futures]
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
