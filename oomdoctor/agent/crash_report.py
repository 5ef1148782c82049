"""Crash report: what is known when a program dies for want of memory, as one document of plain values, and its file.

Each part is collected by itself, so that one that fails is missing and takes no other with it. The file is complete
under its name, or not there.
"""

# ruff: noqa: ANN401 - torch has no type here

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from . import settings, unknown_reads
from .exception_hooks import full_traceback
from .guard import FAILURES, guarded, note_failure
from .memory_stats import device_statistics
from .oom_errors import error_text, is_from_allocator

SCHEMA_VERSION = 1
REPORT_NAME = "report.json"
SNAPSHOT_NAME = "snapshot.pickle"

_LONGEST_ARGUMENT = 2000
_MOST_ARGUMENTS = 500
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK")
_WORLD_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_SETTINGS = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_VISIBLE_DEVICES",
)


class RunFacts(NamedTuple):
    """Facts that the agent has gathered until a program dies.

    Attributes:
        steps_done: Optimizer steps.
        last_steps: Memory after the last of them, oldest first.
        ooms: Times that the allocator found no memory.
        oom_events: The figures of the last of them, oldest first.
        categories: Category of live memory by address, at the last of them.
        history_entries: Events of the memory history that are kept; 0 where none is recorded.
    """

    steps_done: int
    last_steps: list[dict[str, Any]]
    ooms: int
    oom_events: list[dict[str, Any]]
    categories: dict[int, str]
    history_entries: int


def collect_report(
    torch: Any, error: BaseException, oom: BaseException, ending: str, facts: RunFacts
) -> dict[str, Any]:
    """Collect everything but the snapshot.

    Args:
        torch: The module.
        error: The error that ended the program.
        oom: The error of its chain that says that memory ran out; often the same.
        ending: `exception`, `thread`, `child process` or `exit`.
        facts: Facts that the agent has gathered.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "written_by": "oomdoctor run",
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "ending": ending,
        "type": f"{type(oom).__module__}.{type(oom).__qualname__}",
        "message": error_text(oom),
        "traceback": guarded(full_traceback)(error),
        "pid": os.getpid(),
        "rank": guarded(_group_number)("get_rank", _RANKS, 0),
        "world_size": guarded(_group_number)("get_world_size", _WORLD_SIZES, 1),
        "argv": guarded(_argv)(),
        "card_options": settings.CARD_OPTIONS,
        "working_directory": guarded(os.getcwd)(),
        "address_space_bytes": guarded(_address_space)(),
        "versions": {
            "python": ".".join(map(str, sys.version_info[:3])),
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
        },
        "allocator_settings": {name: os.environ[name] for name in _SETTINGS if name in os.environ},
        "devices": guarded(_devices)(torch) or [],
        "steps_done": facts.steps_done,
        "last_steps": facts.last_steps,
        "ooms": facts.ooms,
        "oom_events": guarded(_events)(facts.oom_events, oom) or [],
        "categories": {str(address): name for address, name in facts.categories.items()},
        "history_entries": facts.history_entries,
        "unknown_reads": list(map(vars, unknown_reads.reads())),
        "snapshot": None,
        "failures": FAILURES,
    }


def _group_number(getter: str, names: tuple[str, ...], otherwise: int) -> int:
    """Return the rank or the size of the program's process group; without one, what a launcher's variables say."""
    module: Any = sys.modules.get("torch.distributed")  # not imported for this
    if module is not None and module.is_available() and module.is_initialized():
        return int(getattr(module, getter)())
    found = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in found if text.isdigit()), otherwise)


def _argv() -> list[str]:
    return [str(argument)[:_LONGEST_ARGUMENT] for argument in getattr(sys, "orig_argv", sys.argv)[:_MOST_ARGUMENTS]]


def _address_space() -> int | None:
    """Return the limit of `ulimit -v`, which a driver's reservations and a null GPU's memory count against."""
    import resource  # noqa: PLC0415 - not on every system

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _devices(torch: Any) -> list[dict[str, Any]]:
    if not torch.cuda.is_initialized():
        return []
    found = [device_statistics(torch, device) for device in range(torch.cuda.device_count())]
    return [device for device in found if device["peak_reserved_bytes"]]


def _events(last: list[dict[str, Any]], oom: BaseException) -> list[dict[str, Any]]:
    """Return each time that the allocator found no memory, and whether the program went on after it."""
    fatal = last[-1] if last and is_from_allocator(oom) else None
    return [dict(event, swallowed=event is not fatal) for event in last]


def write_report(report: dict[str, Any], torch: Any, directory: str) -> None:
    """Write the report, and the memory snapshot beside it, into a directory of this process's own.

    Where the snapshot cannot be had or does not fit the disk, the report goes alone and says so.

    Args:
        report: As `collect_report` gives it.
        torch: The module.
        directory: The folder of the reports, which is made if it is missing; empty for none, then nothing is written.
    """
    if not directory:
        return
    parent = Path(directory)
    name = f"rank{report['rank'] or 0}-{report['pid']}"
    part = parent / f".{name}.part"
    part.mkdir(parents=True)
    try:
        _write_snapshot(part, report, torch)
        with (part / REPORT_NAME).open("w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump(report, file, indent=1, default=str)
            file.write("\n")
        part.rename(parent / name)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        with suppress(OSError):
            parent.rmdir()  # only where it is empty
        raise


def write_caught(event: dict[str, Any], directory: str) -> None:
    """Write the figures of an OOM that the program caught, for the parent, which removes them.

    Args:
        event: `tried_bytes`, `total_bytes` and `free_bytes`, beside others.
        directory: The folder of the reports, which is made if it is missing; empty for none, then nothing is written.
    """
    if not directory:
        return
    parent = Path(directory)
    parent.mkdir(parents=True, exist_ok=True)
    figures = {name: event[name] for name in ("tried_bytes", "total_bytes", "free_bytes")}
    (parent / f".caught-{os.getpid()}.json").write_text(json.dumps(figures), encoding="utf-8")


def _write_snapshot(part: Path, report: dict[str, Any], torch: Any) -> None:
    path = part / SNAPSHOT_NAME
    try:
        if torch.cuda.is_initialized():
            snapshot = torch.cuda.memory._snapshot()  # noqa: SLF001
            with path.open("wb") as file:
                pickle.dump(snapshot, file, protocol=4)
            report["snapshot"] = SNAPSHOT_NAME
    except Exception as error:  # noqa: BLE001 - the report by itself says most of it
        note_failure("snapshot", error)
        with suppress(FileNotFoundError):
            path.unlink()
