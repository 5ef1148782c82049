"""A forked training takes the memory that it takes in a process of its own, and launchers work unchanged."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forking import ForkServer, describe, fork_server, plain_environment

from oomdoctor.engines.choice import choose_engine

pytestmark = pytest.mark.null_gpu

_TRAINING = """
import json, os, sys
known = "torch" in sys.modules
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = model(torch.randn(64, 512, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
stats = torch.cuda.memory_stats()
keys = ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "allocation.all.allocated", "num_alloc_retries")
print(json.dumps([known, [stats[key] for key in keys], torch.cuda.get_device_properties(0).total_memory, loss.item(),
                  [os.environ.get(name) for name in ("RANK", "WORLD_SIZE")]]), flush=True)
try:
    torch.empty(1 << 40, device="cuda")
except torch.OutOfMemoryError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """A server on a null GPU that has imported what training imports, and libraries that ask for a GPU."""
    engine = choose_engine(engine="null", gpu="rtx-4090", device=None, memory_bytes=None, base=os.environ)
    environment = plain_environment(engine.environment)
    code = "import torch, torch._dynamo, torch.distributed.run\ntorch.cuda.is_available()"
    with fork_server(describe(code, environment), environment) as running:
        assert running.answer["ready"], running.answer
        yield running


def test_a_forked_training_takes_the_same_memory(server: ForkServer, tmp_path: Path) -> None:
    """Peaks, the number of allocations, the card and the text of an error are equal to the byte."""
    (tmp_path / "train.py").write_text(_TRAINING)
    fresh, forked = (server.run([tmp_path / "train.py"], fork=fork) for fork in (False, True))

    known, *figures = json.loads(forked.stdout.splitlines()[0])

    assert (known, forked.stderr) == (True, "")
    assert figures == json.loads(fresh.stdout.splitlines()[0])[1:]
    assert "GiB" in forked.stdout.splitlines()[1]
    assert _without_pid(forked.stdout.splitlines()[1]) == _without_pid(fresh.stdout.splitlines()[1])


def _without_pid(text: str) -> str:
    import re

    return re.sub(r"Process \d+", "Process", text)


@pytest.mark.parametrize("launcher", [["-m", "torch.distributed.run"], ["torchrun"]], ids=" ".join)
def test_a_launcher_and_its_worker_are_forked(server: ForkServer, launcher: list[str], tmp_path: Path) -> None:
    """Both hand themselves over; the worker has its rank and its memory."""
    (tmp_path / "train.py").write_text(_TRAINING)
    command = [Path(sys.executable).parent / "torchrun" if launcher == ["torchrun"] else launcher[0], *launcher[1:]]

    ended = server.run([*command, "--nproc-per-node", "1", tmp_path / "train.py"], fork=True)

    assert ended.returncode == 0, ended.stderr
    assert server.refusals() == []
    known, *_, rank = json.loads(ended.stdout.splitlines()[0])
    assert (known, rank) == (True, ["0", "1"])


def test_a_launcher_tells_of_a_worker_that_fails(server: ForkServer, tmp_path: Path) -> None:
    """A worker's code reaches the launcher through its proxy, and the launcher's own reaches whoever started it."""
    (tmp_path / "train.py").write_text("raise SystemExit(7)")

    ended = server.run(["-m", "torch.distributed.run", "--nproc-per-node", "1", tmp_path / "train.py"], fork=True)

    assert ended.returncode == 1
    assert "exitcode: 7" in ended.stderr.replace(" ", "").replace("exitcode:", "exitcode: ")
