"""`oomdoctor check`: parse, check, render, exit code."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import typer

from oomdoctor import __version__
from oomdoctor.cli.lint import ConfigFile, VerboseFlag
from oomdoctor.cli.probe import executor_called
from oomdoctor.cli.probe_options import (
    Capacity,
    Memory,
    QuietFlag,
    Reserve,
)
from oomdoctor.cli.report import Format, Help, HtmlFlag, JsonFlag, MarkdownFlag, Output, format_name, render, say
from oomdoctor.errors import EXIT_GATE, EXIT_NO_ANSWER, EXIT_OK, EXIT_USAGE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.check.runner import Check
    from oomdoctor.results import CheckDocument


Names: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Entries to run; without any, all of them.", show_default=False),
]
Gpus: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        metavar="CARD",
        help="Card to ask about instead of those in the configuration; may be given several times.",
        show_default=False,
    ),
]
Tolerance: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE",
        help="Share by which a figure may be worse than in the baseline, such as 5% [default: 2%].",
        show_default=False,
    ),
]
Jobs: TypeAlias = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Entries that run at once [default: one a core].", show_default=False),
]
ExecutorName: TypeAlias = Annotated[
    Literal["ray"] | None,
    typer.Option(
        help="Where entries run: `ray` for the cores of a Ray cluster, with `--no-cache`.", show_default=False
    ),
]
UpdateFlag: TypeAlias = Annotated[
    bool, typer.Option("--update", help="Write the results to the baseline; the limits still apply.")
]
NoCacheFlag: TypeAlias = Annotated[
    bool, typer.Option("--no-cache", help="Run every entry, even one that nothing has changed for.")
]


Status: TypeAlias = Literal["error", "no_answer", "failed", "passed"]

EXIT_CODES: Final[Mapping[Status, int]] = MappingProxyType(
    {"error": EXIT_USAGE, "no_answer": EXIT_NO_ANSWER, "failed": EXIT_GATE, "passed": EXIT_OK}
)
"""Exit code by verdict, the worst first: where not everything could be asked, the rest says less than it seems to."""


def check(  # noqa: PLR0913 - one parameter an option
    names: Names = None,
    *,
    gpu: Gpus = None,
    memory: Memory = None,
    capacity: Capacity = None,
    reserve: Reserve = None,
    tolerance: Tolerance = None,
    update: UpdateFlag = False,
    jobs: Jobs = None,
    executor: ExecutorName = None,
    no_cache: NoCacheFlag = False,
    config: ConfigFile = None,
    verbose: VerboseFlag = False,
    form: Format = None,
    json: JsonFlag = False,
    markdown: MarkdownFlag = False,
    html: HtmlFlag = False,
    output: Output = None,
    quiet: QuietFlag = False,
    _help: Help = False,
) -> None:
    """Check that models keep the limits in the configuration; on the cards that it names, without a GPU.

    The limits are in [[tool.oomdoctor.check]] of pyproject.toml, or in [[check]] of oomdoctor.toml.

    Exit code: 0 all limits hold, 1 one is broken, 2 configuration or a target, 3 no answer.
    """
    import os
    from pathlib import Path

    from oomdoctor.check.baseline.file import NAME
    from oomdoctor.check.cache import Cache, cache_folder
    from oomdoctor.check.entries import DEFAULTS, chosen_entries
    from oomdoctor.check.runner import CheckPlan
    from oomdoctor.check.runner import check as run_check
    from oomdoctor.config.check import configure_check
    from oomdoctor.config.schema import CheckKeys
    from oomdoctor.output import check_writable
    from oomdoctor.report.progress import CheckProgressLines
    from oomdoctor.trial.parallel import default_jobs

    chosen = format_name(form, json=json, markdown=markdown, html=html, output=output)
    if output is not None:
        check_writable(output)
    given = CheckKeys(
        gpus=tuple(gpu) if gpu else None,
        memory=memory,
        capacity=capacity,
        reserve=reserve,
        tolerance=tolerance,
        jobs=jobs,
    )
    configuration = configure_check(given, os.environ, config=config, defaults=DEFAULTS)
    plan = CheckPlan(
        configuration=configuration.file,
        entries=chosen_entries(configuration, names or []),
        baseline=str(Path(configuration.file).parent / NAME),
        update=update,
        is_whole=not names,
    )
    at_once = configuration.jobs or default_jobs(len(plan.entries))
    if verbose:
        say([*configuration.lines(), f"running at once: {at_once}"])
    # What a target used on another machine is nothing that this one could see change.
    kept_in = None if no_cache or executor is not None else cache_folder(Path(configuration.file), os.environ)
    cache = None if kept_in is None else Cache(kept_in, environment=os.environ)
    with executor_called(executor, Path(configuration.file).parent) as elsewhere:
        found = run_check(plan, CheckProgressLines(quiet=quiet), jobs=at_once, cache=cache, executor=elsewhere)
    document = document_of(found)
    render(document, chosen, output)
    raise typer.Exit(document.exit_code)


def document_of(found: Check) -> CheckDocument:
    """Return the document of a check, with its status and exit code: those of the worst verdict."""
    from oomdoctor.results import CheckDocument

    verdicts = {entry.verdict.value for entry in found.result.entries}
    worst = next(verdict for verdict in EXIT_CODES if verdict in verdicts)
    return CheckDocument(
        command="check",
        status=worst,
        exit_code=EXIT_CODES[worst],
        versions={"oomdoctor": __version__, **found.versions},
        result=found.result,
    )
