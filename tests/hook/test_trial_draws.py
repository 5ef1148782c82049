"""What one trial has drawn at random the next one copies, and no program can tell."""

from __future__ import annotations

import ast
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from listening import run_trial

from oomdoctor.command.supervisor import RngCache

PYTHONS = [sys.executable, *filter(None, os.environ.get("OOMDOCTOR_TEST_PYTHONS", "").split(":"))]
PROGRAM = """
import torch

torch.manual_seed(0)
torch.set_default_dtype(torch.float32)
seen = []


def see(tensor):
    seen.append((tensor.double().sum().item(), tensor._version, tensor.requires_grad))


see(torch.empty(400, 401).normal_())
see(torch.nn.Linear(500, 500).weight)
see(torch.nn.Parameter(torch.empty(300, 300).uniform_(-1, 2)))
generator = torch.Generator().manual_seed(4)
see(torch.empty(70001, dtype=torch.bfloat16).normal_(1, std=2, generator=generator))
see(torch.empty(600, 600).t().normal_())  # not in its memory's order
see(torch.empty(400, 401).normal_())  # other numbers than the first time
see(torch.nn.init.trunc_normal_(torch.empty(300, 300)))
seen.append([torch.rand(3, generator=generator).tolist(), torch.rand(3).tolist(), torch.randn(3).tolist()])
with torch.device("cpu"):
    see(torch.empty(300, 300).normal_())
see(torch.func.vmap(lambda row: row.clone().normal_(), randomness="different")(torch.zeros(2, 70000)))
try:
    torch.nn.Parameter(torch.empty(300, 300)).normal_()
except RuntimeError as error:
    seen.append(str(error))
try:
    torch.empty(300, 300).normal_(0, -1)
except RuntimeError as error:
    seen.append(str(error))
print(seen)
"""


@pytest.fixture
def draws() -> Iterator[RngCache]:
    """Memory for what is drawn."""
    memory = RngCache()
    yield memory
    memory.close()


@pytest.fixture(params=PYTHONS, ids=lambda python: Path(python).parents[1].name)
def python(request: pytest.FixtureRequest) -> str:
    """Each interpreter that there is to test with."""
    return request.param


def _plain(python: str) -> str:
    return subprocess.run([python, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=100).stdout


def _trial(draws: RngCache, python: str = sys.executable) -> str:
    ended, listener = run_trial([python, "-c", PROGRAM], OOMDOCTOR_TRIAL_DRAWS=draws.path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [message["failures"] for message in listener.named("measured")] == [[]]
    return ended.stdout


def _used(draws: RngCache) -> int:
    with Path(draws.path).open("rb") as memory:
        return struct.unpack("<Q", memory.read(8))[0]


def test_what_is_copied_is_what_is_drawn(draws: RngCache, python: str) -> None:
    """Numbers, generators, version counters and errors are those of a program without the hook, time after time."""
    plain = _plain(python)

    first, used = _trial(draws, python), _used(draws)
    second = _trial(draws, python)

    assert first == second == plain
    assert _used(draws) == used > 400 * 401 * 4


def test_the_second_trial_draws_nothing(draws: RngCache) -> None:
    """What the memory holds is what it takes, so that other numbers there are other numbers in the program."""
    first = _trial(draws)
    with Path(draws.path).open("r+b") as memory:
        memory.seek(_used(draws) - 4096)
        memory.write(bytes(4096))

    second = _trial(draws)

    differing = [
        one for one, other in zip(ast.literal_eval(first), ast.literal_eval(second), strict=True) if one != other
    ]
    assert len(differing) == 1


def test_a_full_memory_keeps_what_it_has(draws: RngCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is drawn each time."""
    monkeypatch.setattr("oomdoctor.command.supervisor._MOST_CACHE_BYTES", 1 << 20)
    small = RngCache()

    first, second = _trial(small), _trial(small)

    assert first == second == _trial(draws)
    assert 400 * 401 * 4 < _used(small) <= 1 << 20
    small.close()


def test_a_locked_memory_is_left_alone(draws: RngCache) -> None:
    """Nobody waits for another trial that adds something."""
    with Path(draws.path).open("r+b") as memory:
        fcntl.lockf(memory, fcntl.LOCK_EX)
        first = _trial(draws)
        assert _used(draws) == 0

    assert _trial(draws) == first
    assert _used(draws) > 0


def test_memory_that_cannot_be_opened_changes_nothing() -> None:
    """The trial draws for itself."""
    ended, listener = run_trial([sys.executable, "-c", PROGRAM], OOMDOCTOR_TRIAL_DRAWS="/nowhere/at/all")

    assert ended.stdout == _plain(sys.executable)
    assert ended.stderr == ""
    assert listener.named("started")
