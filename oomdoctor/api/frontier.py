"""`oomdoctor probe --over` and `--largest` as a function."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypedDict

from oomdoctor.axes import read_grid, read_sizes
from oomdoctor.multi_card.frontier import FrontierRequest, find_frontier
from oomdoctor.option_values import by_parameters
from oomdoctor.progress import SilentProgress
from oomdoctor.request import build_request, build_searched

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Executor
    from typing import Unpack

    from oomdoctor.progress import Progress
    from oomdoctor.request import EngineName
    from oomdoctor.results import BucketFormat, FrontierDocument, Precision
    from oomdoctor.results.variant import Mode


class ProbeOptions(TypedDict, total=False):
    """Options of `oomdoctor.probe`, each with the meaning that it has there."""

    target_batch: int | None
    world_size: int
    gpu: str | None
    device: int | str | None
    memory: int | str | None
    capacity: int | str | None
    reserve: int | str | None
    precision: Precision
    optimizer: str | None
    headroom: float | str
    engine: EngineName
    trial_timeout: float
    steps: int | None
    count_steps: str | None
    fresh: bool
    mesh: str | None
    parallel: str | None
    devices: int | None
    mode: Mode
    with_eval: bool
    eval_batch: int | None


@by_parameters
def frontier(  # noqa: PLR0913 - one parameter an option
    target: str | os.PathLike[str] | Sequence[str],
    *,
    over: Mapping[str, Sequence[int]] | Sequence[str] = (),
    largest: str | None = None,
    micro_batch: int | None = None,
    multiple_of: int | None = None,
    up_to: int | None = None,
    at: Mapping[str, int] | Sequence[str] = (),
    buckets: BucketFormat | None = None,
    set: Sequence[str] = (),  # noqa: A002 - as the option is called
    rank: str | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
    **options: Unpack[ProbeOptions],
) -> FrontierDocument:
    """Find what fits at each of several sizes besides the batch, such as sequence lengths.

        cells = frontier("model.py", over={"sequence_length": [512, 1024]}, gpu="rtx-4090").result.cells

    Args:
        target: As of `oomdoctor.probe`.
        over: Values of each size that is varied; of several, every combination is asked about.
        largest: A size whose largest value is looked for at `micro_batch`, instead of the largest micro-batch.
        micro_batch: Samples in one forward and backward, for `largest`.
        multiple_of: Only multiples are tried, for `largest`; None for every number.
        up_to: Largest value that is tried, for `largest`; None for no bound.
        at: Sizes that every cell has.
        buckets: Also train on all cells in turn, and write them for this tool: `nemo`, `lhotse` or `json`.
        set: Literals of a command's own files to set, with the placeholders of the sizes.
        rank: Ranks of a file's world, or that a command's launcher does not start.
        jobs: Most probes at once; None for one a core.
        executor: Runs the probes elsewhere, such as `oomdoctor.integrations.ray_executor.RayExecutor`; None for here.
        progress: Told of each cell; None for silence.
        options: The options of `oomdoctor.probe` of the same names.

    Returns:
        The document that the command writes with `--json`.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The user's file is at fault in every cell.
        NoAnswerError: No device, a crash, or a time limit.
    """
    searched = build_searched(largest, micro_batch=micro_batch, multiple_of=multiple_of, up_to=up_to)
    build = partial(build_request, target, literals=set, ranks=rank, **options)
    command = target if isinstance(target, list | tuple) else None
    request = FrontierRequest(build, read_sizes(at), read_grid(over), searched, jobs, buckets, executor, command)
    return find_frontier(request, progress or SilentProgress())
