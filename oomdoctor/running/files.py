"""Where a run's reports go, and which of those that lie there are its own."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.errors import UsageError

REPORT = "report.json"
SNAPSHOT = "snapshot.pickle"


@dataclass(frozen=True, slots=True)
class ReportDirectory:
    """A directory that need not exist; the hook makes it when there is something to write.

    Attributes:
        path: Absolute, for processes that work elsewhere.
        before: Names that were in it before the run.
    """

    path: Path
    before: frozenset[str]

    @classmethod
    def choose(cls, wanted: Path | None) -> ReportDirectory:
        """Take the one that was asked for, or a new name in the working directory.

        Raises:
            UsageError: The one that was asked for cannot be written.
        """
        if wanted is None:
            return cls(_unused_name(), frozenset())
        path = Path.cwd() / wanted
        _check_writable(path)
        return cls(path, frozenset(entry.name for entry in path.iterdir()) if path.is_dir() else frozenset())

    def reports(self) -> list[Path]:
        """The directories of this run's reports, one a process, in the order in which they were written."""
        if not self.path.is_dir():
            return []
        found = [path for path in self.path.glob("rank*-*") if path.name not in self.before]
        complete = [path for path in found if (path / REPORT).is_file()]
        return sorted(complete, key=lambda path: (path / REPORT).stat().st_mtime_ns)

    def discard(self) -> None:
        """Remove this run's reports, and what a process left that was ended while it wrote one."""
        if not self.path.is_dir():
            return
        for path in (*self.path.glob("rank*-*"), *self.path.glob(".rank*-*.part")):
            if path.name not in self.before:
                shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            self.path.rmdir()  # only where nothing else is in it

    def tidy(self) -> None:
        """Remove what a process left that was ended while it wrote its report."""
        if not self.path.is_dir():
            return
        for path in self.path.glob(".rank*-*.part"):
            shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            self.path.rmdir()


def files_of(report: Path) -> list[Path]:
    """What to diagnose of one report's directory."""
    return [path for name in (REPORT, SNAPSHOT) if (path := report / name).is_file()]


def _unused_name() -> Path:
    """A name with the time, and with the process, since a cluster may start many runs in one second."""
    name = f"oomdoctor-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    here = Path.cwd()
    return (here if os.access(here, os.W_OK) else Path(tempfile.gettempdir())) / name


def _check_writable(path: Path) -> None:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir():
        raise UsageError(f"`--output {path}` is to be a directory, and `{existing}` is a file", hint="name another")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"reports cannot be written to `{path}`: no permission in `{existing}`", hint="name another")
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:  # for the superuser everything is allowed, and still a file system may refuse
        path.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            folder.rmdir()
    except OSError as error:
        raise UsageError(f"reports cannot be written to `{path}`: {error.strerror}", hint="name another") from error
