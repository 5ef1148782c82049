"""Several devices of one process, over which `nn.DataParallel` divides each batch."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_python import run_program

from oomdoctor import probe
from oomdoctor.errors import TargetError, UsageError
from oomdoctor.results import ProbeResult

pytestmark = [pytest.mark.null_gpu, pytest.mark.usefixtures("forked_workers")]

MODEL = """\
import torch
from torch import nn

def build_model():
    return nn.Sequential(nn.Linear(500, 700), nn.ReLU(), nn.Linear(700, 9000))

def make_batch(batch_size):
    return torch.ones(batch_size, 500)

def training_step(model, batch):
    return model(batch).sum()
"""
LOOP = """\
import gc
import json
import re
import sys
import torch
from torch import nn
sys.path.insert(0, sys.argv[1])
import model as file

inner = file.build_model().to("cuda")
wrapped = nn.DataParallel(inner)
optimizer = torch.optim.AdamW(inner.parameters())
gc.disable()
for step in range(2):
    batch = file.make_batch(int(sys.argv[2])).to("cuda")
    loss = file.training_step(wrapped, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(json.dumps([torch.cuda.max_memory_allocated(index) for index in range(torch.cuda.device_count())]))
"""


def ask(folder: Path, text: str = MODEL, **question: Any) -> ProbeResult:
    """The answer of a probe over three devices."""
    (folder / "model.py").write_text(text)
    return probe(folder / "model.py", **{"devices": 3, "capacity": "300MiB", "engine": "null", **question}).result


def test_each_device_is_measured(tmp_path: Path, null_environment: Callable[[int], dict[str, str]]) -> None:
    """The peaks of all devices are those of a script that trains the model so, and DDP's number is told."""
    result = ask(tmp_path)
    size = result.micro_batch.maximum
    trial = next(each for each in result.trials if each.micro_batch == size)
    (tmp_path / "loop.py").write_text(LOOP)
    environment = {**null_environment(2 << 30), "OOMDOCTOR_NULL_DEVICES": "3"}
    ended = run_program(sys.executable, [str(tmp_path / "loop.py"), str(tmp_path), str(size)], environment, timeout=60)
    assert ended.returncode == 0, ended.stderr
    others = [each.peak_allocated_bytes for each in trial.other_devices]
    assert [trial.peak_allocated_bytes, *others] == json.loads(ended.stdout)
    told = next(reason.text for reason in result.reasons if reason.subject == "devices")
    assert f"at micro-batch {size}: device 0 " in told
    assert "device 0 has" in told
    words = r"DistributedDataParallel fits (\d+) on these 3 devices, (\d+) on each, where `nn.DataParallel` fits (\d+)"
    (found,) = (match for warning in result.warnings if (match := re.match(words, warning)))
    whole, each, own = map(int, found.groups())
    assert whole == 3 * each > own == size


@pytest.mark.parametrize(
    ("question", "kind", "message"),
    [
        ({"world_size": 4}, UsageError, "`devices` about one process"),
        ({"devices": 17}, UsageError, "at most 16"),
        ({"engine": "trace"}, UsageError, "a trace was chosen"),
        ({"text": MODEL.replace("model(batch).sum()", "model.forward_all(batch)")}, TargetError, "forward_all"),
    ],
)
def test_what_several_devices_cannot_be_is_refused(
    tmp_path: Path, question: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """A question or a file that cannot be about several devices of one process is an error that says why."""
    with pytest.raises(kind) as raised:
        ask(tmp_path, **question)
    assert message in raised.value.message
