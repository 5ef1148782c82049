"""A model that the host has no room for is built without memory, and takes on the device what it always took."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from run_python import run_program
from running import python_path

MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False)
        self.head.weight = self.tokens.weight
        self.norm = nn.BatchNorm1d(64)
        self.register_buffer("positions", torch.arange(64))
        self.scale = torch.tensor(2.0)

    def forward(self, x):
        hidden = self.tokens(x) + self.tokens(self.positions[: x.shape[1]])
        return self.head(self.norm(hidden.transpose(1, 2)).transpose(1, 2)) * self.scale


def build_model():
    try:
        return Model()
    except Exception:
        return nn.Linear(1, 1)


def make_batch(batch_size):
    return torch.zeros(batch_size, 64, dtype=torch.long)


def training_step(model, batch):
    return model(batch).square().mean()
"""
READS = """\
import torch
from torch import nn


def build_model():
    layer = nn.Linear(512, 512)
    scale = layer.weight.abs().max().item()
    return layer if scale else nn.Identity()


def make_batch(batch_size):
    return torch.zeros(batch_size, 512)
"""
PROGRAM = """\
import json, sys
from pathlib import Path
import torch
from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.trace.emulation import emulated_cuda
from oomdoctor.errors import TargetError
from oomdoctor.remedies.applied import Changes
from oomdoctor.target.placement import storage_bytes
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial import loading
from oomdoctor.trial.device import set_emulated_device
from oomdoctor.trial.loading import build_on_host, place_model
from oomdoctor.trial.meters import WorkerMeter
from oomdoctor.trial.placement import Placement
from oomdoctor.target.importing import load_target

free_bytes = int(sys.argv[1])
loading.free_host_bytes = lambda: free_bytes
with emulated_cuda(find_card("t4")) as device:
    set_emulated_device(device)
    target = load_target(parse_reference("model.py", directory=Path.cwd()))
    try:
        model, placement = build_on_host(target, Changes(()), Placement())
    except TargetError as error:
        print(json.dumps({"error": error.message, "hint": error.hint}))
        sys.exit()
    model, error = place_model(target, model, torch.device("cuda", 0), WorkerMeter(), placement)
    placed = torch.cuda.memory_allocated()
    tied = model.tokens.weight is model.head.weight
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        target.training_step(model, target.make_batch(4).cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(json.dumps({"told": placement.told, "placed": placed, "tied": tied, "scale": str(model.scale.device),
        "weights": storage_bytes([*model.parameters(), *model.buffers()]), "peak": torch.cuda.max_memory_allocated()}))
"""
SIZED = """\
import torch
from torch import nn


def build_model(width=64):
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, 1))


def make_batch(batch_size, width=64):
    return torch.zeros(batch_size, width)


def training_step(model, batch):
    return model(batch).mean()
"""
OF_SIZES = """\
import json, sys
from dataclasses import asdict
from pathlib import Path
import torch
from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.trace.emulation import emulated_cuda
from oomdoctor.remedies.applied import Changes
from oomdoctor.results import Variant
from oomdoctor.results.variant import SearchedSize
from oomdoctor.target.importing import load_target
from oomdoctor.target.placement import BatchShape
from oomdoctor.target.reference import parse_reference
from oomdoctor.target.sizes import with_sizes
from oomdoctor.trial import loading
from oomdoctor.trial.device import set_emulated_device
from oomdoctor.trial.loading import build_on_host, place_model
from oomdoctor.trial.meters import WorkerMeter
from oomdoctor.trial.placement import Placement
from oomdoctor.trial.protocol import RunTrial
from oomdoctor.trial.sized_trials import SizedTrials
from oomdoctor.trial.step import TrialSetup

free_bytes = int(sys.argv[1])
loading.free_host_bytes = lambda: free_bytes
with emulated_cuda(find_card("t4")) as emulated:
    set_emulated_device(emulated)
    device, searched = torch.device("cuda", 0), SearchedSize("width", 2)
    plain = load_target(parse_reference("model.py", directory=Path.cwd()))
    target = with_sizes(plain, {"width": 1})
    model, placement = build_on_host(target, Changes(()), Placement())
    model, _ = place_model(target, model, device, WorkerMeter(), placement)
    setup = TrialSetup(
        target, model, device, Variant(searched=searched), computes=False, shape=BatchShape(), placement=placement
    )
    sized = SizedTrials(plain, setup, searched)
    trials = [sized.run(RunTrial(width, 1, 1 << 30)).trial for width in (64, 512, 64)]
    peaks = [[trial.outcome, trial.peak_allocated_bytes] for trial in trials]
    print(json.dumps({"peaks": peaks, "assumed": sized.assumptions}))
"""


PATHS = {"PYTHONPATH": python_path(Path(__file__).parents[2])}


def _ask(folder: Path, model: str, free_bytes: int, program: str = PROGRAM) -> dict[str, Any]:
    (folder / "model.py").write_text(model)
    (folder / "ask.py").write_text(program)
    ran = run_program(
        sys.executable, [str(folder / "ask.py"), str(free_bytes)], {**os.environ, **PATHS}, timeout=60, cwd=folder
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_a_model_without_room_takes_the_same_on_the_device(tmp_path: Path) -> None:
    """Weights, tied ones too, buffers, the step's peak: all as with room; and the result says why it has no values."""
    roomy, tight = (_ask(tmp_path, MODEL, free) for free in (1 << 40, 100_000))

    assert roomy["told"] == {}
    assert tight["told"]["host_memory"].startswith("97.66 KiB were free, too little for the weights")
    assert {**tight, "told": {}} == roomy
    assert tight["tied"]


def test_a_model_that_reads_its_weights_gets_a_hint(tmp_path: Path) -> None:
    """Where the host has no room, and `build_model` reads a value that the meta device has not, that is said."""
    found = _ask(tmp_path, READS, 1000)

    assert "meta" in found["error"]
    assert found["hint"].startswith("this host has no room for the model")


def test_a_model_that_a_size_sizes_is_built_where_room_is(tmp_path: Path) -> None:
    """Of sizes that each have a model of their own, those without room take the same too, and the result says so."""
    roomy, tight = (_ask(tmp_path, SIZED, free, OF_SIZES) for free in (1 << 40, 300_000))

    assert [outcome for outcome, _ in tight["peaks"]] == ["fits"] * 3
    assert tight["peaks"] == roomy["peaks"]
    assert (roomy["assumed"], tight["assumed"]) == ([], ["host-room"])
