"""`oomdoctor prescribe`: parse, call, render, exit code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oomdoctor.cli.probe import as_command, check_target_options, executor_called
from oomdoctor.cli.probe_options import (
    At,
    Capacity,
    CountSteps,
    Device,
    EngineName,
    ExecutorName,
    Gpu,
    Headroom,
    Memory,
    OptimizerName,
    PrecisionName,
    QuietFlag,
    Reserve,
    SetLiterals,
    Steps,
    TargetBatch,
    TrialTimeout,
    WorldSize,
    one_card,
)
from oomdoctor.cli.report import Format, HtmlFlag, JsonFlag, MarkdownFlag, Output, format_name, render, render_failure
from oomdoctor.errors import OomdoctorError, UsageError

if TYPE_CHECKING:
    from oomdoctor.prescription.patching import PatchFile


def prescribe(  # noqa: PLR0913 - one parameter an option
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET | -- COMMAND...",
            help="The file: `model.py`, `pkg.module`, `model.py:build_model(layers=2)`, or an example such as `gpt2`. "
            "Or a training command, as `probe` takes it: `-- python train.py --batch-size {micro_batch}`.",
            show_default=False,
        ),
    ],
    target_batch: TargetBatch = None,
    *,
    need: Annotated[
        int | None,
        typer.Option(help="Micro-batch that is needed. [default: as large as can be]", min=1, show_default=False),
    ] = None,
    keep: Annotated[
        Literal["same", "rounding", "any"],
        typer.Option(help="What combinations have to keep: the same numbers, the same but for rounding, or anything."),
    ] = "rounding",
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Remedy to leave out; may be given several times.", show_default=False),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="ID",
            help="Remedy to measure, too: `freeze-half`, `lora`, `compile`, or one to combine, such as "
            "`offload-activations`; several times.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[int, typer.Option(help="Most probes in all.", min=1)] = 80,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Probes at once [default: one a core].", show_default=False),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Write the patched file there, once it is proven; a file that exists only with `--force`.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Let `--write` overwrite a file that exists, such as the target itself.")
    ] = False,
    executor: ExecutorName = None,
    world_size: WorldSize = 1,
    gpu: Gpu = None,
    device: Device = None,
    memory: Memory = None,
    capacity: Capacity = None,
    reserve: Reserve = None,
    precision: PrecisionName = None,
    optimizer: OptimizerName = None,
    headroom: Headroom = "5%",
    at: At = None,
    set: SetLiterals = None,  # noqa: A002 - as the option is called
    steps: Steps = None,
    count_steps: CountSteps = None,
    engine: EngineName = "auto",
    trial_timeout: TrialTimeout = 300.0,
    form: Format = None,
    json: JsonFlag = False,
    markdown: MarkdownFlag = False,
    html: HtmlFlag = False,
    output: Output = None,
    quiet: QuietFlag = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Print on stderr a roofline of each row: a model of the step's time."),
    ] = False,
) -> None:
    """Measure what each remedy against running out of memory gains, and write the patch that reaches what is needed."""
    from oomdoctor.output import check_writable
    from oomdoctor.prescription.run import PrescribeRequest
    from oomdoctor.prescription.run import prescribe as run_prescribe
    from oomdoctor.report.progress import make_progress
    from oomdoctor.request import as_option, build_request
    from oomdoctor.results.document import Interrupted

    chosen = format_name(form, json=json, markdown=markdown, html=html, output=output)
    if output is not None:
        check_writable(output)
    progress = make_progress(quiet=quiet)
    try:
        command = as_command(target, sets_literals=bool(set), verb="prescribe")
        for_commands = {"--set": bool(set), "--steps": steps is not None, "--count-steps": count_steps is not None}
        check_target_options(command, for_commands, {"--precision": precision, "--optimizer": optimizer})
        request = build_request(
            target[0] if command is None else command,
            target_batch=target_batch,
            world_size=world_size,
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
            at=at or (),
            guide=False,
            spelled=as_option,
        )
        written = _write_option(write, output, force=force)
        question = PrescribeRequest(
            request, need, keep, tuple(without or ()), tuple(beside or ()), budget, jobs, written
        )
        with executor_called(executor, Path.cwd()) as elsewhere:
            document = run_prescribe(replace(question, executor=elsewhere), progress)
    except OomdoctorError as error:
        render_failure("prescribe", error, chosen, output)
        raise
    except Interrupted as interrupt:
        progress.close()
        render(interrupt.document, chosen, output)
        raise
    finally:
        progress.close()
    render(document, chosen, output)
    patch = document.result.patch
    if write is not None and output is not None and (patch is None or patch.written is None):
        # The last warning says of a file that was not written why; without `-o` it is among the lines above.
        typer.echo(f"error: {document.result.warnings[-1]}", err=True)
    if verbose:
        from oomdoctor.report.roofline import roofline

        typer.echo("\n".join(roofline(document.result)), err=True)
    raise typer.Exit(document.exit_code)


def _write_option(write: Path | None, output: Path | None, *, force: bool) -> PatchFile | None:
    """Return where the patched file goes.

    Raises:
        UsageError: The report goes there as well, or nothing is written that could be forced.
    """
    from oomdoctor.prescription.patching import PatchFile

    if write is None:
        if force:
            raise UsageError("`--force` is for `--write`, which is not given", hint="name a file with `--write PATH`")
        return None
    if output is not None and output.resolve() == write.resolve():
        raise UsageError(f"`--write` and `--output` both name `{write}`", hint="give each a file of its own")
    return PatchFile(write, force)
