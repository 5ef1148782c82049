"""`oomdoctor init`: parse, call, render, exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from oomdoctor.cli.probe_options import (
    QuietFlag,
)
from oomdoctor.cli.report import Output

_TIMEOUT_SECONDS: Final = 300.0


def init(
    target: Annotated[
        str,
        typer.Argument(
            metavar="SHORTHAND | SCRIPT",
            help="`timm:resnet50`, `torchvision:resnet50`, `hf:DIRECTORY_OR_ID`, `lightning:package.Module`, each with "
            "keywords such as `timm:resnet50(image_size=288)`; or a training script, which is read and not run.",
            show_default=False,
        ),
    ],
    *,
    output: Output = None,
    quiet: QuietFlag = False,
) -> None:
    """Write the file that a model's name stands for, or one for a training script."""
    from oomdoctor.output import check_writable, deliver
    from oomdoctor.report.progress import make_progress

    if output is not None:
        check_writable(output)
    progress = make_progress(quiet=quiet)
    try:
        progress.stage(f"writing a target for {target}")
        source = _source(target)
    finally:
        progress.close()
    deliver(source, output)


def _source(target: str) -> str:
    from oomdoctor.target.from_script import target_of_script
    from oomdoctor.target.reference import read_shorthand

    if read_shorthand(target.strip()) is None:
        return target_of_script(Path(target))
    return _generated(target)


def _generated(target: str) -> str:
    """Have a worker without a GPU write the file: what the library is asked for may run any of its code."""
    import os

    from oomdoctor.target.reference import parse_reference
    from oomdoctor.trial.protocol import WriteTarget
    from oomdoctor.trial.worker_process import WorkerProcess

    reference = parse_reference(target, directory=Path.cwd())
    with WorkerProcess({**os.environ, "CUDA_VISIBLE_DEVICES": ""}) as worker:
        what = f"writing a target for `{target}`"
        return worker.ask(WriteTarget(reference), what=what, timeout_seconds=_TIMEOUT_SECONDS).source
