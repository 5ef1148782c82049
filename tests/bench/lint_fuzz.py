"""Scripts that nobody meant, by the hundred thousand, through the whole of lint: no crash, no hang, bounded memory.

Usage: python tests/bench/lint_fuzz.py [INPUTS] [FOLDER...]

Half of the inputs come from the scripts in the folders, where there are any, such as an installed package's; the others
from the tests' own. Inputs run in processes of their own, so that even one that ends its process is found and named.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import resource
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lint_mutations import GIANTS, mutated
from measuring import RESULTS, machine, save

from oomdoctor.errors import OomdoctorError
from oomdoctor.lint.engine import lint
from oomdoctor.lint.settings import LintSettings

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

INPUTS: Final = 100_000
LIMIT_BYTES: Final = 300 * 10**6
LIMIT_SECONDS: Final = 5.0
HANG_SECONDS: Final = 60.0
MOST_SEED_BYTES: Final = 60_000

Job = int | str
"""A number for `mutated`, or a giant's name."""


def run(job: Job, more: tuple[str, ...]) -> Counter[str]:
    """Lint one input; what came of it, counted."""
    name, data = ("script.py", GIANTS[job]().encode()) if isinstance(job, str) else mutated(job, more)
    settings = LintSettings(stdin_filename=name)
    try:
        result = lint(["-"], settings, io.BytesIO(data)).result
    except OomdoctorError:
        return Counter(refused=1)
    return Counter(
        parsed=bool(result.files), unreadable=bool(result.unreadable), passed_over=bool(result.skipped_files),
        with_findings=bool(result.findings), findings=len(result.findings),
    )  # fmt: skip


def work(jobs: Connection, more: tuple[str, ...]) -> None:
    """Run the jobs that come, and answer each with its counts, its time and the peak of memory, or its error."""
    for job in iter(jobs.recv, None):
        started = time.process_time()
        try:
            counts, error = run(job, more), ""
        except Exception:  # noqa: BLE001 - a crash is what is looked for
            counts, error = Counter(), traceback.format_exc()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        jobs.send((counts, time.process_time() - started, peak, error))


@dataclass
class Worker:
    """One process, and the job that it has."""

    more: tuple[str, ...]
    process: BaseProcess = field(init=False)
    jobs: Connection = field(init=False)
    job: Job | None = None
    since: float = 0.0

    def __post_init__(self) -> None:
        self.jobs, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=work, args=(theirs, self.more), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, job: Job) -> None:
        """Have it run a job."""
        self.job, self.since = job, time.monotonic()
        self.jobs.send(job)

    def hangs(self) -> bool:
        """Whether its job takes longer than any may."""
        return time.monotonic() - self.since > HANG_SECONDS


@dataclass
class Tally:
    """What all inputs came to."""

    counts: Counter[str] = field(default_factory=Counter)
    crashes: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    peak_bytes: int = 0

    def add(self, job: Job, counts: Counter[str], seconds: float, peak_bytes: int, error: str) -> None:
        """Count one input."""
        self.counts.update(counts)
        self.slowest = max(self.slowest, (seconds, str(job)))
        self.peak_bytes = max(self.peak_bytes, peak_bytes)
        if error:
            print(f"input {job} crashed\n{error}", flush=True)
            self.crashes.append(str(job))


def drive(jobs: list[Job], more: tuple[str, ...]) -> Tally:
    """Run all jobs on all cores; a worker that dies or hangs is replaced."""
    tally, waiting = Tally(), jobs[::-1]
    workers = [Worker(more) for _ in range(min(os.cpu_count() or 1, len(jobs)))]
    while waiting or any(worker.job is not None for worker in workers):
        for index, worker in enumerate(workers):
            if worker.job is not None and not _settled(worker, tally):
                workers[index] = Worker(more)
            elif worker.job is None and waiting:
                worker.give(waiting.pop())
    for worker in workers:
        worker.jobs.send(None)
    return tally


def _settled(worker: Worker, tally: Tally) -> bool:
    """Take the answer to its job, where there is one; False where the process cannot go on."""
    assert worker.job is not None
    job = worker.job
    try:
        if worker.jobs.poll(0.002):
            tally.add(job, *worker.jobs.recv())
            worker.job = None
            return True
    except (EOFError, ConnectionError):
        tally.crashes.append(f"{job} ended the process")
        return False
    if worker.hangs():
        worker.process.kill()
        tally.hangs.append(str(job))
        return False
    return True


def scripts(folders: list[str]) -> tuple[str, ...]:
    """Scripts of these folders that a mutation may begin with."""
    paths = (path for folder in folders for path in sorted(Path(folder).rglob("*.py")))
    texts = (
        path.read_text(encoding="utf-8", errors="ignore") for path in paths if path.stat().st_size < MOST_SEED_BYTES
    )
    return tuple(text for text in texts if "backward" in text or ".eval()" in text)


def main() -> int:
    """Run the bench; 1 where a limit does not hold."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else INPUTS
    more = scripts(sys.argv[2:])
    tally = drive([*GIANTS, *range(count)], more)
    row = {
        "inputs": count,
        "giants": len(GIANTS),
        "scripts_to_begin_with": len(more),
        "crashes": len(tally.crashes),
        "hangs": len(tally.hangs),
        **{name: tally.counts[name] for name in ("parsed", "unreadable", "passed_over", "with_findings", "findings")},
        "slowest_seconds": round(tally.slowest[0], 3),
        "slowest_input": tally.slowest[1],
        "peak_rss_bytes": tally.peak_bytes,
        "limits": {"seconds": LIMIT_SECONDS, "bytes": LIMIT_BYTES},
    }
    print(row, tally.crashes, tally.hangs)
    save(RESULTS / "lint_fuzz.json", {"machine": machine(), **row})
    failed = tally.crashes or tally.hangs or tally.peak_bytes > LIMIT_BYTES or tally.slowest[0] > LIMIT_SECONDS
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
