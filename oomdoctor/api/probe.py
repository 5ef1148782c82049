"""`oomdoctor probe` as functions: the question of one size, and those of `--over` and `--largest`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypedDict

from oomdoctor.axes import read_grid, read_sizes
from oomdoctor.multi_card.frontier import FrontierRequest, find_frontier
from oomdoctor.option_values import by_parameters
from oomdoctor.progress import SilentProgress
from oomdoctor.request import DEFAULT_HEADROOM, DEFAULT_TRIAL_TIMEOUT_SECONDS, build_request, build_searched
from oomdoctor.trial.probe import probe_document

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Executor
    from typing import Unpack

    from oomdoctor.progress import Progress
    from oomdoctor.request import EngineName
    from oomdoctor.results import BucketFormat, FrontierDocument, Precision, ProbeDocument
    from oomdoctor.results.variant import CacheKind, Mode


@by_parameters
def probe(  # noqa: PLR0913 - one parameter an option
    target: str | os.PathLike[str] | Sequence[str],
    *,
    target_batch: int | None = None,
    world_size: int = 1,
    gpu: str | None = None,
    device: int | str | None = None,
    memory: int | str | None = None,
    capacity: int | str | None = None,
    reserve: int | str | None = None,
    precision: Precision = "fp32",
    optimizer: str | None = None,
    headroom: float | str = DEFAULT_HEADROOM,
    engine: EngineName = "auto",
    trial_timeout: float = DEFAULT_TRIAL_TIMEOUT_SECONDS,
    set: Sequence[str] = (),  # noqa: A002 - as the option is called
    steps: int | None = None,
    count_steps: str | None = None,
    fresh: bool = False,
    guide: bool = True,
    at: Mapping[str, int] | Sequence[str] = (),
    rank: str | None = None,
    mesh: str | None = None,
    parallel: str | None = None,
    fastest: bool = False,
    devices: int | None = None,
    mode: Mode = "train",
    prompt: int | None = None,
    new_tokens: int | None = None,
    cache: CacheKind | None = None,
    with_eval: bool = False,
    eval_batch: int | None = None,
    progress: Progress | None = None,
) -> ProbeDocument:
    """Find the largest micro-batch that fits, and the accumulation steps that reach the target batch.

    The trials run in a process of their own; this one needs neither torch nor a GPU.

        plan = probe("model.py", target_batch=256, gpu="rtx-4090").plan

    Args:
        target: The file to probe: `model.py`, `pkg.module`, `model.py:build_model(depth=24)`, or an example's name. Or
            a command, as a list of words with `{micro_batch}` in one of them, or in `set`.
        target_batch: Samples per optimizer step over all devices; None for the largest micro-batch of a plain step,
            which accumulates nothing.
        world_size: Devices that share the target batch.
        gpu: Card to ask about, such as `rtx-4090`; needs no GPU. None for the GPU of this machine.
        device: Index or UUID of a GPU of this machine.
        memory: Memory of the card in all, from which the CUDA context goes: bytes, or a size such as `16GiB`.
        capacity: What PyTorch may take, given in the same way; instead of `memory`.
        reserve: Memory that others hold, a desktop or NCCL, given in the same way; PyTorch may not take it.
        precision: How the step runs: `fp32`, or under autocast as `bf16` or `fp16` (with a gradient scaler).
        optimizer: A `torch.optim` class, where the file builds none; None for AdamW.
        headroom: Part of the capacity that the recommended size leaves free: a number in [0, 1), or `5%`.
        engine: `auto`, `cuda` for the local GPU, `null` for a null GPU, or `trace` for no GPU at all.
        trial_timeout: Longest time that a trial may take, in seconds.
        set: Literals of a command's own files to set, such as `train.py:BATCH={micro_batch}`; no file is changed.
        steps: Optimizer steps after which a trial of a command is ended; None for 3.
        count_steps: What such a step is: `optimizer`, a step of an optimizer of torch, or `backward`, a backward pass.
        fresh: Whether each trial of a command starts its Pythons anew.
        guide: Whether the search on a real GPU begins at the size that a trace of a file's step foretells.
        at: Sizes besides the batch: keywords of the file's `make_batch`, such as `{"sequence_length": 512}`, or
            placeholders of a command.
        rank: Ranks of a file's world, or that a command's launcher does not start: numbers, `first`, `last`,
            `all-distinct`.
        mesh: Dimensions of that world's device mesh, outermost first, such as `dp=8,tp=4`.
        parallel: How a file's model is parallelised, where it has no `parallelize(model, mesh)`: `ddp` or `fsdp`.
        fastest: Whether whole optimizer steps of several sizes are timed as well, on a real GPU; see
            `result.throughput`.
        devices: Devices of one process, over which `torch.nn.DataParallel` divides each batch of a file.
        mode: What is done with a file's model: `train` it, `eval` it batch after batch without gradients, or `generate`
            tokens with it, as a decoder of transformers does.
        prompt: Tokens of each sample's prompt, where the mode is `generate`.
        new_tokens: Tokens that are generated for each sample.
        cache: How keys and values are kept: `dynamic`, which grows with each token, or `static`, of the full length;
            None for `dynamic`.
        with_eval: Whether an evaluation comes between the training steps of a file: by its `evaluation_step`, or its
            training step without gradients.
        eval_batch: Samples in each batch of that evaluation; None for as many as the training has.
        progress: Told of each stage and trial; None for silence.

    Returns:
        The document that the command writes with `--json`; `.plan` is its accumulation plan.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The user's file is at fault.
        NoAnswerError: No device, a crash, or a time limit.
        KeyboardInterrupt: Somebody interrupted; its `document`, where it has one, has the answer.
    """
    request = build_request(
        target,
        target_batch=target_batch,
        world_size=world_size,
        precision=precision,
        optimizer=optimizer,
        headroom=str(headroom),
        gpu=gpu,
        device=device,
        memory=memory,
        capacity=capacity,
        reserve=reserve,
        engine=engine,
        trial_timeout=trial_timeout,
        literals=set,
        steps=steps,
        count_steps=count_steps,
        fresh=fresh,
        guide=guide,
        at=at,
        ranks=rank,
        mesh=mesh,
        parallel=parallel,
        fastest=fastest,
        devices=devices,
        mode=mode,
        prompt=prompt,
        new_tokens=new_tokens,
        cache=cache,
        with_eval=with_eval,
        eval_batch=eval_batch,
    )
    return probe_document(request, progress or SilentProgress())


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
