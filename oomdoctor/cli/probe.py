"""`oomdoctor probe`: parse, call, render, exit code."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from oomdoctor.cli.probe_options import (
    At,
    BucketsFor,
    CacheName,
    Capacity,
    CountSteps,
    Device,
    Devices,
    DryRunFlag,
    EngineName,
    EvalBatch,
    ExecutorName,
    FastestFlag,
    FreshFlag,
    Gpu,
    GuideFlag,
    Headroom,
    Jobs,
    Largest,
    Memory,
    MeshText,
    MicroBatchSize,
    ModeName,
    MultipleOf,
    NewTokens,
    OptimizerName,
    Over,
    Parallel,
    PrecisionName,
    Prompt,
    QuietFlag,
    Rank,
    Reserve,
    SetLiterals,
    Steps,
    TargetArgument,
    TargetBatch,
    TrialTimeout,
    UpTo,
    WithEvalFlag,
    WorldSize,
    one_card,
)
from oomdoctor.cli.report import Format, HtmlFlag, JsonFlag, MarkdownFlag, Output, format_name, render, render_failure
from oomdoctor.errors import EXIT_GATE, EXIT_OK, OomdoctorError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import Document


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
    prompt: Prompt = None,
    new_tokens: NewTokens = None,
    cache: CacheName = None,
    with_eval: WithEvalFlag = False,
    eval_batch: EvalBatch = None,
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
    from oomdoctor.results.document import Interrupted
    from oomdoctor.trial.probe import probe_document

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
            "--prompt": prompt,
            "--new-tokens": new_tokens,
            "--cache": cache,
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
            gpu=one_card(gpu),
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
            prompt=prompt,
            new_tokens=new_tokens,
            cache=cache,
            with_eval=with_eval,
            eval_batch=eval_batch,
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
                asked = FrontierRequest(build, given, sizes, searched, jobs, buckets, elsewhere, command)
                document: Document = find_frontier(asked, progress)
        elif executor is not None:
            raise UsageError("`--executor` is for many probes", hint="name sizes with `--over`")
        elif dry_run:
            raise typer.Exit(_dry_run(build(at=given), progress, output))
        else:
            document = probe_document(build(at=given), progress)
    except OomdoctorError as error:
        render_failure("probe", error, chosen, output)
        raise
    except Interrupted as interrupt:
        progress.close()
        render(interrupt.document, chosen, output)
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
