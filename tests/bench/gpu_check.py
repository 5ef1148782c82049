"""The null GPU against the GPU of this machine: every example, both precisions, under memory caps and uncapped.

Needs a CUDA GPU and an installed torch, no network. Each question goes to the real card and, at the same time,
to a null GPU that has that card's properties; both answers, their peaks, phases and trials go to one JSON file. It is
written after every answer, so that a run that is cut short keeps what it has and `--resume` goes on from there. First
come operators, libraries and the context (`gpu_measure.py`) and published runs (`gpu_rows.py`), then the examples, and
last the zoo (`gpu_zoo.py`).

Usage: python tests/bench/gpu_check.py [--examples NAME...] [--caps GIB...] [--resume] [--minutes N]
                                       [--convolutions N] [--published N] [--models N]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Semaphore
from typing import TYPE_CHECKING, Any, get_args

ROOT = str(Path(__file__).parents[2])
sys.path.insert(0, ROOT)  # run from a checkout, without an installation; so do the processes that it starts
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))

import gpu_rows
import gpu_zoo
from measuring import EXAMPLES, RESULTS, gibibytes, machine, save

from oomdoctor.codec import encode
from oomdoctor.engines.catalogue import Card
from oomdoctor.engines.choice import Engine
from oomdoctor.engines.installed import find_torch
from oomdoctor.engines.null_gpu.library import environment as null_gpu_environment
from oomdoctor.errors import OomdoctorError
from oomdoctor.multi_card.workers import WorkerPool
from oomdoctor.progress import SilentProgress
from oomdoctor.request import ProbeRequest
from oomdoctor.results import Precision, Variant
from oomdoctor.trial.answer import ProbeRun
from oomdoctor.trial.probe import probe
from oomdoctor.trial.process import CancelToken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.trial.worker_process import WorkerStarter

CAPS_GIB = (8, 16, 24, 40, 0)
"""0 stands for the whole card."""

TARGET_BATCH = 8192

# Asked of torch in a process of its own, because this one must not hold a CUDA context while it measures.
PROPERTIES = """
import json, torch
torch.cuda.init()
free, total = torch.cuda.mem_get_info(0)
properties = torch.cuda.get_device_properties(0)
print(json.dumps({
    "name": properties.name,
    "total_bytes": properties.total_memory,
    "compute_capability": [properties.major, properties.minor],
    "sm_count": properties.multi_processor_count,
    "max_threads_per_sm": properties.max_threads_per_multi_processor,
    "shared_memory_per_block_bytes": getattr(properties, "shared_memory_per_block_optin", 101376),
    "l2_bytes": getattr(properties, "L2_cache_size", 0),
    "context_bytes": total - free,
}))
"""


@dataclass(frozen=True)
class Case:
    """One question, put to both devices."""

    example: str
    precision: Precision
    cap_gib: int

    @property
    def key(self) -> str:
        """Name in the results file."""
        return f"{self.example} {self.precision} {self.cap_gib or 'full'}"

    def request(self, memory_bytes: int | None) -> ProbeRequest:
        """The question; `memory_bytes` caps the capacity."""
        return ProbeRequest(
            target=self.example,
            directory=Path.cwd(),
            target_batch=TARGET_BATCH,
            variant=Variant(precision=self.precision),
            memory_bytes=memory_bytes,
            engine="cuda",
            guide=False,  # more sizes are run on both, and so compared
        )


def local_card() -> Card:
    """The GPU of this machine as a card that the null GPU can play."""
    ended = subprocess.run([sys.executable, "-c", PROPERTIES], capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"error: no CUDA GPU can be used here\n\n{ended.stderr}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return Card(
        key=re.sub(r"[^a-z0-9]+", "-", found["name"].lower()).strip("-"),
        total_source="read from this GPU",
        context_source="read from this GPU, other processes included",
        **found | {"compute_capability": tuple(found["compute_capability"])},
    )


def null_engine(card: Card) -> Engine:
    """A null GPU with this machine's card's properties."""
    build = find_torch()
    if build is None:
        sys.exit("error: torch is not installed")
    return Engine("null", card, null_gpu_environment(card, build, os.environ), ())


def cases(examples: list[str], caps: list[int]) -> Iterator[Case]:
    """Small caps first: they are quick, and a run that is cut short has something of every example."""
    for cap in caps:
        for example in examples:
            for precision in get_args(Precision)[:2]:
                yield Case(example, precision, cap)


def answer(found: ProbeRun) -> dict[str, Any]:
    """What the results file keeps of one probe."""
    result = found.result
    return {
        "maximum": result.micro_batch.maximum,
        "recommended": result.micro_batch.recommended,
        "capacity_bytes": result.capacity_bytes,
        "context_bytes": result.device.context_bytes,
        "optimizer": result.optimizer,
        "trials": encode(result.trials),
        "phases": encode(result.phases),
        "warnings": list(result.warnings),
    }


def ask(case: Case, memory_bytes: int | None, engine: Engine | None, start: WorkerStarter) -> dict[str, Any]:
    """Put a question to the real card (no engine) or to the null GPU."""
    started = time.perf_counter()
    try:
        found = answer(probe(case.request(memory_bytes), SilentProgress(), engine=engine, start=start))
    except OomdoctorError as error:
        found = {"error": error.message, "details": error.details}
    return found | {"seconds": round(time.perf_counter() - started, 2)}


def time_steps(example: str, start: WorkerStarter) -> dict[str, Any]:
    """Have the real card time optimizer steps of an example with micro-batches of several sizes."""
    started = time.perf_counter()
    request = replace(Case(example, "bf16", 0).request(None), fastest=True, profiles=False)
    try:
        found = encode(probe(request, SilentProgress(), start=start).result.throughput)
    except OomdoctorError as error:
        found = {"error": error.message, "details": error.details}
    return found | {"seconds": round(time.perf_counter() - started, 2)}


def compare(real: dict[str, Any], null: dict[str, Any]) -> dict[str, Any] | None:
    """Relative errors of the null GPU at every micro-batch that fits on both."""
    if "error" in real or "error" in null:
        return None
    peaks = {trial["micro_batch"]: trial for trial in null["trials"] if trial["outcome"] == "fits"}
    both = [(trial, peaks[trial["micro_batch"]]) for trial in real["trials"] if trial["outcome"] == "fits"
            and trial["micro_batch"] in peaks]  # fmt: skip
    return {
        "maximum_error": null["maximum"] - real["maximum"],
        "maximum_relative_error": (null["maximum"] - real["maximum"]) / real["maximum"] if real["maximum"] else None,
        "allocated_relative_errors": [_relative(mine, truth, "peak_allocated_bytes") for truth, mine in both],
        "reserved_relative_errors": [_relative(mine, truth, "peak_reserved_bytes") for truth, mine in both],
    }


def _relative(mine: dict[str, Any], truth: dict[str, Any], name: str) -> float:
    return round(float((mine[name] - truth[name]) / truth[name]), 6)


def table(rows: dict[str, Any]) -> str:
    """The relative errors as people read them."""
    lines = ["| case | real | null GPU | difference | worst peak error |", "|---|---|---|---|---|"]
    for key, entry in rows.items():
        comparison = entry["comparison"]
        if comparison is None:
            lines.append(f"| {key} | {_shown(entry['real'])} | {_shown(entry['null'])} | | |")
            continue
        worst = max(map(abs, comparison["allocated_relative_errors"]), default=0.0)
        relative = comparison["maximum_relative_error"]
        difference = "" if relative is None else f"{relative:+.2%}"
        lines.append(
            f"| {key} | {entry['real']['maximum']} | {entry['null']['maximum']} | {difference} | {worst:.2%} |"
        )
    return "\n".join(lines)


def _shown(found: dict[str, Any]) -> str:
    return str(found.get("maximum", found.get("error")))


class Results:
    """The results file, written after every row.

    Args:
        path: Where it lies.
        card: The GPU.
        saved: What an earlier run wrote.
    """

    def __init__(self, path: Path, card: Card, saved: dict[str, Any]) -> None:
        self._path = path
        self._card = card
        self.cases: dict[str, Any] = saved.get("cases", {})
        self.libraries: dict[str, Any] = saved.get("libraries", {})
        self.throughput: dict[str, Any] = saved.get("throughput", {})
        self.models: dict[str, Any] = saved.get("models", {})

    def keep(self, rows: dict[str, Any], name: str, row: dict[str, Any], said: str) -> None:
        """Add a row to one of the kinds of rows, and say so."""
        rows[name] = row
        print(said, flush=True)
        build = find_torch()
        versions = {"torch": build.version if build else None, "cuda": build.cuda if build else None}
        found = {"machine": machine() | versions, "card": asdict(self._card)}
        found |= {"table": table(self.cases).splitlines(), "cases": self.cases}
        found |= {"libraries_table": gpu_rows.lines(self.libraries), "libraries": self.libraries}
        found |= {"models_table": gpu_zoo.lines(self.models), "models": self.models, "throughput": self.throughput}
        save(self._path, found)

    @property
    def text(self) -> str:
        """Its tables."""
        tables = gpu_rows.lines(self.libraries), table(self.cases).splitlines(), gpu_zoo.lines(self.models)
        return "\n\n".join("\n".join(lines) for lines in tables)

    @property
    def is_whole(self) -> bool:
        """True where there are cases, and both devices answered all that is there."""
        rows = (*self.cases.values(), *self.libraries.values(), *self.models.values())
        return bool(self.cases) and all(entry["comparison"] is not None for entry in rows)


def ask_both(case: Case, card: Card, engine: Engine, start: WorkerStarter, room: Semaphore) -> dict[str, Any]:
    """Put a question to both devices: at the same time, unless the null GPU has to be told what the other had free."""
    cap = gibibytes(case.cap_gib) if case.cap_gib else None

    def ask_real() -> dict[str, Any]:
        with room:
            return ask(case, cap, None, start)

    if cap is None:
        real = ask_real()
        null = ask(case, real.get("capacity_bytes") or card.capacity_bytes, engine, start)
    else:
        with ThreadPoolExecutor() as devices:
            asked = devices.submit(ask_real)
            null = ask(case, cap, engine, start)
            real = asked.result()
    return {"real": real, "null": null, "comparison": compare(real, null)}


def ask_all(missing: list[Case], card: Card, engine: Engine, start: WorkerStarter, deadline: float) -> Iterator[Any]:
    """Put the questions of one capacity to both devices, several at once, and to the card as many as it has room for."""
    cap_gib = missing[0].cap_gib if missing else 0
    room = Semaphore(max(1, card.capacity_bytes // gibibytes(cap_gib + 2)) if cap_gib else 1)
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 4)) as together:

        def answer_in_time(case: Case) -> dict[str, Any] | None:
            return ask_both(case, card, engine, start, room) if time.monotonic() < deadline else None

        for case, row in zip(missing, together.map(answer_in_time, missing), strict=True):
            if row is not None:
                yield case, row


def main() -> int:
    """Run the check; 0 when every case was answered by both devices."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", nargs="+", default=list(EXAMPLES), metavar="NAME")
    parser.add_argument(
        "--caps", nargs="+", type=int, default=list(CAPS_GIB), metavar="GIB", help="0 for the whole card"
    )
    parser.add_argument("--resume", action="store_true", help="keep the cases that the results file already has")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where to write the file")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no case after so many minutes")
    parser.add_argument("--convolutions", type=int, default=gpu_rows.CONVOLUTIONS, metavar="N")
    parser.add_argument("--timed", nargs="*", default=["resnet50", "gpt2"], metavar="NAME", help="examples to time")
    parser.add_argument("--published", type=int, default=12, metavar="N", help="published runs; 0 for none")
    parser.add_argument("--models", type=int, default=1000, metavar="N", help="models of the zoo; 0 for none")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.minutes * 60
    card = local_card()
    engine = null_engine(card)
    path = arguments.results / f"gpu_check-{card.key}.json"
    results = Results(path, card, _saved(path) if arguments.resume else {})

    def keep_library(name: str, row: dict[str, Any]) -> None:
        results.keep(results.libraries, name, row, gpu_rows.lines({name: row})[-1])

    def keep_model(name: str, row: dict[str, Any]) -> None:
        results.keep(results.models, name, row, gpu_zoo.lines({name: row})[-1])

    if not results.libraries:
        gpu_rows.libraries(card, engine, arguments.convolutions, keep_library)
        gpu_rows.published(card, engine, arguments.published, keep_library)
    with WorkerPool(CancelToken()) as workers:  # forks those of null GPUs; one of the real card is a fresh process
        for cap in arguments.caps:
            missing = [case for case in cases(arguments.examples, [cap]) if case.key not in results.cases]
            for case, row in ask_all(missing, card, engine, workers.start, deadline):
                real, null = row["real"], row["null"]
                said = f"{case.key}: real {_shown(real)} in {real['seconds']} s, null GPU {_shown(null)}"
                results.keep(results.cases, case.key, row, said)
        for name in arguments.timed:
            if name not in results.throughput and time.monotonic() <= deadline:
                results.keep(results.throughput, name, time_steps(name, workers.start), f"timed {name}")
    names = [name for name in gpu_zoo.names(arguments.models) if name not in results.models]
    gpu_zoo.compare(names, card.capacity_bytes, engine, deadline, keep_model)
    print(results.text)
    return int(not results.is_whole)


def _saved(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


if __name__ == "__main__":
    sys.exit(main())
