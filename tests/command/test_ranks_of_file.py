"""Ranks of a world that a model file parallelises its model for."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from running import Run

from oomdoctor import probe
from oomdoctor.command.probe import engine_for_command
from oomdoctor.command.supervisor import CommandSupervisor
from oomdoctor.command.world import rank_for_dry_run
from oomdoctor.errors import TargetError, UsageError
from oomdoctor.progress import SilentProgress
from oomdoctor.request import build_request
from oomdoctor.results import Outcome, PhaseName, ProbeResult
from oomdoctor.trial.probe import dry_run

pytestmark = [pytest.mark.null_gpu, pytest.mark.usefixtures("forked_workers")]

MODEL = """\
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))

class Model(nn.Module):
    def __init__(self, width=520, blocks=3, outputs=1001):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, outputs)
        self.scale = torch.ones(width)  # no buffer

    def forward(self, x):
        x = x * self.scale.to(x.device)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def build_model(outputs=1001):
    return Model(outputs=outputs)

def make_batch(batch_size):
    return torch.ones(batch_size, 520)

def training_step(model, batch):
    return model(batch).sum()
"""
PARALLELIZE = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def parallelize(model, mesh):
    if "tp" in mesh.mesh_dim_names:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], plan)
        parallelize_module(model, mesh["tp"], {"head": ColwiseParallel(output_layouts=Replicate())})
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
"""
SHARDED = MODEL + PARALLELIZE
SCRIPT = """\
import os
import sys
import torch
import torch.distributed as dist
import model as file

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
mesh = dist.init_device_mesh("cuda", (3, 2), mesh_dim_names=("dp", "tp"))
with torch.device("meta"):
    model = file.build_model(outputs=1000)
file.parallelize(model, mesh)
model.to_empty(device="cuda")
model.scale = torch.ones(520)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    batch = file.make_batch(int(sys.argv[1])).cuda()
    loss = file.training_step(model, batch)
    (loss / 1).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
TORCHRUN = (str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with a model file that shards its model."""
    (tmp_path / "model.py").write_text(MODEL + PARALLELIZE)
    return tmp_path


def ask(target: Path | str, **question: Any) -> ProbeResult:
    """The answer of a probe on a small null GPU."""
    return probe(target, **{"capacity": "200MiB", "engine": "null", **question}).result


def test_a_file_takes_what_a_script_takes(folder: Path) -> None:
    """A rank's peaks are those of the same rank of a script that trains the same model, phase by phase.

    Its part of the model is smaller than that of others: 3 divides neither 520 nor 1000.
    """
    (folder / "train.py").write_text(SCRIPT)
    words = (*TORCHRUN, "1", "train.py", "{micro_batch}")
    named = {"mesh": "dp=3,tp=2", "ranks": "5", "capacity": "2GiB", "engine": "null", "directory": folder}
    command = rank_for_dry_run(build_request(words, **named), engine_for_command, str(folder))
    with CommandSupervisor(replace(command, fresh=True), engine_for_command(command)) as supervisor:
        of_script = supervisor.first(1, 1)
    of_file = dry_run(build_request("model.py:build_model(outputs=1000)", **named), SilentProgress()).trial
    assert of_file is not None
    assert of_file.peak_allocated_bytes == of_script.peak_allocated_bytes
    assert of_file.peak_reserved_bytes == of_script.peak_reserved_bytes
    peaks = [[phase.peak_allocated_bytes for phase in trial.phases] for trial in (of_script, of_file)]
    assert peaks[0][1:6] == peaks[1][:5], "forward, backward, optimizer, forward, backward"


def test_ranks_of_uneven_shards_are_told(folder: Path) -> None:
    """The least of the ranks is the answer, and why it is that rank and what divides the model is told."""
    result = ask(folder / "model.py", world_size=7)
    assert [each.rank for each in result.ranks] == [0, 6]
    limiting = min(result.ranks, key=lambda each: (each.maximum, each.recommended))
    assert result.limited_by_rank == limiting.rank
    assert (result.micro_batch.maximum, result.micro_batch.recommended) == (limiting.maximum, limiting.recommended)
    assert result.ranks[0].peak_allocated_bytes > result.ranks[1].peak_allocated_bytes
    assert [each.phases[0].phase for each in result.ranks] == [PhaseName.LOAD] * 2
    assert result.nccl is not None
    assert result.nccl.communicators == (7,)
    told = {reason.subject: reason.text for reason in result.reasons}
    assert told["parallel"].startswith("`parallelize` at ")
    assert told["limited_by_rank"].startswith(f"rank {limiting.rank} ")


