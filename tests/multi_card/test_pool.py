"""Work side by side: as much at once as is allowed, in order at the end, and ended together."""

from __future__ import annotations

import _thread
import select
import threading
import time
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from oomdoctor.errors import TargetError
from oomdoctor.multi_card.pool import Answer, PooledProbe, probe_all
from oomdoctor.request import ProbeRequest
from oomdoctor.trial.parallel import default_jobs, run_all
from oomdoctor.trial.process import CancelToken

SECONDS = 20


def test_pieces_run_at_once_and_answer_in_order() -> None:
    """Two jobs are two pieces at one time, and the results are in the order of the work."""
    both = threading.Barrier(2)

    def meet(number: int, _stop: CancelToken) -> int:
        both.wait(SECONDS)
        return number

    assert run_all([partial(meet, number) for number in range(4)], 2) == [0, 1, 2, 3]


def test_no_more_run_at_once_than_there_are_jobs() -> None:
    """One job is one piece at a time."""
    running = threading.Semaphore(1)

    def alone(_stop: CancelToken) -> bool:
        is_alone = running.acquire(blocking=False)
        time.sleep(0.01)
        running.release()
        return is_alone

    assert run_all([alone] * 5, 1) == [True] * 5


def waiting(ended: list[int], number: int, stop: CancelToken) -> None:
    """A piece that would wait for long, as one does for its worker."""
    readable, _, _ = select.select([stop.fd], [], [], SECONDS)
    if readable:
        ended.append(number)


def test_an_interrupt_ends_all() -> None:
    """What is running hears of it and has ended when the interrupt goes on; what is not does not begin."""
    ended: list[int] = []

    def interrupting(_stop: CancelToken) -> None:
        time.sleep(
            0.2
        )  # until all are handed over: Python's pool joins no thread that an interrupt meets while it starts
        _thread.interrupt_main()

    work = [partial(waiting, ended, 1), partial(waiting, ended, 2), interrupting, partial(waiting, ended, 3)]
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_all(work, 3)
    assert time.monotonic() - started < SECONDS / 2
    assert {1, 2} <= set(ended)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("oomdoctor-probe")] == []


def test_a_bug_in_one_piece_ends_the_others() -> None:
    """What nobody expected is raised, and not before the others have ended."""
    ended: list[int] = []

    def broken(_stop: CancelToken) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run_all([partial(waiting, ended, 1), broken], 2)
    assert ended == [1]


def test_there_are_as_many_jobs_as_are_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """One a core that this process may use, never more than there is work or than the host's memory bears."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(4)))
    assert [default_jobs(pieces) for pieces in (1, 3, 4, 15)] == [1, 3, 4, 4]
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(128)))
    assert default_jobs(15) == 8


def test_a_stop_is_heard_by_everyone_and_forever() -> None:
    """It may be given twice, is heard by all that wait, and by those who come later."""
    stop = CancelToken()
    assert select.select([stop.fd], [], [], 0)[0] == []
    stop.set()
    stop.set()
    assert stop.is_set
    assert all(select.select([stop.fd], [], [], 0)[0] for _ in range(3))


def test_a_stop_sets_those_below_it() -> None:
    """A token made for part of the work hears its parent, also where that was set before, and not the other way."""
    parent = CancelToken()
    child, finished = CancelToken(parent), CancelToken(parent)
    finished.set()
    assert not parent.is_set
    assert not child.is_set
    parent.set()
    assert select.select([child.fd], [], [], 0)[0]
    assert child.is_set
    assert CancelToken(parent).is_set


class Told:
    """A progress that remembers which cases ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def started(self, case: PooledProbe) -> None:
        """Pass over it."""

    def finished(self, case: PooledProbe, answer: Answer, *, seconds: float) -> None:
        """Note it."""
        assert seconds >= 0
        assert isinstance(answer, TargetError)
        self.ended.append(case.name)


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_probes_run_in_any_executor(pool: type[Executor], tmp_path: Path) -> None:
    """One with the interface of `concurrent.futures` runs each case, in another process too; errors are answers."""
    cases = [PooledProbe(name, ProbeRequest(f"{name}.py", tmp_path, target_batch=8, gpu="t4")) for name in ("a", "b")]
    told = Told()
    with pool() as executor:
        answers = probe_all(cases, told, jobs=1, executor=executor)
    assert [str(answer) for answer in answers] == [f"no such file: `{name}.py` in `{tmp_path}`" for name in ("a", "b")]
    assert sorted(told.ended) == ["a", "b"]
