"""The null GPU against the GPU of this machine: every example, both precisions, under memory caps and uncapped.

Needs a CUDA GPU and an installed torch, no network. Each question goes to the real card first and then to a null GPU
that has that card's properties; both answers, their peaks, phases and trials go to one JSON file. It is written after
every case, so that a run that is cut short keeps what it has and `--resume` goes on from there. First come the
libraries' workspaces, the context and published runs (`gpu_rows.py`), which take a few minutes.

Usage: python tests/bench/gpu_check.py [--examples NAME...] [--caps GIB...] [--resume] [--minutes N]
                                       [--convolutions N] [--published N]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

sys.path.insert(0, str(Path(__file__).parents[2]))  # run from a checkout, without an installation

import gpu_rows
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
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.minutes * 60
    card = local_card()
    engine = null_engine(card)
    path = arguments.results / f"gpu_check-{card.key}.json"
    rows, libraries, throughput = _saved(path) if arguments.resume else ({}, {}, {})

    def keep(name: str, row: dict[str, Any]) -> None:
        libraries[name] = row
        print(gpu_rows.lines({name: row})[-1], flush=True)
        _save(path, card, rows, libraries, throughput)

    if not libraries:
        gpu_rows.libraries(card, engine, arguments.convolutions, keep)
        gpu_rows.published(card, engine, arguments.published, keep)
    with WorkerPool(CancelToken()) as workers:  # forks those of null GPUs; one of the real card is a fresh process
        for case in cases(arguments.examples, arguments.caps):
            if case.key in rows or time.monotonic() > deadline:
                continue
            cap = gibibytes(case.cap_gib) if case.cap_gib else None
            real = ask(case, cap, None, workers.start)
            null = ask(case, cap or real.get("capacity_bytes") or card.capacity_bytes, engine, workers.start)
            rows[case.key] = {"real": real, "null": null, "comparison": compare(real, null)}
            print(f"{case.key}: real {_shown(real)} in {real['seconds']} s, null GPU {_shown(null)}", flush=True)
            _save(path, card, rows, libraries, throughput)
        for name in arguments.timed:
            if name not in throughput and time.monotonic() <= deadline:
                throughput[name] = time_steps(name, workers.start)
                _save(path, card, rows, libraries, throughput)
    print("\n".join([*gpu_rows.lines(libraries), "", table(rows)]))
    return int(not rows or any(entry["comparison"] is None for entry in (*rows.values(), *libraries.values())))


def _save(path: Path, card: Card, rows: dict[str, Any], libraries: dict[str, Any], throughput: dict[str, Any]) -> None:
    build = find_torch()
    versions = {"torch": build.version if build else None, "cuda": build.cuda if build else None}
    found = {"machine": machine() | versions, "card": asdict(card), "table": table(rows).splitlines(), "cases": rows}
    found |= {"libraries": libraries, "libraries_table": gpu_rows.lines(libraries), "throughput": throughput}
    save(path, found)


def _saved(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found.get("cases", {}), found.get("libraries", {}), found.get("throughput", {})


if __name__ == "__main__":
    sys.exit(main())
