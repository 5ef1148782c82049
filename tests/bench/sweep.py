"""Measure a sweep of 24 configurations on two kinds of cards: sizes alone, on one node of Ray's, and on two.

`python tests/bench/sweep.py` writes `results/sweep.json`, and fails where sizing takes 90 s or starts as many workers,
their server included, as there are configurations, where a trial ends in error, or where one that fits has another
effective batch. Of the two nodes, one is killed in the middle.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from measuring import RESULTS, machine, save
from ray import tune
from ray.cluster_utils import Cluster

from oomdoctor.integrations import sizing
from oomdoctor.integrations.ray import sized
from oomdoctor.multi_card import workers

sys.path.insert(0, str(Path(__file__).parents[1] / "integrations"))

from sweep_targets import WIDTHS

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET = "model.py:build_model(width={width}, depth={depth})"
WIDTH_CHOICES = (128, 256, 384, 512, 768, 8192)
DEPTH_CHOICES = (2, 4, 6, 8)
CARDS = ("t4", "a10g")
TARGET_BATCH = 512
BELOW_SECONDS = 90
OPTIONS: dict[str, Any] = {"capacity": "2GiB"}
SMALL = {"object_store_memory": 100 * 2**20, "include_dashboard": False}


def size_all() -> dict[str, Any]:
    """Size the 24 configurations for one card, two at once, as a sweep of Optuna's in two threads does."""
    configurations = [{"width": width, "depth": depth} for width in WIDTH_CHOICES for depth in DEPTH_CHOICES]
    with _starts() as started, ThreadPoolExecutor(2) as pool:
        began = time.perf_counter()

        def size(configuration: dict[str, int]) -> sizing.Sizing:
            return sizing.size(TARGET, configuration, target_batch=TARGET_BATCH, gpu=CARDS[0], **OPTIONS)

        found = list(pool.map(size, configurations))
        seconds = time.perf_counter() - began
        sizing._own_sizer().close()  # whose workers are counted once they have ended
        sizing._sizer.cache_clear()
    return {
        "configurations": len(found),
        "fit": sum(one.plan is not None for one in found),
        "load": os.getloadavg()[0],
        "seconds": round(seconds, 1),
        "processor_seconds": round(sum(os.times()[2:4]), 1),
        "worker_starts": len(started),
        "effective_batches": sorted({one.plan.effective_batch for one in found if one.plan}),
    }


@contextmanager
def _starts() -> Iterator[list[object]]:
    """Collect the processes that are started for workers: fresh Pythons, and what is forked from one."""
    started: list[object] = []
    server, fresh = workers._Server, workers.start_interpreter

    class Counted(server):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any) -> None:
            started.append(arguments)
            super().__init__(*arguments)

        def fork(self, *arguments: Any) -> Any:
            started.append(arguments)
            return super().fork(*arguments)

    def counted(*arguments: Any) -> Any:
        started.append(arguments)
        return fresh(*arguments)

    workers._Server, workers.start_interpreter = Counted, counted  # type: ignore[misc]
    yield started
    workers._Server, workers.start_interpreter = server, fresh  # type: ignore[misc]


def train(config: dict[str, Any], plan: Any) -> None:
    """Pass for a training."""
    tune.report({"loss": config["width"] / plan.effective_batch})


def sweep(folder: Path) -> dict[str, Any]:
    """Run the sweep on the Ray that is there."""
    space = {
        "width": tune.grid_search(list(WIDTH_CHOICES)),
        "depth": tune.grid_search(list(DEPTH_CHOICES)),
        "card": tune.grid_search(list(CARDS)),
    }
    trainable = sized(
        train, target=TARGET, target_batch=TARGET_BATCH, gpu="{card}", infeasible={"loss": 1e6}, **OPTIONS
    )
    began = time.perf_counter()
    results = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(metric="loss", mode="min", reuse_actors=True),
        run_config=tune.RunConfig(
            storage_path=str(folder / "results"), verbose=0, failure_config=tune.FailureConfig(max_failures=3)
        ),
    ).fit()
    metrics = [result.metrics or {} for result in results]
    return {
        "trials": len(metrics),
        "load": os.getloadavg()[0],
        "seconds": round(time.perf_counter() - began, 1),
        "errors": [str(error)[-300:] for error in results.errors],
        "fit": sum(bool(one.get("oomdoctor/fits")) for one in metrics),
        "effective_batches": sorted({one["oomdoctor/effective_batch"] for one in metrics if one.get("oomdoctor/fits")}),
    }


def one_node(folder: Path) -> dict[str, Any]:
    """Run the sweep on one node with two cores."""
    ray.init("local", num_cpus=2, log_to_driver=False, **SMALL)
    try:
        return sweep(folder)
    finally:
        ray.shutdown()


def two_nodes(folder: Path, kill_after: float) -> dict[str, Any]:
    """Run the sweep on two nodes with a core each; one is killed after some seconds."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **SMALL})
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        node = cluster.add_node(num_cpus=1, object_store_memory=SMALL["object_store_memory"])

        killed: list[float] = []

        def kill() -> None:
            killed.append(kill_after)
            cluster.remove_node(node, allow_graceful=False)

        timer = threading.Timer(kill_after, kill)
        timer.start()
        found = sweep(folder)
        timer.cancel()
        return {**found, "killed_after": killed}
    finally:
        ray.shutdown()
        cluster.shutdown()


def is_whole(found: dict[str, Any]) -> bool:
    """Return whether every trial ended, and each that fits reached the target."""
    return not found["errors"] and found["effective_batches"] == [TARGET_BATCH] and found["fit"] > 0


def main(kill_after: float = 20) -> int:
    """Run the bench; 1 where it falls short."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.py").write_text(WIDTHS, encoding="utf-8")
        os.chdir(folder)
        sizes = size_all()
        print(sizes)
        local = one_node(folder)
        print(local)
        killed = two_nodes(folder, kill_after)
        print(killed)
    about = {"machine": machine(), "below_seconds": BELOW_SECONDS}
    save(RESULTS / "sweep.json", {**about, "sizes": sizes, "one_node": local, "two_nodes": killed})
    is_quick = sizes["seconds"] < BELOW_SECONDS and sizes["worker_starts"] < sizes["configurations"]
    return int(not (is_quick and is_whole(local) and is_whole(killed) and killed["killed_after"]))


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
