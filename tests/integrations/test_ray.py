"""Ray's trials are sized before they start; what cannot fit, and what runs out of memory, is completed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import tune
from ray.exceptions import ActorDiedError
from ray.train import ScalingConfig
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch
from run_python import run_program
from running import run_command, run_here
from sweep_targets import TARGET, WIDTHS
from targets_for_tests import write_target

from oomdoctor import probe
from oomdoctor.errors import NoAnswerError, OomdoctorError, UsageError
from oomdoctor.integrations import sizing
from oomdoctor.integrations.ray import size_for, sized
from oomdoctor.integrations.ray_sizing import ClusterSizer, _Ledger

pytestmark = [
    pytest.mark.null_gpu,
    pytest.mark.filterwarnings("default"),  # Ray's own
]

OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.74 GiB of which 1.10 GiB is free."
)

LENGTHS = WIDTHS.replace("make_batch(batch_size)", "make_batch(batch_size, length=64)").replace("16384", "256 * length")

CHECKED = """
gpu = "t4"
capacity = "1GiB"
target-batch = 48

[[check]]
name = "small"
target = "model.py:build_model(width=64)"

[[check]]
name = "large"
target = "model.py:build_model(width=8192)"

[[check]]
name = "gone"
target = "modle.py"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Ray of two cores, and the directory of its job, which has the model."""
    folder = tmp_path_factory.mktemp("job")
    write_target(folder, WIDTHS)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a test's module, which workers cannot import
    with pytest.MonkeyPatch.context() as patch, _process_as_it_was():
        patch.chdir(folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init("local", num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
        yield folder
        ray.shutdown()


@contextmanager
def _process_as_it_was() -> Iterator[None]:
    """Undo what Ray leaves to the tests that follow: a debugger's variable, folders of modules, Tune's handlers."""
    environment, path = dict(os.environ), list(sys.path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        sys.path[:] = path
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _fit(trainable: Any, folder: Path, space: dict[str, Any], **options: Any) -> tune.ResultGrid:
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(reuse_actors=True, **options),
        run_config=tune.RunConfig(storage_path=str(folder / "results"), verbose=0),
    ).fit()


def _train(config: dict[str, Any], plan: Any) -> dict[str, float]:
    if config.get("case") == "bug":
        raise ValueError("a bug")
    tune.report({"loss": 1 / config["width"]})
    if config.get("case") == "oom":
        raise RuntimeError(config["error"])
    return {"loss": plan.steps / config["width"]}


@pytest.mark.slow
def test_each_trial_is_sized_and_none_is_lost(cluster: Path) -> None:
    """A trial that fits has the plan in each report; another completes with the value named; a bug stays an error."""
    trainable = sized(_train, target=TARGET, target_batch=48, gpu="{card}", infeasible={"loss": 9.0}, capacity="1GiB")
    space = {
        "case": tune.grid_search(["fits", "none", "oom", "bug"]),
        "width": tune.sample_from(lambda config: 8192 if config["case"] == "none" else 512),
        "card": "t4",
        "error": OOM,
    }
    found = {str(result.config["case"]): result for result in _fit(trainable, cluster, space) if result.config}
    assert {name for name, result in found.items() if result.error} == {"bug"}
    assert "ValueError: a bug" in str(found["bug"].error)
    fits, none, oom = (found[name].metrics or {} for name in ("fits", "none", "oom"))
    plan = probe("model.py:build_model(width=512)", target_batch=48, gpu="t4", capacity="1GiB").plan
    assert fits["oomdoctor/micro_batch"] == max(plan.micro_batches)
    assert (fits["oomdoctor/steps"], fits["oomdoctor/effective_batch"]) == (plan.steps, 48)
    assert (fits["oomdoctor/fits"], fits["loss"]) == (True, plan.steps / 512)
    assert (none["oomdoctor/fits"], none["oomdoctor/effective_batch"], none["loss"]) == (False, 0, 9.0)
    assert none["oomdoctor/why"].startswith("no micro-batch of `model.py:build_model(width=8192)` fits Tesla T4: CUDA")
    assert (oom["oomdoctor/fits"], oom["loss"], oom["training_iteration"]) == (False, 9.0, 2)
    assert oom["oomdoctor/why"].startswith("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB")
    assert oom["oomdoctor/cause"]


@pytest.mark.slow
def test_a_bayesian_searcher_learns_from_what_does_not_fit(cluster: Path) -> None:
    """Optuna's searcher under ASHA gets a finite loss of each trial."""
    trainable = sized(_train, target=TARGET, target_batch=48, gpu="t4", infeasible={"loss": 9.0}, capacity="1GiB")
    seen = _fit(
        trainable,
        cluster,
        {"width": tune.choice([128, 8192])},
        metric="loss",
        mode="min",
        num_samples=3,
        search_alg=OptunaSearch(seed=1),
        scheduler=ASHAScheduler(max_t=4),
    )
    assert not seen.errors
    assert {(result.metrics or {})["oomdoctor/fits"] for result in seen} == {True, False}
    assert (seen.get_best_result().config or {})["width"] == 128