def test_each_size_of_shards_is_asked_about(folder: Path) -> None:
    """Ranks between the first and the last that have another part of a tensor, or none, are among those that differ.

    Of 520, 2080 and 1001 rows each of 64 ranks gets 9, 33 and 16, as long as there are some.
    """
    result = ask(folder / "model.py", world_size=64, target_batch=64)
    assert [each.rank for each in result.ranks] == [0, 57, 58, 62, 63]
    held = [each.phases[-1].end_allocated_bytes for each in result.ranks]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) == len(held)
    named = ask(folder / "model.py", world_size=64, target_batch=64, rank="0,last")
    assert [each.rank for each in named.ranks] == [0, 63]


def test_ranks_are_probed_side_by_side(folder: Path, oomdoctor_here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the first run at once where the host has the cores; the answer is as one after another, line for line."""
    asked = ("probe", "model.py", "--world-size", "7", "--rank", "0,3,6", "--gpu", "rtx-4090", "--capacity", "200MiB")
    answers = []
    for cores in (1, 3):
        monkeypatch.setattr("os.sched_getaffinity", lambda _pid, cores=cores: set(range(cores)))
        answers.append(oomdoctor_here(*asked, "--json"))
    results = [json.loads(each.stdout)["result"] for each in answers]
    for result in results:
        for trial in result["trials"]:
            del trial["seconds"]
    assert [rank["rank"] for rank in results[1]["ranks"]] == [0, 3, 6]
    assert results[0] == results[1]
    assert "rank 6: micro-batch" in answers[1].stderr
    assert "rank 6: micro-batch" not in answers[0].stderr


def test_trials_after_one_that_ran_out_start_afresh(folder: Path) -> None:
    """A trial that failed in the middle of a step changes nothing in those that follow it in the same worker."""
    result = ask(folder / "model.py", world_size=4, rank="0")
    order = [trial.outcome for trial in result.trials]
    assert Outcome.FITS in order[order.index(Outcome.OOM) :]
    size = result.micro_batch.recommended
    later = next(trial for trial in reversed(result.trials) if trial.micro_batch == size)
    alone = dry_run_at(folder, size)
    assert (later.peak_allocated_bytes, later.peak_reserved_bytes) == alone


def dry_run_at(folder: Path, size: int) -> tuple[int | None, int | None]:
    """The peaks of a size that is the first to run."""
    result = ask(folder / "model.py", world_size=4, rank="0", target_batch=4 * size)
    first = next(trial for trial in result.trials if trial.micro_batch == size)
    return first.peak_allocated_bytes, first.peak_reserved_bytes


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (
            {"world_size": 4, "parallel": "fsdp"},
            "FSDP2 (`fully_shard`) on 3 blocks (`blocks.*`, `Block` at model.py:4)",
        ),
        ({"mesh": "replicate=2,shard=2", "parallel": "fsdp"}, "FSDP2 (`fully_shard`) with replicas on 3 blocks"),
        ({"world_size": 4, "parallel": "ddp"}, "DistributedDataParallel around the model"),
    ],
)
def test_a_shorthand_parallelises_any_model(tmp_path: Path, question: dict[str, Any], words: str) -> None:
    """`parallel` divides a model without `parallelize`, and the answer tells what it wrapped."""
    (tmp_path / "model.py").write_text(MODEL)
    result = ask(tmp_path / "model.py", rank="0", target_batch=48, **question)
    plan = result.accumulation
    assert plan is not None
    assert (plan.micro_batches, plan.world_size, plan.effective_batch) == ((12,), 4, 48)
    told = {reason.subject: reason.text for reason in result.reasons}
    assert told["parallel"].startswith(words)
    assert told["accumulation"].endswith("share the target batch")
    whole = 4 * (3 * (2 * 4 * 520 * 520 + 5 * 520) + 521 * 1001)
    share = 4 if question["parallel"] == "fsdp" else 1
    share = 2 if "mesh" in question else share
    assert result.weights_bytes is not None
    assert whole // share <= result.weights_bytes < whole // share + 20_000, "parts are padded"


def test_a_world_of_one_is_as_without_parallelize(folder: Path, tmp_path: Path) -> None:
    """A file with `parallelize` is probed as one without it where the world has one rank."""
    with_it = ask(folder / "model.py", target_batch=12)
    (tmp_path / "model.py").write_text(MODEL)
    without = ask(tmp_path / "model.py", target_batch=12)
    assert [replace(trial, seconds=0) for trial in with_it.trials] == [
        replace(trial, seconds=0) for trial in without.trials
    ]
    assert with_it.ranks == ()


def test_a_tied_weight_stays_one(tmp_path: Path) -> None:
    """A parameter in two places has memory once, whatever `to_empty` makes of it."""
    tied = MODEL + PARALLELIZE + "\n\ndef build_tied():\n    model = Model(outputs=520)\n"
    tied += "    model.head.weight = model.blocks[0].extra = nn.Parameter(torch.ones(520, 520))\n    return model\n"
    (tmp_path / "model.py").write_text(
        tied.replace("def parallelize(model, mesh):", "def parallelize(model, mesh):\n    return model\n")
    )
    result = ask(f"{tmp_path}/model.py:build_tied", world_size=4, rank="0")
    assert result.weights_bytes == 4 * (3 * (2 * 4 * 520 * 520 + 5 * 520) + 521 * 520)


@pytest.mark.parametrize(
    ("file", "question", "kind", "message", "hint"),
    [
        (MODEL, {"mesh": "dp=4"}, UsageError, "has no `parallelize(model, mesh)`", 'or give `parallel = "fsdp"`'),
        (SHARDED, {"world_size": 4, "parallel": "fsdp"}, UsageError, "has `parallelize`, and", "the file says it"),
        (MODEL, {"mesh": "dp=2,tp=2", "parallel": "fsdp"}, UsageError, "a model along `tp`", "parallelize(model"),
        (MODEL, {"parallel": "fsdp"}, UsageError, "the world has one", "world_size = 64"),
        (
            MODEL.replace("torch.ones(width)", "torch.ones(width).sum().item()") + PARALLELIZE,
            {"world_size": 4},
            TargetError,
            "meta tensors",
            "in plain Python",
        ),
        (
            MODEL + "\ndef parallelize(model, mesh):\n    return nn.parallel.DistributedDataParallel(model)\n",
            {"world_size": 4},
            TargetError,
            "meta",
            "after `model.to_empty(device='cuda')`",
        ),
        (MODEL + PARALLELIZE + "    return 1\n", {"world_size": 4}, TargetError, "returned an int", "return nothing"),
        (MODEL + "\ndef parallelize(model):\n    pass\n", {}, TargetError, "cannot be called so", "parameters are"),
        (MODEL + PARALLELIZE, {"world_size": 4, "engine": "trace"}, UsageError, "a trace was chosen", "`gpu`"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(  # noqa: PLR0913, PLR0917 - one parameter a part of the case
    tmp_path: Path, file: str, question: dict[str, Any], kind: type[Exception], message: str, hint: str
) -> None:
    """What is wrong with a question or a file about ranks is said, with what to do."""
    (tmp_path / "model.py").write_text(file)
    with pytest.raises(kind) as raised:
        ask(tmp_path / "model.py", **question)
    assert message in raised.value.message
    assert hint in (raised.value.hint or "")


def test_the_command_line_shows_ranks_of_a_file(folder: Path, oomdoctor_here: Run) -> None:
    """`--mesh` alone asks about a file's ranks; the document names rank and mesh, and no folder of this run."""
    question = (
        "--mesh",
        "dp=2,tp=2",
        "--rank",
        "last",
        "--engine",
        "null",
        "--capacity",
        "200MiB",
        "--target-batch",
        "4",
        "--json",
    )
    ended = oomdoctor_here("probe", f"{folder}/model.py:build_model(outputs=1000)", *question)
    assert ended.returncode == 0, ended.stderr
    variant = json.loads(ended.stdout)["result"]["variant"]
    assert variant["lone_rank"] == {"rank": 3, "world_size": 4, "mesh": "dp=2,tp=2", "parallel": None}
    assert variant["environment"] == []


def test_a_model_that_does_not_fit_is_told(folder: Path) -> None:
    """A rank whose part of the weights does not fit is the answer 0, not an error."""
    result = ask(folder / "model.py", world_size=2, rank="0", capacity="6MiB")
    assert result.micro_batch.maximum == 0
    assert "weights" in result.warnings[0]


ENTRY = """\
gpu = "t4"
capacity = "200MiB"
[[check]]
name = "sharded"
target = "model.py"
world-size = 7
rank = "last"
micro-batch = 3
baseline = true
max-memory = "1MiB"
"""


def test_a_check_is_about_ranks(folder: Path, oomdoctor_here: Run) -> None:
    """An entry's memory is that of its rank at its size; it is known the second time, but not with another mesh."""
    checked = []
    for mesh in ("", "", 'mesh = "dp=7"\n'):
        (folder / "oomdoctor.toml").write_text(ENTRY + mesh)
        ended = oomdoctor_here("check", "--json", *([] if mesh else ["--update"]))
        checked += json.loads(ended.stdout)["result"]["entries"]
        probed = checked[-1]["probe"]
        assert (probed["limited_by_rank"], probed["memory"]["micro_batch"]) == (6, 3), ended.stderr
        (limit,) = [each for each in checked[-1]["limits"] if each["name"] == "max-memory"]
        assert (limit["holds"], limit["found"]) == (False, probed["memory"]["peak_reserved_bytes"])
    seconds = [[trial["seconds"] for trial in each["probe"]["trials"]] for each in checked]
    assert seconds[0] == seconds[1] != seconds[2]
    assert "made with rank 6 of 7, this check ran with rank 6 of 7, dp=7" in str(checked[2]["warnings"])
