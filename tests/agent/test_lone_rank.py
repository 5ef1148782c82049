"""A lone rank is what the same rank of a whole world is."""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from run_python import run_program
from sharing import directory_of, shared

from oomdoctor.engines.catalogue import generic_card
from oomdoctor.engines.null_gpu.library import environment
from oomdoctor.run.environment import AGENT_DIRECTORY, torch_of

pytestmark = [pytest.mark.null_gpu, pytest.mark.timeout(300)]
PROGRAM = Path(__file__).with_name("world_of_ranks.py")
PYTHONS = [sys.executable, *(path for path in os.environ.get("OOMDOCTOR_TEST_PYTHONS", "").split(":") if path)]
each_python = pytest.mark.parametrize("python", PYTHONS, ids=[Path(path).parents[1].name for path in PYTHONS])
WORLD = 4
Ranks = dict[tuple[int, bool], dict[str, Any]]
WAYS = ("ddp", "zero", "fsdp1", "fsdp2", "hsdp", "tensor_parallel")


def _environment(python: str, **variables: str) -> dict[str, str]:
    base = {**os.environ, "OOMDOCTOR_TEST_AGENT": str(AGENT_DIRECTORY / "sitecustomize.py"), **variables}
    return environment(generic_card(8 << 30), torch_of(python, os.environ), base)


def _trained(python: str) -> str:
    with TemporaryDirectory() as folder:
        done = run_program(python, [str(PROGRAM), folder, str(WORLD), "0,3"], _environment(python), timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture
def ranks(python: str, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What each rank tells of its memory in each way, by its number and by whether it ran alone."""
    file = directory_of(tmp_path_factory) / f"ranks-{Path(python).parents[1].name}.jsonl"
    told = [json.loads(line) for line in shared(file, lambda: _trained(python)).splitlines() if line.startswith("{")]
    found: Ranks = {}
    for rank in told:
        found.setdefault((rank["rank"], rank["is_lone"]), {})[rank["way"]] = rank["phases"]
    return found


@each_python
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rank", [0, WORLD - 1])
def test_a_lone_rank_equals_the_same_rank_of_a_world(ranks: Ranks, rank: int, way: str) -> None:
    """Allocated and reserved bytes, at the peak and at the end of each phase, are as among the others."""
    assert ranks[rank, True][way] == ranks[rank, False][way]
    assert len(ranks[rank, True][way]) == 10, "load, and three phases of three steps"


@each_python
@pytest.mark.parametrize("way", ["zero", "fsdp1", "fsdp2"])
def test_ranks_of_uneven_shards_differ(ranks: Ranks, way: str) -> None:
    """The comparison can fail: the last rank has less than the first where a size is not divided by the world."""
    assert ranks[0, False][way] != ranks[WORLD - 1, False][way]


@cache
def _requests(python: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What becomes of a lone rank's requests: those of the first rank of eight, and those of rank 6 after it."""
    found = []
    with TemporaryDirectory() as folder:
        for rank in (0, 6):
            of_launcher = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}
            own = {"OOMDOCTOR_LONE_OBJECTS": folder, "OOMDOCTOR_RUN_DIRECTORY": folder}
            variables = _environment(python, **of_launcher, **own)
            variables["PYTHONPATH"] = str(AGENT_DIRECTORY)
            done = run_program(python, [str(PROGRAM.with_name("lone_requests.py"))], variables, timeout=100)
            assert done.returncode == 0, done.stderr[-4000:]
            found.append(json.loads(done.stdout))
    return found[0], found[1]


@each_python
def test_a_lone_rank_gathers_its_own_objects(python: str) -> None:
    """Gathers repeat this rank's object, and what it broadcasts itself stays."""
    first, sixth = _requests(python)
    assert (first["gathered"], sixth["gathered"]) == ([{"rank": 0}] * 8, [{"rank": 6}] * 8)
    assert first["gathered_at_own"] == sixth["gathered_at_own"] == ["own"] * 8
    assert (first["broadcast"], sixth["broadcast"]) == (["of 0"], ["of 6"])


@each_python
def test_what_the_first_rank_gave_reaches_a_later_one(python: str) -> None:
    """A rank that runs after the first gets the objects that the first has broadcast and scattered."""
    first, sixth = _requests(python)
    assert (first["broadcast_by_first"], sixth["broadcast_by_first"]) == (["of 0"], ["of 0"])
    assert (first["scattered"], sixth["scattered"]) == ([0], [6])


@each_python
@pytest.mark.parametrize("request_name", ["broadcast_by_fifth", "received", "store_key"])
def test_what_nobody_gave_is_refused_with_its_place(python: str, request_name: str) -> None:
    """A wait for an absent rank is refused, with the line of the program that waits."""
    for answer in _requests(python):
        assert answer[request_name].startswith("LoneRankError: rank ")
        assert "lone_requests.py, line " in answer[request_name]


@each_python
def test_groups_of_a_lone_rank_have_their_sizes(python: str) -> None:
    """Groups of a mesh are split as they would be."""
    first, sixth = _requests(python)
    assert (first["splits"], sixth["splits"]) == ([0, 0, 4], [1, 2, 4])


def test_a_group_on_the_cpu_leaves_values() -> None:
    """A group on the CPU beside NCCL's keeps this rank's values; PyTorch 2.6 has none that can."""
    assert [answer["cpu_values"] for answer in _requests(sys.executable)] == [[5], [5]]


@each_python
def test_what_a_rank_cannot_do_alone_is_refused_by_name(python: str) -> None:
    """Ranks that meet through the CPU alone, that spawn each other or that call each other are refused."""
    for answer in _requests(python):
        assert "`gloo`, whose ranks talk through the CPU" in answer["gloo_world"]
        assert "`torch.multiprocessing.spawn`" in answer["spawned"]
        assert "`torch.distributed.rpc`" in answer["called"]


@each_python
def test_ranks_agree_on_votes_and_lengths(python: str) -> None:
    """A vote is this rank's, a sum is its value from each, and a number that the first rank gave is known."""
    for answer in _requests(python):
        assert answer["votes"] == [1, [[24, 32]]]
        assert answer["lengths"] == 7


@each_python
def test_a_pipeline_that_asks_for_shapes_is_told_what_to_give(python: str) -> None:
    """Stages that ask each other for the shapes of what they send are refused with the arguments that say them."""
    for answer in _requests(python):
        if answer["stages"] is None:
            continue  # torch before 2.7
        assert "lone_requests.py, line " in answer["stages"]
        assert "give `PipelineStage` its `input_args` and `output_args`" in answer["stages"]
