"""The null GPU against the GPU of this machine: every example, both precisions, under memory caps and uncapped.

Needs a CUDA GPU and an installed torch, no network. Each question goes to the real card and, at the same time,
to a null GPU that has that card's properties; both answers, their peaks, phases and trials go to one JSON file. It is
written after every answer, so that a run that is cut short keeps what it has and `--resume` goes on from there. The
parts are operators, libraries and the context (`gpu_measure.py`), published runs (`gpu_rows.py`), the examples, their
steps timed, and the zoo (`gpu_zoo.py`). Several can be run at the same time, each with room of its own on the card and
a folder of its own.

A file's answers of a GPU can be compared with a later null GPU on any machine that has the torch it names:
`--side null --of FILE`.

Usage: python tests/bench/gpu_check.py [--parts PART...] [--examples NAME...] [--caps GIB...] [--resume] [--minutes N]
                                       [--room GIB] [--convolutions N] [--published N] [--models NAME...]
                                       [--side real|null] [--of FILE]
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
from functools import partial
from pathlib import Path
from threading import Semaphore
from typing import TYPE_CHECKING, Any, get_args

sys.path.insert(0, str(Path(__file__).parents[2]))  # run from a checkout, without an installation

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

ROOT = sys.path[0]
CAPS_GIB = (8, 16, 24, 40, 0)
"""0 stands for the whole card."""

PARTS = ("libraries", "published", "examples", "timed", "models")
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


class Questions:
    """Puts cases to the devices that are asked.

    Args:
        card: The GPU.
        null: The null GPU that has its properties.
        sides: The devices to ask.
        start: Starts workers.
        deadline: Moment after which no case is begun.
        room_bytes: Of the card's memory, what cases that run at the same time share.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the devices, how they are asked and within what limits
        self, card: Card, null: Engine, sides: tuple[str, ...], start: WorkerStarter, deadline: float, room_bytes: int
    ) -> None:
        self._card = card
        self._room_bytes = room_bytes
        self._null = null
        self._sides = sides
        self._start = start
        self._deadline = deadline

    def ask_all(self, cases_of_cap: list[Case], known: dict[str, Any]) -> Iterator[tuple[Case, dict[str, Any]]]:
        """Put the cases of one cap to the devices, several at once, and to the card as many as it has room for."""
        cap_gib = cases_of_cap[0].cap_gib if cases_of_cap else 0
        room = Semaphore(max(1, self._room_bytes // gibibytes(cap_gib + 2)) if cap_gib else 1)

        def answer_in_time(case: Case) -> dict[str, Any] | None:
            if time.monotonic() > self._deadline:
                return None
            return gpu_rows.completed(self._ask(case, known.get(case.key, {}), room), known.get(case.key, {}), compare)

        with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 4)) as together:
            for case, row in zip(cases_of_cap, together.map(answer_in_time, cases_of_cap), strict=True):
                if row is not None:
                    yield case, row

    def _ask(self, case: Case, known: dict[str, Any], room: Semaphore) -> dict[str, Any]:
        """Ask both at the same time, unless the null GPU has to be told what the other had free."""
        cap = gibibytes(case.cap_gib) if case.cap_gib else None

        def ask_real() -> dict[str, Any]:
            with room:
                return ask(case, cap, None, self._start)

        def ask_null(told: dict[str, Any]) -> dict[str, Any]:
            found = cap or told.get("capacity_bytes") or self._card.capacity_bytes
            return ask(case, found, self._null, self._start)

        if cap is None and "real" in self._sides:
            real = ask_real()
            return {"real": real} | ({"null": ask_null(real)} if "null" in self._sides else {})
        questions = {"real": ask_real, "null": partial(ask_null, known.get("real", {}))}
        return gpu_rows.ask_sides({side: questions[side] for side in self._sides})


