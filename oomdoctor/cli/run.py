"""`oomdoctor run`: start the command, wait, explain.

Options come before the command. The command begins at the first word that is no option, or after `--`, and from there
on nothing is taken for ours: `oomdoctor run --gpu rtx-4090 -- python train.py --memory 3` gives `--memory 3` to
`train.py`. A second `--` belongs to the command.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from oomdoctor.cli.probe_options import (
    Capacity,
    Device,
    Gpu,
    Memory,
    Rank,
    Reserve,
    one_card,
)
from oomdoctor.errors import EXIT_OK, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.run.run import CaughtOom, FinishedRun, RunRequest


RUN_SETTINGS: Final[dict[str, Any]] = {"allow_interspersed_args": False}
"""Context settings to register the command with: options end where the command begins."""

DEFAULT_MAX_ENTRIES: Final = 10_000

Command: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND...", help="The command, such as `python train.py --epochs 3`.", show_default=False
    ),
]
HistoryFlag: TypeAlias = Annotated[
    bool, typer.Option("--history/--no-history", help="Record where memory is taken, for the snapshot.")
]
MaxEntries: TypeAlias = Annotated[
    int, typer.Option(help="Events of the memory history to keep in each process.", min=1, max=100_000_000)
]
Directory: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="DIR", help="Directory for reports [default: oomdoctor-<time>].", show_default=False
    ),
]


WorldSize: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="Ranks of the world. Where a launcher such as torchrun starts fewer, one process for each `--rank` takes "
        "its place, alone on a null GPU.",
        min=1,
        show_default=False,
    ),
]


class CommandExit(SystemExit):
    """Exit of the command; the code is the command's own."""


def run(  # noqa: PLR0913 - one parameter an option
    command: Command = None,
    *,
    world_size: WorldSize = None,
    rank: Rank = None,
    gpu: Gpu = None,
    device: Device = None,
    memory: Memory = None,
    capacity: Capacity = None,
    reserve: Reserve = None,
    history: HistoryFlag = True,
    max_entries: MaxEntries = DEFAULT_MAX_ENTRIES,
    output: Directory = None,
) -> None:
    """Run a command unchanged, and say why where it runs out of memory.

    Its streams, its signals and its exit code are passed through; where it succeeds nothing is added.
    """
    from oomdoctor.run.environment import CommandDevice as ShownDevice
    from oomdoctor.run.run import RunRequest as Request
    from oomdoctor.run.run import run as run_command
    from oomdoctor.units import parse_size

    if not command:
        raise UsageError("there is no command to run", hint="for example `oomdoctor run -- python train.py`")
    if memory is not None and capacity is not None:
        raise UsageError("`--memory` and `--capacity` exclude each other", hint="give one of them")
    memory_bytes = None if capacity is None else parse_size(capacity, option="--capacity")
    card_bytes = None if memory is None else parse_size(memory, option="--memory")
    reserve_bytes = 0 if reserve is None else parse_size(reserve, option="--reserve")
    card = one_card(gpu)
    given = {"--gpu": card, "--device": device, "--memory": memory, "--capacity": capacity, "--reserve": reserve}
    given |= {"--world-size": None if world_size is None else str(world_size), "--rank": rank}
    options = tuple(word for name, value in given.items() if value is not None for word in (name, value))
    request = Request(
        command=command,
        device=ShownDevice(card, device, memory_bytes, card_bytes, reserve_bytes, options),
        max_entries=max_entries if history else 0,
        directory=output,
        world_size=world_size,
        ranks=rank,
    )
    finished = run_command(request) if world_size is None and rank is None else _run_ranks(request)
    _tell_ranks(finished, world_size)
    if finished.exit_code != EXIT_OK:
        _explain(finished, command)
    raise CommandExit(finished.exit_code)


def _run_ranks(request: RunRequest) -> FinishedRun:
    """Run ranks, with a folder for what they leave to each other, which goes however this process ends."""
    from oomdoctor.command.trial import SocketDirectory
    from oomdoctor.run.run import run as run_command

    with closing(SocketDirectory()) as objects:
        return run_command(replace(request, objects=objects.path))


def _tell_ranks(finished: FinishedRun, world_size: int | None) -> None:
    """Say on stderr what each rank needed that ran alone."""
    from oomdoctor.units import format_size

    for each in finished.ranks:
        told = "did not say what it needed"
        if each.peak_allocated_bytes is not None and each.peak_reserved_bytes is not None:
            allocated, reserved = format_size(each.peak_allocated_bytes), format_size(each.peak_reserved_bytes)
            groups = ", ".join(map(str, each.communicators)) or "none"
            told = f"peak {allocated} allocated, {reserved} reserved; NCCL communicators, not counted: {groups}"
        typer.echo(f"oomdoctor: rank {each.rank} of {world_size}: {told}", err=True)


def _explain(finished: FinishedRun, command: Sequence[str]) -> None:
    """Say on stderr why the command ended, after all that it printed itself."""
    if finished.notice is not None:
        typer.echo(f"\noomdoctor: {finished.notice.message}\n\nhint: {finished.notice.hint}", err=True)
    if finished.reports:
        _diagnose(finished.reports, command)
    elif finished.caught is not None:
        _tell_caught(finished.caught, finished.exit_code)
    for report in finished.reports:
        typer.echo(f"oomdoctor: the report is in {_shown(report)}", err=True)


def _tell_caught(oom: CaughtOom, exit_code: int) -> None:
    """Say on stderr that memory ran out where the program caught that, so that there is no error to diagnose."""
    from oomdoctor.units import format_size

    tried, free, total = map(format_size, (oom.tried_bytes, oom.free_bytes, oom.total_bytes))
    typer.echo(
        f"\noomdoctor: GPU memory ran out ({tried} asked for, {free} of {total} free); the program caught the error, "
        f"finished no optimizer step after it, and ended with exit code {exit_code}\n\n"
        "hint: for a report and the diagnosis, let the error pass, or `raise` it again where it is caught",
        err=True,
    )


def _diagnose(reports: Sequence[Path], command: Sequence[str]) -> None:
    """Print the diagnosis of what the processes left, as `oomdoctor diagnose DIRECTORY` would."""
    from oomdoctor.cli.diagnose import document_of
    from oomdoctor.diagnose.diagnose import diagnose
    from oomdoctor.diagnose.sources import sources
    from oomdoctor.output import Terminal, deliver
    from oomdoctor.report import render
    from oomdoctor.run.run import files_of

    files = [str(_shown(path)) for report in reports for path in files_of(report)]
    document = document_of(diagnose(sources(files), command))
    typer.echo("", err=True)
    deliver(render(document, "text", Terminal.of(sys.stderr)), stdout=sys.stderr)


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
