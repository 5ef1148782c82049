"""Run a command from start to end, and list the reports that its processes left."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.errors import UsageError
from oomdoctor.run.environment import CommandDevice, make_environment
from oomdoctor.run.launcher import launch_alone, parse_ranks, ranks_left
from oomdoctor.run.process import KillNotice, explain_kill, read_host_memory, run_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.run.process import ExitStatus


REPORT_NAME = "report.json"
SNAPSHOT_NAME = "snapshot.pickle"
_CAUGHT = ".caught-*.json"


@dataclass(frozen=True, slots=True)
class CaughtOom:
    """Figures of an OOM that the program caught, as the allocator told them.

    Attributes:
        tried_bytes: Bytes that were asked for.
        total_bytes: Memory of the device.
        free_bytes: Bytes of it that were free.
    """

    tried_bytes: int
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class ReportDirectory:
    """Directory of reports, which need not exist: the agent makes it when there is something to write.

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
        found = [path for path in self.path.glob("rank*-*") if path.name not in self.before]
        complete = [path for path in found if (path / REPORT_NAME).is_file()]
        return sorted(complete, key=lambda path: (path / REPORT_NAME).stat().st_mtime_ns)

    def discard(self) -> None:
        """Remove this run's reports, and what a process left that was ended while it wrote one."""
        for path in self.path.glob("rank*-*"):
            if path.name not in self.before:
                shutil.rmtree(path, ignore_errors=True)
        self.tidy()

    def caught(self) -> CaughtOom | None:
        """Return the OOM that a process of this run caught and finished no step after; None where there is none."""
        for path in sorted(self.path.glob(_CAUGHT)):
            with suppress(OSError, ValueError, TypeError, KeyError):  # the user's code could write there too
                if path.name not in self.before:
                    told = json.loads(path.read_text(encoding="utf-8"))
                    return CaughtOom(*(int(told[name]) for name in ("tried_bytes", "total_bytes", "free_bytes")))
        return None

    def tidy(self) -> None:
        """Remove what a process left that was ended while it wrote its report, and what they left of caught OOMs."""
        for path in self.path.glob(_CAUGHT):
            path.unlink(missing_ok=True)
        for path in self.path.glob(".rank*-*.part"):
            shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            self.path.rmdir()  # only where nothing else is in it


def files_of(report: Path) -> list[Path]:
    """Return the files to diagnose of one report's directory."""
    return [path for name in (REPORT_NAME, SNAPSHOT_NAME) if (path := report / name).is_file()]


def _unused_name() -> Path:
    """A name with the time, and with the process, since a cluster may start many runs in one second."""
    name = f"oomdoctor-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    here = Path.cwd()
    return (here if os.access(here, os.W_OK) else _temporary()) / name


def _check_writable(path: Path) -> None:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir():
        hint = f"name a directory, such as `{_option(existing.with_name(f'{existing.stem}-reports'))}`"
        raise UsageError(f"`--output {path}` is to be a directory, and `{existing}` is a file", hint=hint)
    elsewhere = f"name a directory that you may write to, such as `{_option(_temporary() / path.name)}`"
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"reports cannot be written to `{path}`: no permission in `{existing}`", hint=elsewhere)
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:  # for the superuser everything is allowed, and still a file system may refuse
        path.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            folder.rmdir()
    except OSError as error:
        raise UsageError(f"reports cannot be written to `{path}`: {error.strerror}", hint=elsewhere) from error


def _option(path: Path) -> str:
    return f"--output {shlex.quote(str(path))}"


