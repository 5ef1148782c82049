"""What a rank of a large world costs: processor seconds and host memory against the world's size and the layers.

A decoder of Llama's shape (`ranks_llama.py`), sharded by FSDP2, is probed for its first rank. The first trial that fits
pays once for what PyTorch works out of each parameter's sharding; further trials reuse the model. Seconds are the
processor's, of the command with all its processes, so that a busy machine changes them little; memory is the highest
sum of their resident memory, in which pages that processes share count several times.

Usage: python tests/bench/ranks.py [CASES]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from measuring import RESULTS, machine, save

from oomdoctor.engines.installed import find_torch

FILE: Final = RESULTS / "ranks.json"
MODEL: Final = Path(__file__).with_name("ranks_llama.py")
GPU: Final = "h200"
WORLDS: Final = (1, 8, 64, 512, 1024)
LAYERS: Final = (12, 32, 126)
LARGEST_WORLD: Final = 1024
CASES: Final = {
    "70b": ("70b", 0, LARGEST_WORLD),
    "405b": ("405b", 0, LARGEST_WORLD),
    **{f"world {world}": ("8b", 8, world) for world in WORLDS},
    **{f"layers {layers}": ("70b", layers, LARGEST_WORLD) for layers in LAYERS},
}
"""Size, layers (0 for the size's own) and world of each case; of 80 layers the first is one."""
MOST_SECONDS: Final = {"70b": 60.0, "405b": 120.0}
"""Until the first trial's outcome."""
MOST_TRIAL_SECONDS: Final = {"70b": 2.0}
MOST_BYTES: Final = 2 << 30
SAMPLING_SECONDS: Final = 0.5
_TRIAL: Final = re.compile(r"micro-batch \d+ (fits|ran out)")


@dataclass(kw_only=True)
class Cost:
    """What one probe took.

    Attributes:
        first_answer_seconds: Processor seconds until the first trial's outcome.
        trial_seconds: Processor seconds of each further trial.
        processor_seconds: Those of the whole command.
        wall_seconds: Seconds of the clock; on a busy machine many times more than on an idle one.
        host_bytes: Highest sum of the processes' resident memory.
    """

    first_answer_seconds: float = 0.0
    trial_seconds: list[float] = field(default_factory=list)
    processor_seconds: float = 0.0
    wall_seconds: float = 0.0
    host_bytes: int = 0


class Watch:
    """Watches a command and its descendants until it ends."""

    def __init__(self, command: subprocess.Popen[str]) -> None:
        self._root, self.cost = psutil.Process(command.pid), Cost()
        self._begin, self._ended = time.perf_counter(), threading.Event()
        self._last: dict[tuple[int, float], float] = {}
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def note_trial(self) -> None:
        """Note that another trial has ended."""
        known = self.cost.first_answer_seconds + sum(self.cost.trial_seconds)
        now = self._seconds()
        if self.cost.first_answer_seconds:
            self.cost.trial_seconds.append(round(now - known, 2))
        else:
            self.cost.first_answer_seconds = round(now, 2)

    def end(self) -> Cost:
        """Return what it took."""
        self._ended.set()
        self._thread.join()
        self.cost.wall_seconds = round(time.perf_counter() - self._begin, 2)
        return self.cost

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLING_SECONDS):
            total = sum(_of(process, lambda one: int(one.memory_info().rss)) for process in self._processes())
            self.cost.host_bytes = max(self.cost.host_bytes, total)

    def _processes(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _seconds(self) -> float:
        """Processor seconds until now: those of a process that ends stay what they were when it was last seen."""
        for process in self._processes():
            self._last[process.pid, process.create_time()] = _of(process, lambda one: sum(one.cpu_times()[:2]))
        return sum(self._last.values())


def _of(process: psutil.Process, read: Any) -> Any:
    try:
        return read(process)
    except psutil.NoSuchProcess:
        return 0


def probed(size: str, layers: int, world: int, told: Path) -> tuple[Cost, dict[str, Any]]:
    """Probe the first rank of a world; return what it took and the answer."""
    target = f'{MODEL}:build_model(size="{size}", layers={layers})'
    rank = ["--rank", "first"] if world > 1 else []
    command = [sys.executable, "-m", "oomdoctor", "probe", target, "--world-size", str(world), *rank, "--gpu", GPU]
    before = _processor_seconds()
    with (
        told.open("w") as out,
        subprocess.Popen([*command, "--json"], stdout=out, stderr=subprocess.PIPE, text=True) as running,
    ):
        watch = Watch(running)
        assert running.stderr is not None
        said = []
        for line in running.stderr:
            said.append(line)
            if _TRIAL.match(line):
                watch.note_trial()
        cost = watch.end()
    cost.processor_seconds = round(_processor_seconds() - before, 2)
    if running.returncode:
        raise RuntimeError("".join(said[-20:]))
    return cost, json.loads(told.read_text())["result"]


def _processor_seconds() -> float:
    used = psutil.Process().cpu_times()
    return float(used.children_user + used.children_system)


def row_of(name: str) -> dict[str, Any]:
    """Return a case's figures, and whether they hold what is claimed."""
    size, layers, world = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        cost, result = probed(size, layers, world, Path(folder) / "told.json")
    holds = (
        cost.first_answer_seconds < MOST_SECONDS.get(name, 1e9)
        and max(cost.trial_seconds, default=0.0) < MOST_TRIAL_SECONDS.get(name, 1e9)
        and (name not in MOST_SECONDS or cost.host_bytes < MOST_BYTES)
    )
    answer = {
        "maximum": result["micro_batch"]["maximum"],
        "weights_bytes": result["weights_bytes"],
        "peak_reserved_bytes": max(trial["peak_reserved_bytes"] or 0 for trial in result["trials"]),
    }
    return {"model": size, "layers": layers, "world_size": world, **asdict(cost), **answer, "holds": holds}


def main(names: list[str]) -> int:
    """Measure the cases, all of them by default, print each and save after each."""
    rows = json.loads(FILE.read_text(encoding="utf-8"))["rows"] if names and FILE.exists() else {}
    build = find_torch()
    about = {"machine": machine() | {"torch": build.version if build else None}, "gpu": GPU}
    for name in names or CASES:
        rows[name] = row_of(name)
        print(name, rows[name], flush=True)
        save(FILE, {**about, "rows": {known: rows[known] for known in CASES if known in rows}})
    return int(not all(row["holds"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
