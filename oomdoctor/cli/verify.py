"""`oomdoctor verify`: parse, call, render, exit code."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from oomdoctor.cli.probe import as_command
from oomdoctor.cli.probe_options import (
    QuietFlag,
    TrialTimeout,
)
from oomdoctor.cli.report import Format, HtmlFlag, JsonFlag, MarkdownFlag, Output, format_name, render, render_failure
from oomdoctor.errors import OomdoctorError


def verify(  # noqa: PLR0913 - one parameter an option
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET | -- COMMAND...",
            help="The file to verify: `model.py`, `pkg.module`, `model.py:build_model(layers=2)`, an example, or a "
            "model's name such as `timm:resnet18`. Or a training command with placeholders for both sizes: `-- python "
            "train.py --batch-size {micro_batch} --grad-accum {accumulation_steps}`.",
            show_default=False,
        ),
    ],
    *,
    parts: Annotated[int, typer.Option(help="Equal micro-batches that the batch is cut into.", min=2, max=64)] = 4,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Samples of the whole batch, a multiple of the parts. [default: two a part]", show_default=False
        ),
    ] = None,
    precision: Annotated[
        Literal["fp64", "fp32"] | None,
        typer.Option(
            help="Type that a file is computed in; fp32 for models that take nothing else. [default: fp64]",
            show_default=False,
        ),
    ] = None,
    trial_timeout: TrialTimeout = 300.0,
    form: Format = None,
    json: JsonFlag = False,
    markdown: MarkdownFlag = False,
    html: HtmlFlag = False,
    output: Output = None,
    quiet: QuietFlag = False,
) -> None:
    """Say whether accumulating micro-batches trains what the whole batch would."""
    from oomdoctor.output import check_writable
    from oomdoctor.report.progress import make_progress
    from oomdoctor.request import as_option
    from oomdoctor.verification.run import build_verify_request
    from oomdoctor.verification.run import verify as run_verify

    name = format_name(form, json=json, markdown=markdown, html=html, output=output)
    if output is not None:
        check_writable(output)
    progress = make_progress(quiet=quiet)
    try:
        command = as_command(target, verb="verify")
        request = build_verify_request(
            target[0] if command is None else command,
            parts=parts,
            samples=samples,
            precision=precision,
            trial_timeout=trial_timeout,
            spelled=as_option,
        )
        document = run_verify(request, progress)
    except OomdoctorError as error:
        render_failure("verify", error, name, output)
        raise
    finally:
        progress.close()
    render(document, name, output)
    raise typer.Exit(document.exit_code)
