"""Launchers taken apart: what they would start for one rank."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from oomdoctor.errors import UsageError
from oomdoctor.run.launcher import Launch, launch_alone, parse_mesh, parse_ranks, read_launch

BIN = Path(sys.executable).parent


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has launchers of a Python of its own."""
    for name in ("torchrun", "deepspeed", "python"):
        (tmp_path / name).write_text(f"#!{tmp_path / 'python'}\n")
        (tmp_path / name).chmod(0o755)
    return {"PATH": str(tmp_path)}


def _read(line: str, environment: dict[str, str]) -> Launch:
    launch = read_launch(line.split(), environment)
    assert launch is not None
    return launch


@pytest.mark.parametrize(
    ("line", "words", "processes", "local"),
    [
        ("torchrun --nproc-per-node 8 train.py --lr 1", "python -u train.py --lr 1", 8, 8),
        ("torchrun --nproc_per_node=4 --nnodes 1:2 -m pkg.train a", "python -u -m pkg.train a", 8, 4),
        ("torchrun --standalone --nproc-per-node gpu train.py", "python -u train.py", 1, None),
        ("torchrun --no-python --nproc 2 ./train.sh --x", "./train.sh --x", 2, 2),
        ("torchrun --rdzv-endpoint host:1 -- train.py", "python -u train.py", 1, None),
        ("env LR=1 torchrun train.py", "env LR=1 python -u train.py", 1, None),
        ("python -X dev -m torch.distributed.run --nnodes=2 train.py", "python -X dev -u train.py", 2, None),
        ("python -m torch.distributed.launch --use-env train.py", "python -u train.py", 1, None),
        ("deepspeed --no_local_rank --num_gpus 4 --num_nodes 2 train.py", "python -u train.py", 8, 4),
    ],
)
def test_the_words_of_a_rank(
    line: str, words: str, processes: int, local: int | None, environment: dict[str, str]
) -> None:
    """The launcher and its options are gone, what comes before and after them stays."""
    launch = _read(line, environment)
    python = f"{environment['PATH']}/python"
    assert " ".join(launch.command(0)).replace(python, "python") == words
    assert (launch.processes, launch.local_world_size) == (processes, local)


def test_launchers_that_tell_the_local_rank(environment: dict[str, str]) -> None:
    """`deepspeed` and the old launcher of PyTorch give the script its local rank as its first option."""
    deepspeed = _read("deepspeed train.py --deepspeed_config ds.json", environment)
    assert deepspeed.command(3)[-4:] == ("train.py", "--local_rank=3", "--deepspeed_config", "ds.json")
    old = _read("python -m torch.distributed.launch --nproc-per-node 2 train.py --lr 1", environment)
    assert old.command(1)[-4:] == ("train.py", "--local-rank=1", "--lr", "1")


@pytest.mark.parametrize("line", ["python train.py --launcher torchrun", "python -m pkg.train", "bash run.sh"])
def test_what_is_no_launcher(line: str, environment: dict[str, str]) -> None:
    """A command that starts no ranks by a launcher that is known is left as it is."""
    assert read_launch(line.split(), environment) is None


def test_the_variables_of_a_rank(environment: dict[str, str]) -> None:
    """A rank has its number in the world and on its machine; a machine has eight where nothing else is said."""
    variables = _read("torchrun train.py", environment).variables(19, 64)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    assert [variables[name] for name in names] == ["19", "3", "64", "8", "2", "8"]
    small = _read("torchrun train.py", environment).variables(6, 7)
    assert (small["LOCAL_WORLD_SIZE"], small["LOCAL_RANK"], small["GROUP_RANK"]) == ("7", "6", "0")


def test_a_world_that_machines_do_not_divide(environment: dict[str, str]) -> None:
    """A world that is no multiple of a machine's ranks is refused."""
    with pytest.raises(UsageError, match="world size 12 is not a multiple of the 8 ranks of each machine"):
        _read("torchrun --nproc-per-node 8 train.py", environment).variables(0, 12)


