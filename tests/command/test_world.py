"""Worlds of ranks that do not exist, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
from command_running import answer, ask, small_copy
from running import run_command, run_here

pytestmark = pytest.mark.null_gpu

LAUNCHER = (str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "4")
SCRIPT = ("uneven_ranks.py", "--batch-size", "{micro_batch}", "--grad-accum", "{accumulation_steps}")
WORLD, TARGET = 16, 960


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's directory."""
    return small_copy(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def found(directory: Path) -> dict[str, Any]:
    """What a probe finds of a world of sixteen whose launcher starts four, and whose last rank holds 64 MiB more."""
    question = ("--target-batch", str(TARGET), "--world-size", str(WORLD), "--capacity", "300MiB")
    return answer(directory, *question, "--", *LAUNCHER, *SCRIPT)


def test_the_least_of_the_ranks_is_the_answer(found: dict[str, Any]) -> None:
    """The first and the last rank are asked; the last has the smaller maximum, which is the answer, and is named."""
    first, last = found["ranks"]
    assert (first["rank"], last["rank"]) == (0, WORLD - 1)
    assert last["maximum"] < first["maximum"]
    assert found["micro_batch"]["maximum"] == last["maximum"]
    assert found["limited_by_rank"] == WORLD - 1
    assert found["micro_batch"]["recommended"] == min(first["recommended"], last["recommended"])


def test_the_ranks_are_compared_at_one_size(found: dict[str, Any]) -> None:
    """Peaks of all ranks are those at the answer, where the last has at least its 64 MiB more in each phase."""
    first, last = found["ranks"]
    assert last["peak_allocated_bytes"] - first["peak_allocated_bytes"] == 64 << 20
    peaks = [[phase["peak_allocated_bytes"] for phase in rank["phases"]] for rank in found["ranks"]]
    assert min(after - before for before, after in zip(*peaks, strict=True)) == 64 << 20


def test_the_world_shares_the_target(found: dict[str, Any]) -> None:
    """Micro-batch, accumulation steps and ranks make the target, and the printed command keeps its launcher."""
    plan = found["accumulation"]
    assert plan["steps"] * plan["micro_batches"][0] * WORLD == plan["effective_batch"] == TARGET
    words = found["command_plan"]["run"]
    assert words[:4] == [*LAUNCHER, "uneven_ranks.py"]
    assert words[-1] == str(plan["steps"])


def test_the_communicators_are_counted(found: dict[str, Any]) -> None:
    """Each communicator of the limiting rank is told with its ranks, and what was published of their memory."""
    assert found["nccl"]["communicators"] == [WORLD]
    assert found["nccl"]["published_range_bytes"] == [512 << 20, 6_000_000_000]
    assert len(found["nccl"]["sources"]) == 4


def test_every_format_shows_the_ranks(directory: Path, found: dict[str, Any]) -> None:
    """A saved answer shows its ranks side by side in text, Markdown and HTML."""
    versions = {"oomdoctor": "0.1.0"}
    document = {"schema_version": 1, "command": "probe", "status": "fits", "exit_code": 0, "versions": versions}
    (directory / "saved.json").write_text(json.dumps({**document, "result": found}))
    size, maxima = found["micro_batch"]["maximum"], [str(rank["maximum"]) for rank in found["ranks"]]
    for form in ("text", "markdown", "html"):
        told = run_here(["report", "saved.json", "--format", form], directory).stdout
        assert f"Ranks at micro-batch {size}, each run alone" in told
        assert f"{WORLD - 1}, limits" in told
        assert all(maximum in told for maximum in maxima)
        assert "1 communicator (of 16 ranks)" in told


def test_one_rank_is_asked_where_one_is_named(directory: Path) -> None:
    """`--rank` names the ranks; one that waits for an object of a rank that is not asked is refused with its line."""
    words = (*LAUNCHER, *SCRIPT[:3])
    ended = ask(directory, "--world-size", str(WORLD), "--rank", "5", "--fresh", "--", *words)
    assert ended.returncode == 2
    assert "rank 5 runs alone" in ended.stderr
    assert "waits for an object of another rank" in ended.stderr
    assert "uneven_ranks.py, line 22" in ended.stderr


def test_ranks_without_a_world_are_refused(directory: Path) -> None:
    """`--rank` says nothing where all processes of the command run."""
    ended = ask(directory, "--rank", "0", "--", *LAUNCHER, *SCRIPT[:3])
    assert ended.returncode == 2
    assert "`--rank` and `--mesh` are of ranks that run alone" in ended.stderr


def test_a_run_tells_what_each_rank_needs(directory: Path) -> None:
    """`oomdoctor run` runs the ranks that are asked for, one after the other, and tells the peak of each."""
    command = [*LAUNCHER, "uneven_ranks.py"]
    options = ["--world-size", str(WORLD), "--rank", "0,last", "--gpu", "rtx-4090", "--no-history"]
    ended = run_command(["run", *options, "--", *command], cwd=directory)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "trained 0 False\ntrained 15 True\n"
    first, last = (line for line in ended.stderr.splitlines() if line.startswith("oomdoctor: rank "))
    assert first.startswith("oomdoctor: rank 0 of 16: peak ")
    assert last.startswith("oomdoctor: rank 15 of 16: peak ")
    assert all(line.endswith("NCCL communicators, not counted: 16") for line in (first, last))


def test_a_rank_of_a_world_that_the_launcher_starts_runs_alone(directory: Path) -> None:
    """Whoever names a rank wants it alone, also where the launcher would start all of them; its peak is the highest.

    The script resets the peaks after its last step, as trainers that log them do.
    """
    script = (directory / "uneven_ranks.py").read_text()
    reset = script.replace("    dist.barrier()\n", "    torch.cuda.reset_peak_memory_stats()\n    dist.barrier()\n")
    (directory / "resetting.py").write_text(reset)
    peaks = []
    for name in ("uneven_ranks.py", "resetting.py"):
        options = ["--world-size", "4", "--rank", "0", "--gpu", "rtx-4090", "--no-history"]
        ended = run_command(["run", *options, "--", *LAUNCHER, name], cwd=directory)
        assert ended.stdout == "trained 0 False\n", ended.stderr
        peaks += [line for line in ended.stderr.splitlines() if line.startswith("oomdoctor: rank 0 of 4: peak ")]
    assert peaks[0] == peaks[1]


def test_a_killed_run_leaves_neither_its_rank_nor_its_folder(directory: Path) -> None:
    """A rank ends with the run that is killed, and what it left for other ranks is removed."""
    (directory / "waiting.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)\n")
    words = ["run", "--world-size", "16", "--rank", "0", "--gpu", "t4", "--", *LAUNCHER, "waiting.py"]
    command = [sys.executable, "-m", "oomdoctor", *words]
    with TemporaryDirectory(dir="/tmp") as folder:  # a short name, as the folder's needs
        environment = {**os.environ, "TMPDIR": folder}
        with subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            rank, made = psutil.Process(int(running.stdout.readline())), list(Path(folder).iterdir())
            running.kill()
        assert len(made) == 1
        rank.wait(30)
        until = time.monotonic() + 30
        while list(Path(folder).iterdir()) and time.monotonic() < until:
            time.sleep(0.05)
        assert not list(Path(folder).iterdir())


def test_a_run_of_ranks_needs_a_card(directory: Path) -> None:
    """Ranks run alone on the null GPU, so a card has to be named."""
    ended = run_here(["run", "--world-size", "16", "--", *LAUNCHER, "uneven_ranks.py"], directory)
    assert ended.returncode == 2
    assert "ranks run alone on the null GPU only" in ended.stderr


def test_a_mesh_divides_the_target(directory: Path) -> None:
    """Of four data-parallel and two tensor-parallel ranks, four share the target; the command is told all eight."""
    words = ("env", "WORLD={world_size}", *LAUNCHER, *SCRIPT)
    question = ("--target-batch", "4", "--mesh", "dp=4,tp=2", "--rank", "first", "--fresh")
    found = answer(directory, *question, "--", *words)
    assert found["accumulation"]["effective_batch"] == 4
    assert found["accumulation"]["micro_batches"] == [1]
    assert "WORLD=8" in found["command_plan"]["run"]
    assert "4 ranks of `dp=4,tp=2` share the target batch" in [reason["text"] for reason in found["reasons"]]


PIPELINE = """\
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

SIZE, WIDTH, OUTPUTS = int(sys.argv[1]), 32, 100_000
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
is_last = rank == world - 1
model = nn.Linear(WIDTH, OUTPUTS if is_last else WIDTH).cuda()
optimizer = torch.optim.AdamW(model.parameters())
given = torch.empty(SIZE, WIDTH, device="meta", requires_grad=rank > 0)
made = torch.empty(SIZE, OUTPUTS if is_last else WIDTH, device="meta", requires_grad=True)
stage = PipelineStage(model, rank, world, torch.device("cuda"), input_args=(given,), output_args=(made,))
schedule = Schedule1F1B(stage, n_microbatches=6, loss_fn=nn.functional.cross_entropy)
for _ in range(3):
    batch = torch.randn(6 * SIZE, WIDTH, device="cuda")
    labels = torch.randint(OUTPUTS, (6 * SIZE,), device="cuda")
    if rank == 0:
        schedule.step(batch)
    elif is_last:
        schedule.step(target=labels, losses=[])
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_last_stage_of_a_pipeline_limits(directory: Path) -> None:
    """Each stage is asked; the last keeps the logits, limits and is named, and so are the schedule's micro-batches."""
    (directory / "pipeline.py").write_text(PIPELINE)
    question = ("--mesh", "pp=2", "--capacity", "300MiB", "--target-batch", "64")
    found = answer(directory, *question, "--", *LAUNCHER, "pipeline.py", "{micro_batch}")
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert found["limited_by_rank"] == 1
    assert found["ranks"][1]["maximum"] < found["ranks"][0]["maximum"] == 64
    told = {reason["subject"]: reason["text"] for reason in found["reasons"]}
    assert told["pipeline"].startswith("its schedule had 6 micro-batches of its own in each step")
    assert told["limited_by_rank"].startswith("rank 1 has the smallest maximum")


PARTITIONED = """\
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


class Sum(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, given):
        return sum(layer(given).sum() for layer in self.layers)


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
layers = nn.ModuleList(nn.Linear(1024, 1024 * size, bias=False) for size in (5, 4, 3, 3, 3)).cuda()
model = DistributedDataParallel(Sum(layers), device_ids=[torch.cuda.current_device()])
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW)
for _ in range(3):
    model(torch.ones(int(sys.argv[1]), 1024, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_rank_in_the_middle_limits(directory: Path) -> None:
    """Of five parameters rank 1 of three gets 4 and 3 for its optimizer, more than 5, and 3 and 3: all are asked."""
    (directory / "partitioned.py").write_text(PARTITIONED)
    question = (
        "--world-size",
        "3",
        "--rank",
        "all-distinct",
        "--target-batch",
        "96",
        "--capacity",
        "400MiB",
        "--fresh",
    )
    found = answer(directory, *question, "--", *LAUNCHER[:2], "3", "partitioned.py", "{micro_batch}")
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1, 2]
    assert found["limited_by_rank"] == 1
    first, middle, last = (rank["peak_allocated_bytes"] for rank in found["ranks"])
    assert middle > last > first


def test_a_run_has_a_rank_of_each_size_of_shards(directory: Path) -> None:
    """`all-distinct` stands in `oomdoctor run` for what it stands for in a probe: the rank in the middle runs, too."""
    (directory / "partitioned.py").write_text(PARTITIONED)
    options = ["--world-size", "3", "--rank", "all-distinct", "--gpu", "rtx-4090", "--no-history"]
    command = [*LAUNCHER[:2], "3", "partitioned.py", "1"]
    ended = run_command(["run", *options, "--", *command], cwd=directory)
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if line.startswith("oomdoctor: rank ")]
    assert [line.split()[2] for line in lines] == ["0", "1", "2"]
    first, middle, last = (float(line.partition("peak ")[2].split()[0]) for line in lines)
    assert middle > last > first


def test_a_rank_that_takes_one_step_is_refused(directory: Path) -> None:
    """A rank's command that ends after its first optimizer step has not shown the peak of training."""
    script = (directory / "uneven_ranks.py").read_text()
    (directory / "one_step.py").write_text(script.replace("range(4)", "range(1)"))
    words = (*LAUNCHER, "one_step.py", "--batch-size", "{micro_batch}")
    ended = ask(directory, "--world-size", str(WORLD), "--rank", "0", "--fresh", "--", *words)
    assert ended.returncode == 2
    assert "ended after one optimizer step, and only the second has the peak" in ended.stderr


def test_a_mesh_that_is_not_the_world_is_refused(directory: Path) -> None:
    """A mesh says the world size itself, and has to divide the target."""
    ended = ask(directory, "--world-size", "16", "--mesh", "dp=4,tp=2", "--", *LAUNCHER, *SCRIPT)
    assert ended.returncode == 2
    assert "has 8 ranks, and `--world-size` says 16" in ended.stderr
    ended = ask(directory, "--target-batch", "6", "--mesh", "dp=4,tp=2", "--", *LAUNCHER, *SCRIPT)
    assert ended.returncode == 2
    assert "does not divide by world size 4" in ended.stderr
