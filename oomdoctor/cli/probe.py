"""`oomdoctor probe`: parse, call, render, exit code."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import typer

from oomdoctor.cli.report import Format, HtmlFlag, JsonFlag, MarkdownFlag, Output, format_name, render, render_failure
from oomdoctor.errors import EXIT_GATE, EXIT_OK, OomdoctorError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import Document


_DEFAULT_STEPS: Final = 3
"""As in `oomdoctor.request`, whose import would slow down `--help`; a test holds the two together."""


def as_command(words: Sequence[str], *, sets_literals: bool = False, verb: str = "probe") -> tuple[str, ...] | None:
    """Return the command that was given; None where the one word names a file.

    Args:
        words: What was given.
        sets_literals: Whether literals are to be set, which only a command has.
        verb: What is to be done with it, for the hint.

    Raises:
        UsageError: A file stands before a command.
    """
    if len(words) == 1 and "{micro_batch}" not in words[0] and not sets_literals:
        return None
    file, then = words[0], words[1:2]
    if len(words) > 1 and all(word.endswith(".py") and shutil.which(word) is None for word in words):
        given = ", ".join(f"`{word}`" for word in words)
        raise UsageError(f"several files are given: {given}", hint=f"{verb} one at a time")
    if file.endswith(".py") and shutil.which(file) is None and any(map(shutil.which, then)):
        message = f"a file, `{file}`, and a command, `{then[0]} ...`, are both given"
        raise UsageError(message, hint=f"{verb} one at a time")
    return tuple(words)


def check_target_options(
    command: Sequence[str] | None, for_commands: Mapping[str, bool], for_files: Mapping[str, object]
) -> None:
    """See that each option goes with what is probed.

    Args:
        command: The command that is probed; None for a file.
        for_commands: The options for commands alone, and whether they were given.
        for_files: The options for files alone, as given.

    Raises:
        UsageError: One does not.
    """
    if command is None:
        given = for_commands
        why, hint = "is for commands, and a file is probed", "a trial of a file takes two optimizer steps"
    else:
        given = {name: value is not None for name, value in for_files.items()}
        why, hint = "is for files, and a command is probed", "give the command the option of its own that says so"
    for option, is_given in given.items():
        if is_given:
            raise UsageError(f"`{option}` {why}", hint=f"drop it; {hint}")


TargetArgument: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="TARGET | -- COMMAND...",
        help="The file to probe: `model.py`, `pkg.module`, `model.py:build_model(depth=24)`, an example such as "
        "`gpt2`, or a model's name such as `timm:resnet50`. Or any training command with a placeholder where its batch "
        "size goes: `-- python train.py --batch-size {micro_batch} --grad-accum {accumulation_steps}`.",
        show_default=False,
    ),
]
TargetBatch: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="Samples per optimizer step over all devices; without it, steps of one micro-batch are asked about.",
        show_default=False,
    ),
]
WorldSize: TypeAlias = Annotated[
    int, typer.Option(help="Devices that share the target batch; for a launcher such as torchrun, ranks of the world.")
]
Rank: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--rank",
        metavar="RANKS",
        help="Ranks that run where `--world-size` is above the processes that a launcher such as torchrun starts, each "
        "alone on a null GPU: numbers, `first`, `last`, `all-distinct`. [default: all-distinct]",
        show_default=False,
    ),
]
MeshText: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--mesh",
        metavar="DIMENSIONS",
        help="Device mesh of these ranks, outermost dimension first, such as `pp=4,dp=8,tp=2`, instead of "
        "`--world-size`: what is not tensor, context or pipeline parallel shares the target batch.",
        show_default=False,
    ),
]
Parallel: TypeAlias = Annotated[
    Literal["ddp", "fsdp"] | None,
    typer.Option(
        "--parallel",
        help="How the ranks of a file's world share its model, where the file has no `parallelize(model, mesh)`: fsdp "
        "shards the repeated blocks and the root by `fully_shard`.",
        show_default=False,
    ),
]
Devices: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--devices",
        min=1,
        help="Devices of one process, over which `torch.nn.DataParallel` divides each batch of a file.",
        show_default=False,
    ),
]
Gpu: TypeAlias = Annotated[
    str | None, typer.Option(help="Card to ask about, such as rtx-4090; needs no GPU.", show_default=False)
]
Device: TypeAlias = Annotated[
    str | None, typer.Option(help="Index or UUID of a GPU of this machine.", show_default=False)
]
Memory: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory of the card in all, such as 16GiB; the CUDA context is taken off it.",
        show_default=False,
    ),
]
Capacity: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="What PyTorch may take of the card's memory, such as 15.5GiB.", show_default=False
    ),
]
Reserve: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory that others hold, a desktop or NCCL, such as 1GiB; PyTorch may not take it.",
        show_default=False,
    ),
]
PrecisionName: TypeAlias = Annotated[
    Literal["fp32", "bf16", "fp16"] | None,
    typer.Option(
        help="How the step of a file runs: fp32, or under autocast (fp16 with a gradient scaler). [default: fp32]",
        show_default=False,
    ),
]
OptimizerName: TypeAlias = Annotated[
    str | None, typer.Option(help="A torch.optim class, where the file builds none (AdamW).", show_default=False)
]
Headroom: TypeAlias = Annotated[str, typer.Option(help="Part of the capacity that the recommended size leaves free.")]
EngineName: TypeAlias = Annotated[
    Literal["auto", "cuda", "null", "trace"],
    typer.Option(help="Where trials run: the local GPU, a null GPU, or no GPU at all (trace)."),
]
TrialTimeout: TypeAlias = Annotated[
    float, typer.Option(help="Longest time a trial may take, in seconds.", min=1.0, max=604800.0)
]
DryRunFlag: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Load the file, run one trial at the smallest size, explain.")
]
SetLiterals: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FILE:NAME=VALUE",
        help="For a command whose batch size is a literal: set it in each trial, the file stays as it is. As in `--set "
        "'train.py:BATCH={micro_batch}'`; several times for several.",
        show_default=False,
    ),
]
Steps: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help=f"Optimizer steps after which a trial of a command is ended. [default: {_DEFAULT_STEPS}]",
        min=1,
        max=1_000_000,
        show_default=False,
    ),
]
CountSteps: TypeAlias = Annotated[
    Literal["optimizer", "backward"] | None,
    typer.Option(
        help="What a step of a command is: a step of an optimizer of torch, or a backward pass. [default: optimizer]",
        show_default=False,
    ),
]
FreshFlag: TypeAlias = Annotated[
    bool,
    typer.Option("--fresh", help="Start new Python processes for each trial of a command; fork none."),
]
GuideFlag: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--guide/--no-guide",
        help="On a real GPU, start the search of a file at the size that a trace predicts.",
    ),
]
At: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        metavar="NAME=SIZE",
        help="A size besides the batch: a keyword of the file's `make_batch`, such as `sequence_length=512`, or a "
        "placeholder of a command; several times for several.",
        show_default=False,
    ),
]
Over: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--over",
        metavar="NAME=SIZE,SIZE,...",
        help="Ask at each of several sizes besides the batch, such as `sequence_length=256,512,1024`; given twice, at "
        "each combination.",
        show_default=False,
    ),
]
Largest: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--largest",
        metavar="NAME",
        help="Find the largest value of that size at `--micro-batch`, instead of the largest micro-batch.",
        show_default=False,
    ),
]
MicroBatchSize: TypeAlias = Annotated[
    int | None,
    typer.Option("--micro-batch", help="Samples in one forward and backward, for `--largest`.", show_default=False),
]
MultipleOf: TypeAlias = Annotated[
    int | None,
    typer.Option("--multiple-of", help="Only multiples are tried, for `--largest`. [default: 1]", show_default=False),
]
UpTo: TypeAlias = Annotated[
    int | None, typer.Option("--up-to", help="Largest value that is tried, for `--largest`.", show_default=False)
]
BucketsFor: TypeAlias = Annotated[
    Literal["nemo", "lhotse", "json"] | None,
    typer.Option(
        "--buckets",
        help="With `--over`: train on all sizes in turn in one process as well, and print the lines that configure a "
        "sampler of buckets.",
        show_default=False,
    ),
]
FastestFlag: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--fastest",
        help="On a real GPU, time whole optimizer steps with smaller micro-batches too: is the largest the fastest?",
    ),
]
ModeName: TypeAlias = Annotated[
    Literal["train", "eval"] | None,
    typer.Option(
        "--mode",
        help="What is done with a file's model: train it, or evaluate it batch after batch without gradients, by the "
        "file's `evaluation_step(model, batch)` where it has one. [default: train]",
        show_default=False,
    ),
]
Jobs: TypeAlias = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Probes at once [default: one a core].", show_default=False),
]
ExecutorName: TypeAlias = Annotated[
    Literal["ray"] | None,
    typer.Option(help="Where several probes run: `ray` for the cores of a Ray cluster.", show_default=False),
]
QuietFlag: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]


def probe(  # noqa: PLR0913 - one parameter an option
    target: TargetArgument,
    target_batch: TargetBatch = None,
    *,
    world_size: WorldSize = 1,
    rank: Rank = None,
    mesh: MeshText = None,
    parallel: Parallel = None,
    devices: Devices = None,
    gpu: Gpu = None,
    device: Device = None,
    memory: Memory = None,
    capacity: Capacity = None,
    reserve: Reserve = None,
    precision: PrecisionName = None,
    optimizer: OptimizerName = None,
    headroom: Headroom = "5%",
    engine: EngineName = "auto",
    trial_timeout: TrialTimeout = 300.0,
    set: SetLiterals = None,  # noqa: A002 - as the option is called
    steps: Steps = None,
    count_steps: CountSteps = None,
    fresh: FreshFlag = False,
    guide: GuideFlag = True,
    at: At = None,
    over: Over = None,
    largest: Largest = None,
    micro_batch: MicroBatchSize = None,
    multiple_of: MultipleOf = None,
    up_to: UpTo = None,
    buckets: BucketsFor = None,
    fastest: FastestFlag = False,
    mode: ModeName = None,
    jobs: Jobs = None,
    executor: ExecutorName = None,
    dry_run: DryRunFlag = False,
    form: Format = None,
    json: JsonFlag = False,
    markdown: MarkdownFlag = False,
    html: HtmlFlag = False,
    output: Output = None,
    quiet: QuietFlag = False,
) -> None:
    """Find the largest micro-batch that fits, and the accumulation steps that reach the target batch."""
    from oomdoctor.axes import read_grid, read_sizes
    from oomdoctor.output import check_writable
    from oomdoctor.report.progress import make_progress
    from oomdoctor.request import as_option, build_request, build_searched
    from oomdoctor.trial.answer import document_of
    from oomdoctor.trial.probe import probe as run_probe

    # What a dry run explains is text, whatever the file is called.
    chosen = format_name(form, json=json, markdown=markdown, html=html, output=None if dry_run else output)
    if dry_run and chosen != "text":
        flag = f"--{chosen}" if form is None else f"--format {form}"
        raise UsageError("`--dry-run` explains in plain text", hint=f"drop `{flag}`")
    if output is not None:
        check_writable(output)
    progress = make_progress(quiet=quiet)
    try:
        command = as_command(target, sets_literals=bool(set))
        for_commands = {
            "--set": bool(set),
            "--steps": steps is not None,
            "--count-steps": count_steps is not None,
            "--fresh": fresh,
        }
        for_files = {
            "--precision": precision,
            "--optimizer": optimizer,
            "--parallel": parallel,
            "--devices": devices,
            "--mode": mode,
        }
        check_target_options(command, for_commands, for_files)
        build = partial(
            build_request,
            target[0] if command is None else command,
            target_batch=target_batch,
            world_size=world_size,
            ranks=rank,
            mesh=mesh,
            parallel=parallel,
            devices=devices,
            precision=precision,
            optimizer=optimizer,
            headroom=headroom,
            gpu=gpu,
            device=device,
            memory=memory,
            capacity=capacity,
            reserve=reserve,
            engine=engine,
            trial_timeout=trial_timeout,
            literals=set or (),
            steps=steps,
            count_steps=count_steps,
            fresh=fresh,
            guide=guide,
            fastest=fastest,
            mode=mode,
            spelled=as_option,
        )
        searched = build_searched(
            largest, micro_batch=micro_batch, multiple_of=multiple_of, up_to=up_to, spelled=as_option
        )
        given = read_sizes(at or (), "--at")
        if over or searched is not None or buckets is not None:
            from oomdoctor.multi_card.frontier import FrontierRequest, find_frontier

            for option, is_given in (("--dry-run", dry_run), ("--fastest", fastest)):
                if is_given:
                    hint = "drop `--over`, `--largest` and `--buckets`"
                    raise UsageError(f"`{option}` tries one question", hint=hint)
            with executor_called(executor, Path.cwd()) as elsewhere:
                sizes = read_grid(over or (), "--over")
                asked = FrontierRequest(build, given, sizes, searched, jobs, buckets, elsewhere)
                document: Document = find_frontier(asked, progress)
        elif executor is not None:
            raise UsageError("`--executor` is for many probes", hint="name sizes with `--over`")
        else:
            request = build(at=given)
            if dry_run:
                raise typer.Exit(_dry_run(request, progress, output))
            document = document_of(run_probe(request, progress))
    except OomdoctorError as error:
        render_failure("probe", error, chosen, output)
        raise
    finally:
        progress.close()
    render(document, chosen, output)
    raise typer.Exit(document.exit_code)


def executor_called(name: Literal["ray"] | None, directory: Path) -> AbstractContextManager[Executor | None]:
    """Return what `--executor` names, to which the files of a directory travel; of no name, None for this machine."""
    if name is None:
        return nullcontext()
    from oomdoctor.integrations.ray_executor import RayExecutor

    return RayExecutor(directory)


def _dry_run(request: ProbeRequest, progress: Progress, output: Path | None) -> int:
    from oomdoctor.output import deliver
    from oomdoctor.report.probe.text import render_dry_run
    from oomdoctor.trial.probe import dry_run

    tried = dry_run(request, progress)
    progress.close()
    deliver(render_dry_run(request.target, tried) + "\n", output)
    return EXIT_GATE if tried.trial is None else EXIT_OK
