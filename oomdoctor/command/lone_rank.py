"""A rank of a command that runs alone: its words without the launcher, and what the launcher would set."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from oomdoctor.command.template import Sizes
from oomdoctor.errors import UsageError
from oomdoctor.results import NcclMemory
from oomdoctor.run.launcher import Launch, Mesh, launch_alone, parse_mesh, read_launch
from oomdoctor.search.probe_search import micro_steps, share_of

if TYPE_CHECKING:
    from oomdoctor.request import ProbeRequest


PUBLISHED_NCCL_BYTES: Final = (512 << 20, 6_000_000_000)
NCCL_SOURCES: Final = (
    "https://github.com/NVIDIA/nccl/issues/2363: 512 MiB for one rank on a B300",
    "https://github.com/NVIDIA/nccl/issues/964: 544 MB for a group of 2 and 688 MB for a larger one on A100s",
    "https://github.com/NVIDIA/nccl/issues/864: about 1.6 GB for the first communicator, 6 GB for three",
    "https://github.com/NVIDIA/nccl/issues/1685: 1.06 GB before and 4.34 GB after the first all-to-all on 8 H100s",
)


def mesh_of(request: ProbeRequest) -> Mesh:
    """Return the dimensions of a question's world; where nobody gave them, all its ranks are data-parallel.

    Raises:
        UsageError: They are none, or make another world than the one that was given.
    """
    return world_mesh(request.mesh, request.world_size)


def world_mesh(text: str | None, world_size: int) -> Mesh:
    """Return the dimensions of a world, as `mesh_of` does for a question.

    Args:
        text: The mesh, such as `dp=8,tp=8`; None for ranks that are all data-parallel.
        world_size: Number of ranks where no mesh says it.
    """
    if text is None:
        return Mesh({"dp": world_size})
    mesh = parse_mesh(text, "--mesh")
    if world_size not in (1, mesh.world_size):
        raise UsageError(
            f"`--mesh {text}` has {mesh.world_size} ranks, and `--world-size` says {world_size}",
            hint="drop `--world-size`: the mesh says it",
        )
    return mesh


def names_ranks(request: ProbeRequest) -> bool:
    """Return whether the question itself is about ranks of a file's world; else the file says it, by `parallelize`.

    Raises:
        UsageError: It is, and the world has one rank, or one process is to have several devices.
    """
    given = {"--rank": request.ranks, "--mesh": request.mesh, "--parallel": request.parallel}
    names = [name for name, value in given.items() if value is not None]
    if request.variant.devices > 1 and (names or request.world_size > 1):
        raise UsageError(
            f"`{[*names, '--world-size'][0]}` is about processes with a device each, and `--devices` about one process",
            hint="drop `--devices`: DistributedDataParallel takes `--world-size 4 --parallel ddp`",
        )
    if names and mesh_of(request).world_size == 1:
        hint = "give the world: `--world-size 64`, or `--mesh dp=8,tp=8`"
        raise UsageError(f"`{names[0]}` is of ranks that run alone, and the world has one", hint=hint)
    return bool(names)


def launch_of(request: ProbeRequest) -> Launch | None:
    """Return the launcher of a command that starts fewer ranks than the world has; None where all processes run.

    Raises:
        UsageError: Ranks or their mesh are named, and all of them run or nothing launches them.
    """
    world_size = mesh_of(request).world_size
    return launch_alone(request.command or (), world_size, request.ranks or request.mesh, os.environ)


def lone_words(request: ProbeRequest) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the words that a trial starts, with placeholders, and the variables that it has besides.

    Raises:
        UsageError: The launcher cannot say what it would start, or cannot divide the world into machines.
    """
    words, alone = request.command or (), request.variant.lone_rank
    launch = None if alone is None else read_launch(words, os.environ)
    if alone is None or launch is None:
        return words, {}
    variables = launch.variables(alone.rank, alone.world_size)
    return launch.command(int(variables["LOCAL_RANK"])), variables


def share_of_command(request: ProbeRequest) -> int | None:
    """Return samples per optimizer step on one device; None without a target batch, where nothing is accumulated.

    Raises:
        UsageError: As `oomdoctor.search.probe_search.share_of`; a lone rank's world needs no target.
    """
    if request.variant.lone_rank is not None and request.target_batch is None:
        return None
    return share_of(request.target_batch, request.world_size)


def sizes_of(request: ProbeRequest, size: int, steps: int) -> Sizes:
    """Return the sizes to fill into a command's words.

    Args:
        request: The question.
        size: The trial's: a micro-batch, or multiples of the size that is searched.
        steps: Accumulation steps.
    """
    alone, searched = request.variant.lone_rank, request.variant.searched
    world_size = request.world_size if alone is None else alone.world_size
    if searched is None:
        return Sizes(size, steps, world_size)
    return Sizes(searched.micro_batch, steps, world_size, (searched.name, size * searched.multiple_of))


def steps_of(request: ProbeRequest, size: int) -> int:
    """Return the micro-batches in each optimizer step of a trial of this size."""
    searched = request.variant.searched
    return micro_steps(size if searched is None else searched.micro_batch, share_of_command(request))


def nccl_memory(communicators: tuple[int, ...]) -> NcclMemory:
    """Return what is known of the memory of a rank's communicators."""
    return NcclMemory(communicators, PUBLISHED_NCCL_BYTES, NCCL_SOURCES)
