"""A report on disk: complete under its name, or not there."""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import json
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import settings
from .guard import note_failure

REPORT = "report.json"
SNAPSHOT = "snapshot.pickle"


def write(report: dict[str, Any], torch: Any) -> None:
    """Write the report, and the memory snapshot beside it, into a directory of this process's own.

    Where the snapshot cannot be had or does not fit the disk, the report goes alone and says so. Where nobody said
    which directory, nothing is written.
    """
    if not settings.DIRECTORY:
        return
    parent = Path(settings.DIRECTORY)
    name = f"rank{report['rank'] or 0}-{report['pid']}"
    part = parent / f".{name}.part"
    part.mkdir(parents=True)
    try:
        _write_snapshot(part, report, torch)
        with (part / REPORT).open("w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump(report, file, indent=1, default=str)
            file.write("\n")
        part.rename(parent / name)
    except BaseException:
        _remove(part, parent)
        raise


def _write_snapshot(part: Path, report: dict[str, Any], torch: Any) -> None:
    path = part / SNAPSHOT
    try:
        if torch.cuda.is_initialized():
            snapshot = torch.cuda.memory._snapshot()  # noqa: SLF001
            with path.open("wb") as file:
                pickle.dump(snapshot, file, protocol=4)
            report["snapshot"] = SNAPSHOT
    except Exception as error:  # noqa: BLE001 - the report by itself says most of it
        note_failure("snapshot", error)
        with suppress(FileNotFoundError):
            path.unlink()


def _remove(part: Path, parent: Path) -> None:
    shutil.rmtree(part, ignore_errors=True)
    with suppress(OSError):
        parent.rmdir()  # only where it is empty
