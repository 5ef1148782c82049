"""A command from start to end, and what there is to explain after it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.running.environment import Device, make_environment
from oomdoctor.running.files import ReportDirectory
from oomdoctor.running.host_memory import read_host_memory
from oomdoctor.running.kills import Notice, explain_kill
from oomdoctor.running.process import run_process

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run.

    Attributes:
        command: The program and its arguments.
        device: The GPU to show it.
        max_entries: Events of the memory history to keep; 0 for no history.
        directory: Where reports go; None for a new name in the working directory.
    """

    command: Sequence[str]
    device: Device
    max_entries: int
    directory: Path | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """How it went.

    Attributes:
        exit_code: The command's, as a shell gives it.
        reports: Directories of reports, one for each process that ran out of memory, first one first.
        notice: What to tell where the kernel ended the command.
    """

    exit_code: int
    reports: tuple[Path, ...] = ()
    notice: Notice | None = None


def run(request: RunRequest) -> Finished:
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
    ending = run_process(request.command, environment)
    if ending.exit_code == os.EX_OK:
        directory.discard()
        return Finished(ending.exit_code)
    directory.tidy()
    return Finished(ending.exit_code, tuple(directory.reports()), explain_kill(ending, before, read_host_memory()))