def test_the_names_of_ranks() -> None:
    """Ranks are named by number and by `first`, `last` and `all-distinct`; each is asked once, in order."""
    assert parse_ranks(None, 64) == parse_ranks("all-distinct", 64) == parse_ranks("last,first", 64) == (0, 63)
    assert parse_ranks("last, 8,0,8", 64) == (0, 8, 63)
    assert parse_ranks("all-distinct", 1) == (0,)
    with pytest.raises(UsageError, match="a world of 64 has no rank 64"):
        parse_ranks("64", 64)
    with pytest.raises(UsageError, match="names no ranks"):
        parse_ranks("some", 64)


def test_ranks_run_alone_where_the_launcher_starts_too_few_or_one_is_named(environment: dict[str, str]) -> None:
    """A launcher that starts the whole world is run as it is, unless somebody asks about a rank of it."""
    command = ["torchrun", "--nproc-per-node", "8", "train.py"]
    assert launch_alone(command, 8, None, environment) is None
    assert launch_alone(command, None, None, environment) is None
    assert launch_alone(command, 16, "0", environment) is not None
    assert launch_alone(command, 8, "0", environment) is not None
    with pytest.raises(UsageError, match="`--rank` and `--mesh` are of ranks that run alone"):
        launch_alone(command[3:], 8, "0", environment)


def _accelerate(line: str) -> Launch:
    return _read(f"accelerate launch {line}", {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"})


def test_accelerate_is_asked_itself(tmp_path: Path) -> None:
    """What `accelerate launch` makes of its options reaches the rank, and nothing of it starts the script."""
    script = tmp_path / "train.py"
    script.write_text("from pathlib import Path\nPath(__file__).with_name('started').touch()\n")
    fsdp = _accelerate(f"--mixed_precision bf16 --use_fsdp --fsdp_version 2 --num_processes 8 {script} --lr 1")
    assert fsdp.command(0)[-4:] == ("-u", str(script), "--lr", "1")
    assert (fsdp.processes, fsdp.local_world_size) == (8, 8)
    variables = fsdp.variables(9, 16)
    assert (variables["ACCELERATE_MIXED_PRECISION"], variables["ACCELERATE_USE_FSDP"]) == ("bf16", "true")
    assert (variables["RANK"], variables["LOCAL_RANK"]) == ("9", "1")
    plain = _accelerate(f"--num_processes 4 {script}")
    assert (plain.processes, plain.local_world_size) == (4, 4)
    undecided = _accelerate(f"--mixed_precision fp16 {script}")
    assert (undecided.processes, undecided.local_world_size) == (1, None)
    assert not script.with_name("started").exists()


def test_accelerate_that_would_start_one_process_is_refused(tmp_path: Path) -> None:
    """A configuration of a single process is refused, and the script is not started."""
    (tmp_path / "one.yaml").write_text("distributed_type: 'NO'\nnum_processes: 1\nuse_cpu: false\n")
    with pytest.raises(UsageError, match="it would start a single process"):
        _accelerate(f"--config_file {tmp_path / 'one.yaml'} train.py")


def test_a_mesh_says_who_shares_the_target_and_which_ranks_are_distinct() -> None:
    """Tensor, context and pipeline parallel ranks share samples; each pipeline stage has a rank of its own."""
    mesh = parse_mesh("pp=4, dp_replicate=2, dp_shard=8,tp=2")
    assert (mesh.world_size, mesh.data_parallel, mesh.pipeline_ranks) == (128, 16, {0, 32, 64, 96})
    assert parse_ranks(None, 128, distinct=mesh.pipeline_ranks) == (0, 32, 64, 96, 127)
    inner = parse_mesh("dp=8,pp=2")
    assert (inner.data_parallel, inner.pipeline_ranks) == (8, {0, 1})
    assert parse_mesh("dp=64,tp=8").pipeline_ranks == set()


@pytest.mark.parametrize("text", ["dp", "dp=0", "dp=x", "dp=2,dp=2", "width=2", ""])
def test_what_is_no_mesh_is_refused(text: str) -> None:
    """A dimension without a size, twice, or of a name that says nothing is refused."""
    with pytest.raises(UsageError, match="is no mesh"):
        parse_mesh(text)