def test_a_question_is_probed_once_in_the_cluster(cluster: Path) -> None:
    """Processes that ask the same at once share a probe; an error is told to each, and is asked anew."""
    sizer = ClusterSizer()
    question = sizing.build_question(TARGET, {"width": 64}, 8, "t4", {})

    def ask(asked: Any) -> Any:
        return sizer.ask(asked).result.accumulation

    plans = ray.get([ray.remote(num_cpus=0.5)(ask).remote(question) for _ in range(3)])
    assert plans == [probe("model.py:build_model(width=64)", target_batch=8, gpu="t4").plan] * 3
    assert sizer.probes() == 1
    for count in (2, 3):
        with pytest.raises(OomdoctorError, match="no such file"):
            sizer.ask(replace(question, target="modle.py"))
        assert sizer.probes() == count


def test_a_frontier_is_the_same_in_a_cluster(cluster: Path) -> None:
    """Cells that are probed as Ray's tasks make the same document, to the byte, as those of this machine."""
    write_target(cluster, LENGTHS, "lengths.py")
    words = ["probe", "lengths.py", "--over", "length=64,128", "--target-batch", "48", "--capacity", "1GiB", "--json"]
    here, there = (run_here([*words, "--gpu", "t4", *more], cluster) for more in ([], ["--executor", "ray"]))
    assert there.stdout == here.stdout
    assert there.returncode == 0, there.stderr
    cells = json.loads(there.stdout)["result"]["cells"]
    assert len({cell["maximum"] for cell in cells}) == len(cells) == 2
    alone = run_here(["probe", "lengths.py", "--executor", "ray"], cluster)
    assert (alone.returncode, "name sizes with `--over`" in alone.stderr) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        ("gpus", "--fit", "lengths.py", "--over", "length=64,128", "--gpu", "t4", "--gpu", "rtx-4090"),
        ("gpus", "--fit", "lengths.py", "--engine", "null", "--target-batch", "8", "--gpu", "t4"),
        ("prescribe", "lengths.py", "--target-batch", "8", "--gpu", "t4", "--budget", "3"),
    ],
)
def test_many_probes_are_the_same_in_a_cluster(cluster: Path, words: Sequence[str]) -> None:
    """Cards and remedies that are asked about as Ray's tasks make the same document, to the byte."""
    write_target(cluster, LENGTHS, "lengths.py")
    here, there = (run_here([*words, "--json", *more], cluster) for more in ([], ["--executor", "ray"]))
    assert there.stdout == here.stdout
    assert (there.returncode, here.returncode) == (0, 0), there.stderr


def test_a_cluster_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    """An address where no Ray is, and a directory that is too large to travel, say what to do."""
    write_target(tmp_path, LENGTHS, "lengths.py")
    words = ["probe", "lengths.py", "--over", "length=64,128", "--gpu", "t4", "--executor", "ray"]
    absent = run_command(words, cwd=tmp_path, RAY_ADDRESS="127.0.0.1:1")
    assert (absent.returncode, "no Ray answers at `RAY_ADDRESS`, 127.0.0.1:1" in absent.stderr) == (2, True)
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(600 * 2**20)
    large = run_command(words, cwd=tmp_path)
    assert large.returncode == 2, large.stderr
    assert "Package size (600.00MiB) exceeds" in large.stderr
    assert "hint: name data and results in a file `.rayignore`" in large.stderr


def test_entries_are_checked_in_a_cluster(cluster: Path) -> None:
    """A check whose entries run as Ray's tasks makes the same document, to the byte but for the times."""
    (cluster / "oomdoctor.toml").write_text(CHECKED)
    ran = [run_here(["check", "--no-cache", "--json", *more], cluster) for more in ([], ["--executor", "ray"])]
    here, there = (re.sub(r'("seconds": *)[-.e\d]+', r"\1 0", each.stdout) for each in ran)
    assert there == here
    assert [entry["name"] for entry in json.loads(there)["result"]["entries"]] == ["small", "large", "gone"]
    assert [each.returncode for each in ran] == [2, 2]


