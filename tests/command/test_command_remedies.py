"""Remedies of a command: each row is the command whose program does the same by itself, and what cannot be is named."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_running import PYTHON
from running import Run

from oomdoctor.command.fork_server import ForkServer
from oomdoctor.remedies.catalogue import BY_ID
from oomdoctor.remedies.file_edit import FileEdit, code_of_program

pytestmark = pytest.mark.null_gpu

_PROGRAM = """
import sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WAYS = sys.argv[2:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        return x + self.layers(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(1000, 64), nn.Linear(64, 1000)
        self.blocks = nn.ModuleList(Block() for _ in range(1 if "one" in WAYS else 4))

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if "checkpoint" in WAYS else block(x)
        return self.head(x)


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), **({"fused": True} if "optimizer-fused" in WAYS else {}))
for _ in range(10):
    words = torch.randint(1000, (int(sys.argv[1]), 64)).cuda()
    with torch.autocast("cuda", torch.bfloat16, enabled="bf16" in WAYS):
        loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_TWO_MODELS = """
import sys
import torch
from torch import nn

ROWS, WAYS = int(sys.argv[1]), sys.argv[2:]
critic = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 1)).cuda()
maker = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 256)).cuda()
judging, making = torch.optim.AdamW(critic.parameters()), torch.optim.AdamW(maker.parameters())
for _ in range(10):
    noise, seen = torch.randn(ROWS, 64).cuda(), torch.randn(ROWS, 256).cuda()
    if "unseen" in WAYS:
        with torch.no_grad():
            made = maker(noise)
    with torch.autocast("cuda", torch.bfloat16, enabled="bf16" in WAYS):
        if "unseen" not in WAYS:
            made = maker(noise)
        loss = critic(seen).mean() - critic(made.detach()).mean()
    loss.backward()
    judging.step()
    judging.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled="bf16" in WAYS):
        loss = critic(maker(noise) if "unseen" in WAYS else made).mean()
    loss.backward()
    making.step()
    making.zero_grad()
"""
_CARD = ("--gpu", "rtx-4090", "--target-batch", "16", "--json", "-q")
_BY_HAND = """
import gc, runpy, sys, torch
for way in sys.argv[1:]:
    sys.argv = ["train.py", "16", way]
    torch.cuda.reset_peak_memory_stats()
    runpy.run_path("train.py")
    print(torch.cuda.max_memory_allocated())
    gc.collect()  # of what the program has left
"""


@pytest.fixture
def run(tmp_path: Path, oomdoctor_here: Run) -> Run:
    """The command line in a directory with the program."""
    (tmp_path / "train.py").write_text(_PROGRAM)
    return oomdoctor_here


def _rows(run: Run, remedies: Sequence[str], *ways: str) -> dict[str, Any]:
    """Rows of a prescription by remedy; the whole target fits, so that each is a few trials."""
    without = [word for name in BY_ID if name not in remedies for word in ("--without", name)]
    done = run("prescribe", *_CARD, *without, "--", PYTHON, "train.py", "{micro_batch}", *ways)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["result"]
    return {"+".join(row["remedies"]): row for row in (result["plain"], *result["alone"])}


def test_a_row_is_the_probe_of_a_program_that_does_it_by_itself(
    run: Run, tmp_path: Path, null_environment: Callable[[int], dict[str, str]]
) -> None:
    """Checkpointing, autocast and the fused optimizer take the same memory to the byte as written in the program."""
    ways = ("checkpoint", "bf16", "optimizer-fused")
    rows = _rows(run, ways)

    command = (PYTHON, "-c", _BY_HAND, *ways)
    by_hand = subprocess.run(
        command, cwd=tmp_path, env=null_environment(2**34), capture_output=True, text=True, check=True
    )
    peaks = dict(zip(ways, map(int, by_hand.stdout.split()), strict=True))
    assert {name: rows[name]["peak_bytes"] for name in ways} == peaks
    assert len({rows[""]["peak_bytes"], *peaks.values()}) == 4
    assert rows["checkpoint"]["acts_on"] == ["4 of 4 blocks (`blocks.*`, `Block` at train.py:10)"]