def main() -> int:
    """Run the check; 0 when every case was answered by both devices."""
    arguments = parse()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
    deadline = time.monotonic() + arguments.minutes * 60
    sides = gpu_rows.BOTH if arguments.side is None else (arguments.side,)
    saved = json.loads(arguments.of.read_text(encoding="utf-8")) if arguments.of else None
    card = local_card() if saved is None else saved_card(saved)
    null = null_engine(card)
    path = arguments.of or arguments.results / f"gpu_check-{card.key}.json"
    results = Results(path, card, saved or (_saved(path) if arguments.resume else {}))
    again = saved is not None

    def keep_library(name: str, row: dict[str, Any]) -> None:
        results.keep(results.libraries, name, row, gpu_rows.lines({name: row})[-1])

    def keep_model(name: str, row: dict[str, Any]) -> None:
        results.keep(results.models, name, row, gpu_zoo.lines({name: row})[-1])

    known = dict(results.libraries)
    if "libraries" in arguments.parts and (again or not known):
        gpu_rows.libraries(card, null, arguments.convolutions, sides, known, keep_library)
    if "published" in arguments.parts and (again or not known):
        gpu_rows.published(card, null, arguments.published, sides, known, keep_library)
    room = gibibytes(arguments.room) if arguments.room else card.capacity_bytes
    with WorkerPool(CancelToken()) as workers:  # forks those of null GPUs; one of the real card is a fresh process
        questions = Questions(card, null, sides, workers.start, deadline, room)
        for cap in arguments.caps if "examples" in arguments.parts else ():
            wanted = [case for case in cases(arguments.examples, [cap]) if (case.key in results.cases) is again]
            for case, row in questions.ask_all(wanted, results.cases):
                real, ours = row["real"], row["null"]
                said = f"{case.key}: real {_shown(real)} in {real.get('seconds')} s, null GPU {_shown(ours)}"
                results.keep(results.cases, case.key, row, said)
        for name in arguments.timed if "timed" in arguments.parts and not again else ():
            if name not in results.throughput and time.monotonic() <= deadline:
                results.keep(results.throughput, name, time_steps(name, workers.start), f"timed {name}")
    if "models" in arguments.parts:
        names = arguments.models or [case.name for case in gpu_zoo.runnable()]
        chosen = [case for case in gpu_zoo.runnable() if case.name in names and (case.name in results.models) is again]
        gpu_zoo.compare(chosen, room, null, sides, results.models, deadline, keep_model)
    print(results.text)
    return int(not results.is_whole)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", nargs="+", default=list(EXAMPLES), metavar="NAME")
    parser.add_argument(
        "--caps", nargs="+", type=int, default=list(CAPS_GIB), metavar="GIB", help="0 for the whole card"
    )
    parser.add_argument("--resume", action="store_true", help="keep the cases that the results file already has")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where to write the file")
    parser.add_argument("--side", choices=gpu_rows.BOTH, help="ask one of the devices; both by default")
    parser.add_argument(
        "--of",
        type=Path,
        metavar="FILE",
        help="with `--side null`: ask it again, without a GPU, what a file has answers to",
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="start no case after so many minutes")
    parser.add_argument("--convolutions", type=int, default=gpu_rows.CONVOLUTIONS, metavar="N")
    parser.add_argument("--timed", nargs="+", default=["resnet50", "gpt2"], metavar="NAME", help="examples to time")
    parser.add_argument("--published", type=int, default=12, metavar="N", help="how many published runs")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="of the zoo; all by default")
    parser.add_argument("--room", type=int, metavar="GIB", help="of the card's memory; all of it by default")
    arguments = parser.parse_args()
    if (arguments.of is not None) != (arguments.side == "null"):
        parser.error("`--of FILE` and `--side null` go together")
    return arguments


def saved_card(saved: dict[str, Any]) -> Card:
    """Return the GPU that a results file tells of."""
    return Card(**saved["card"] | {"compute_capability": tuple(saved["card"]["compute_capability"])})


def _saved(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


if __name__ == "__main__":
    sys.exit(main())