def _temporary() -> Path:
    return Path(tempfile.gettempdir())


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The command to run and its options.

    Attributes:
        command: The program and its arguments.
        device: The GPU to show it.
        max_entries: Events of the memory history to keep; 0 for no history.
        directory: Where reports go; None for a new name in the working directory.
        world_size: Ranks of the world; above those that its launcher starts, ranks run alone. None for the launcher's.
        ranks: Ranks that run then, as given.
        objects: Folder for what ranks leave to each other.
    """

    command: Sequence[str]
    device: CommandDevice
    max_entries: int
    directory: Path | None = None
    world_size: int | None = None
    ranks: str | None = None
    objects: Path | None = None


@dataclass(frozen=True, slots=True)
class RankPeaks:
    """Memory of a rank that ran alone.

    Attributes:
        rank: Its number.
        peak_allocated_bytes: Most bytes in live tensors; None where it did not say.
        peak_reserved_bytes: Most bytes held from the driver.
        communicators: Ranks of each of its NCCL communicators.
    """

    rank: int
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    communicators: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished command with its reports.

    Attributes:
        exit_code: The command's, as a shell gives it.
        reports: Directories of reports, one for each process that ran out of memory, first one first.
        notice: What to tell where the kernel ended the command.
        ranks: Ranks that ran alone, in ascending order.
        caught: The OOM that a process caught before the command failed; None where there is none.
    """

    exit_code: int
    reports: tuple[Path, ...] = ()
    notice: KillNotice | None = None
    ranks: tuple[RankPeaks, ...] = ()
    caught: CaughtOom | None = None


def run(request: RunRequest) -> FinishedRun:
    """Run a command to its end.

    A command that succeeds leaves nothing: where a process beneath it ran out of memory and the command got over
    that, the report is removed.

    Raises:
        UsageError: The options contradict each other, or the reports cannot be written.
        NoAnswerError: The device that was asked for cannot be shown to this command.
        OomdoctorError: The command cannot be started; the exit code is 126 or 127.
    """
    directory = ReportDirectory.choose(request.directory)
    environment = make_environment(
        request.command,
        os.environ,
        device=request.device,
        directory=directory.path,
        max_entries=request.max_entries,
    )
    before = read_host_memory()
    ending, ranks = _run_ranks(request, environment) or (run_process(request.command, environment), ())
    if ending.exit_code == os.EX_OK:
        directory.discard()
        return FinishedRun(ending.exit_code, ranks=ranks)
    caught = directory.caught()
    directory.tidy()
    notice = explain_kill(ending, before, read_host_memory())
    return FinishedRun(ending.exit_code, tuple(directory.reports()), notice, ranks, caught)


def _run_ranks(request: RunRequest, environment: Mapping[str, str]) -> tuple[ExitStatus, tuple[RankPeaks, ...]] | None:
    """Run each rank that is asked for alone, one after the other, until one fails; None where all processes run.

    Raises:
        UsageError: No launcher starts fewer ranks than the world has, or no null GPU was asked for.
    """
    launch = launch_alone(request.command, request.world_size, request.ranks, os.environ)
    if launch is None or request.world_size is None or request.objects is None:
        return None
    if "OOMDOCTOR_NULL_NAME" not in environment:
        raise UsageError("ranks run alone on the null GPU only", hint="name the card with `--gpu`, such as `h100-sxm`")
    done: list[RankPeaks] = []
    own = {"OOMDOCTOR_LONE_OBJECTS": str(request.objects), "OOMDOCTOR_LONE_PARENT": str(os.getpid())}
    ranks = parse_ranks(request.ranks, request.world_size, "--rank")
    while left := ranks_left(request.ranks, ranks, [each.rank for each in done], str(request.objects)):
        rank = left[0]
        variables = launch.variables(rank, request.world_size) | own
        ending = run_process(launch.command(int(variables["LOCAL_RANK"])), {**environment, **variables})
        done.append(_peaks_of(rank, request.objects))
        if ending.exit_code != os.EX_OK:
            break
    return ending, tuple(done)


def _peaks_of(rank: int, folder: Path) -> RankPeaks:
    """Return what a rank left; the user's code could write there too, so nothing is believed to be there."""
    try:
        told = json.loads((folder / f"peaks-{rank}.json").read_text(encoding="utf-8"))
        figures = int(told["peak_allocated_bytes"]), int(told["peak_reserved_bytes"])
        return RankPeaks(rank, *figures, tuple(map(int, told["communicators"])))
    except (OSError, ValueError, TypeError, KeyError):  # it ended by force, or never used the GPU
        return RankPeaks(rank)