@pytest.mark.parametrize("way", ["seen", "unseen"])
def test_models_that_train_in_turn_run_in_the_precision_that_is_asked_for(
    oomdoctor_here: Run, tmp_path: Path, null_environment: Callable[[int], dict[str, str]], way: str
) -> None:
    """A forward that begins with the second model, or with one that was first called without gradients, is autocast."""
    (tmp_path / "train.py").write_text(_TWO_MODELS)
    row = _rows(oomdoctor_here, ("bf16",), way)["bf16"]

    code = (
        f"import sys\nsys.argv[1:] = ['16', 'bf16', {way!r}]\n{_TWO_MODELS}\nprint(torch.cuda.max_memory_allocated())"
    )
    by_hand = subprocess.run(
        (PYTHON, "-c", code), env=null_environment(2**34), capture_output=True, text=True, check=True
    )
    assert (row["outcome"], row["peak_bytes"]) == ("measured", int(by_hand.stdout))


def test_all_rows_are_forked_from_one_server(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the program as it is; a setting of the allocator, which torch has read by then, has one of its own."""
    started: list[object] = []

    class Counted(ForkServer):
        def __init__(self, *arguments: Any) -> None:
            started.append(arguments[0].environment.get("PYTORCH_CUDA_ALLOC_CONF"))
            super().__init__(*arguments)

    monkeypatch.setattr("oomdoctor.command.supervisor.ForkServer", Counted)
    rows = _rows(run, ("checkpoint", "bf16", "expandable-segments"))
    assert [row["outcome"] for row in rows.values()] == ["measured"] * 4
    assert len(started) == 2
    assert started[0] is None
    assert "expandable_segments:True" in str(started[1])


def test_what_cannot_be_applied_says_why(run: Run) -> None:
    """A program with autocast of its own and one block is measured as it is, and each remedy says what it lacks."""
    rows = _rows(run, ("checkpoint", "bf16", "offload-activations", "bf16-weights"), "bf16", "one")

    assert rows[""]["outcome"] == rows["offload-activations"]["outcome"] == "measured"
    assert rows["offload-activations"]["host_bytes"] > 2**20
    assert rows["bf16"]["problem"] == "the program runs its forward under autocast already"
    assert "no blocks to checkpoint" in rows["checkpoint"]["problem"]
    assert rows["bf16-weights"]["problem"] == "the program's optimizer holds the weights before the model is called"


def test_what_a_loop_keeps_of_its_batch_is_not_fixed(run: Run, tmp_path: Path) -> None:
    """Only weights and the optimizer's state stay at any size, and are what ranks could share."""
    (tmp_path / "train.py").write_text(
        _PROGRAM.replace("cross_entropy(model(words)", "cross_entropy((kept := model(words))")
    )
    without = [word for name in BY_ID for word in ("--without", name)]
    card = ("--gpu", "t4", "--capacity", "512MiB", "--json", "-q")
    done = run("prescribe", *card, *without, "--", PYTHON, "train.py", "{micro_batch}")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["result"]

    weights = 1000 * 64 + 4 * (64 * 256 + 256 + 256 * 64 + 64) + 64 * 1000 + 1000
    kept_bytes = result["plain"]["maximum"] * 64 * 1000 * 4
    assert kept_bytes > 10 * (held_bytes := 3 * 4 * weights)
    assert result["plain"]["fixed_bytes"] == pytest.approx(held_bytes, rel=0.1)


def test_code_of_a_program_is_for_its_places() -> None:
    """Lines say where in a program without the functions of a file they go; decorators become contexts."""
    edit = FileEdit(
        imports=("import torch",),
        model=("model.train()",),
        decorators=('torch.autocast("cuda", dtype=torch.bfloat16)',),
        keywords=("fused=True",),
    )

    assert dict(code_of_program(edit)) == {
        "with the imports": ("import torch",),
        "where `model` has been built": ("model.train()",),
        "around the forward and the loss": ('with torch.autocast("cuda", dtype=torch.bfloat16):',),
        "in the optimizer's call": ("fused=True",),
    }


def test_no_file_of_a_command_is_patched(run: Run) -> None:
    """`--write` is refused before anything is probed."""
    done = run("prescribe", *_CARD, "--write", "patched.py", "--", PYTHON, "train.py", "{micro_batch}")

    assert done.returncode == 2
    assert "patches are made of files alone" in done.stderr
