"""Answers: one error leaves the others alone, what is known is not asked, and a real GPU is asked one at a time."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oomdoctor.check.runner import Answerer
from oomdoctor.errors import NoAnswerError, OomdoctorError, TargetError
from oomdoctor.multi_card import pool as pool_module
from oomdoctor.request import ProbeRequest


class Told:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def started(self, name: str) -> None:
        """Note it."""
        self.lines.append((name, "started"))

    def finished(self, name: str, answer: Any, *, seconds: float, is_cached: bool) -> None:
        """Note what came of it."""
        assert seconds >= 0
        outcome = "error" if isinstance(answer, OomdoctorError) else "answer"
        self.lines.append((name, "cached" if is_cached else outcome))


def asked(target: str, **changes: Any) -> ProbeRequest:
    """A question that is answered before any worker starts."""
    return ProbeRequest(target=target, directory=Path("/nowhere"), target_batch=8, gpu="t4", **changes)


def test_an_error_is_an_answer() -> None:
    """What is wrong with one target is its answer, and the next one is asked all the same."""
    told = Told()
    found = Answerer(2, told).answers({"a": asked("gone.py"), "b": asked("a b:c(")})
    assert [type(answer) for answer in found.values()] == [TargetError, TargetError]
    assert list(found) == ["a", "b"]
    assert sorted(told.lines) == [("a", "error"), ("a", "started"), ("b", "error"), ("b", "started")]


class Known:
    """A cache that knows one target."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def find(self, request: ProbeRequest) -> Any:
        """Know the one."""
        return self.answer if request.target == "known.py" else None

    def keep(self, _request: ProbeRequest, _answer: Any) -> None:
        """Refuse to be told more."""
        raise AssertionError("an error is not kept")


def test_what_is_known_is_not_asked() -> None:
    """A known answer takes its place among the others, and is told of as such."""
    told, answer = Told(), SimpleNamespace(result=None)
    cache: Any = Known(answer)
    found = Answerer(1, told, cache).answers({"a": asked("gone.py"), "b": asked("known.py")})
    assert list(found) == ["a", "b"]
    assert found["b"] is answer
    assert told.lines == [("b", "cached"), ("a", "started"), ("a", "error")]


@pytest.mark.parametrize(("gpu", "most"), [(None, 1), ("t4", 2)])
def test_a_real_gpu_is_asked_one_at_a_time(monkeypatch: pytest.MonkeyPatch, gpu: str | None, most: int) -> None:
    """Two probes would take memory from each other on a real GPU; on null GPUs they run at once."""
    running, seen, lock = [0], [0], threading.Lock()

    def probe(_request: ProbeRequest, *_: Any, **__: Any) -> Any:
        with lock:
            running[0] += 1
            seen[0] = max(seen[0], running[0])
        time.sleep(0.2)
        with lock:
            running[0] -= 1
        raise NoAnswerError("enough")

    monkeypatch.setattr(pool_module, "probe", probe)
    monkeypatch.setattr(pool_module, "has_local_gpu", lambda: True)
    request = ProbeRequest(target="x.py", directory=Path("/nowhere"), target_batch=8, gpu=gpu)
    Answerer(2, Told()).answers({str(number): request for number in range(3)})
    assert seen[0] == most
