"""Probe a frontier on two nodes of Ray's, one of which dies in the middle: `ray_node_dies.py MARKER`.

The target stops on the second node once it has made the file that is named; then that node is killed. Prints the
documents of the cluster and of this machine as a JSON list.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path
from threading import Thread

import ray
from ray.cluster_utils import Cluster

from oomdoctor.codec import encode
from oomdoctor.integrations.ray_executor import RayExecutor
from oomdoctor.multi_card.frontier import FrontierRequest, find_frontier
from oomdoctor.progress import SilentProgress
from oomdoctor.request import build_request

LONGEST_SECONDS = 60
SMALL = {"num_cpus": 1, "object_store_memory": 100 * 2**20}


def main(marker: Path) -> None:
    """Print both."""
    build = partial(build_request, "lengths.py", target_batch=48, gpu="t4", capacity="1GiB")
    asked = FrontierRequest(build, {}, {"length": (64, 128)}, jobs=2)
    cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
    second = cluster.add_node(**SMALL, env_vars={"STOPS_AT": str(marker)})
    ray.init(address=cluster.address, log_to_driver=False, runtime_env={"working_dir": "."})

    def kill() -> None:
        end = time.monotonic() + LONGEST_SECONDS
        while not marker.exists() and time.monotonic() < end:
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)

    killer = Thread(target=kill)
    killer.start()
    with RayExecutor(Path.cwd()) as executor:
        there = find_frontier(FrontierRequest(build, {}, asked.over, jobs=2, executor=executor), SilentProgress())
    killer.join()
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps([encode(there), encode(find_frontier(asked, SilentProgress()))]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