def test_what_ends_its_sizer_is_asked_again() -> None:
    """Where a node dies, its question goes to another; one that ends each of them is not asked for ever."""
    question = sizing.build_question("model.py", {}, 8, "t4", {})
    answer = NoAnswerError("an answer")

    def asked(deaths: int) -> Any:
        ledger = _Ledger()

        async def remote(_: object) -> OomdoctorError:
            if ledger._probes <= deaths:
                raise ActorDiedError
            return answer

        sizer = SimpleNamespace(ask=SimpleNamespace(remote=remote))
        ledger._sizer = lambda _: sizer  # type: ignore[method-assign]
        return asyncio.run(ledger.ask(question, "a node"))

    assert asked(deaths=1) is answer
    assert "died 3 times" in asked(deaths=99).message


def test_what_fails_is_asked_anew() -> None:
    """A trial that Ray begins again after an error, of whatever kind, does not get the same error from memory."""
    question = sizing.build_question("model.py", {}, 8, "t4", {})

    async def asked() -> list[str]:
        ledger = _Ledger()

        async def remote(_: object) -> OomdoctorError:
            if ledger._probes == 1:
                raise RuntimeError("a bug")
            return NoAnswerError(f"answer {ledger._probes}")

        ledger._sizer = lambda _: SimpleNamespace(ask=SimpleNamespace(remote=remote))  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="a bug"):
            await ledger.ask(question, "a node")
        return [str(await ledger.ask(question, "a node")) for _ in range(2)]

    assert asyncio.run(asked()) == ["answer 2", "answer 3"]


@pytest.mark.usefixtures("forked_workers")
def test_workers_of_a_trainer_share_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer's plan is that of its number of workers and its accelerator; what does not fit is an error."""
    write_target(tmp_path, WIDTHS)
    monkeypatch.chdir(tmp_path)
    scaling = ScalingConfig(num_workers=4, use_gpu=True, accelerator_type="T4")
    plan = size_for(scaling, TARGET, {"width": 512}, target_batch=512)
    assert plan == probe("model.py:build_model(width=512)", target_batch=512, world_size=4, gpu="t4").plan
    assert (plan.world_size, sum(plan.micro_batches)) == (4, 128)
    with pytest.raises(UsageError, match=r"no micro-batch of .* fits Tesla T4"):
        size_for(scaling, TARGET, {"width": 8192}, target_batch=512, capacity="256MiB")


@pytest.mark.parametrize("figures", [{"loss": float("inf")}, {"loss": float("nan")}, {}, {"loss": "9"}])
def test_an_infeasible_value_is_finite(figures: dict[str, Any]) -> None:
    """An infinite value, which breaks Bayesian searchers, is refused before anything starts."""
    with pytest.raises(UsageError, match="infeasible"):
        sized(_train, target=TARGET, target_batch=8, infeasible=figures)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"target_batch": 0}, "target batch 0 is not a number"), ({"gpus": "t4"}, "`gpus` is no option of a size")],
)
def test_what_no_trial_can_be_asked_is_refused(wrong: dict[str, Any], told: str) -> None:
    """It is named before anything starts, and not in each trial."""
    with pytest.raises(UsageError, match=told):
        sized(_train, **{"target": TARGET, "target_batch": 8, "infeasible": {"loss": 9.0}, **wrong})


STOPS = """
import os, pathlib, time

if "STOPS_AT" in os.environ:
    pathlib.Path(os.environ["STOPS_AT"]).touch()
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_node_that_dies_loses_no_cell(tmp_path: Path) -> None:
    """Its cells are probed on another node, and the document is, to the byte, that of this machine."""
    write_target(tmp_path, LENGTHS + STOPS, "lengths.py")
    marker = tmp_path / "stopped"
    program = [str(Path(__file__).with_name("ray_node_dies.py")), str(marker)]
    ran = run_program(sys.executable, program, os.environ, timeout=180, cwd=tmp_path)
    there, here = json.loads(ran.stdout.splitlines()[-1])

    assert marker.exists()
    assert there == here
    assert [cell["maximum"] > 0 for cell in there["result"]["cells"]] == [True, True]
