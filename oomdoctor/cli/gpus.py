"""`oomdoctor gpus`: the catalogue, the local GPUs, or what fits each card."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oomdoctor.cli.probe import executor_called
from oomdoctor.cli.probe_options import (
    At,
    CacheName,
    EvalBatch,
    ExecutorName,
    Headroom,
    Largest,
    MicroBatchSize,
    ModeName,
    MultipleOf,
    NewTokens,
    OptimizerName,
    Over,
    PrecisionName,
    Prompt,
    QuietFlag,
    Reserve,
    TargetBatch,
    TrialTimeout,
    UpTo,
    WithEvalFlag,
    WorldSize,
)
from oomdoctor.cli.report import (
    Format,
    Help,
    HtmlFlag,
    JsonFlag,
    MarkdownFlag,
    Output,
    format_name,
    own_versions,
    plain_document,
    render,
)
from oomdoctor.errors import EXIT_NO_ANSWER, EXIT_OK, EXIT_USAGE, NoAnswerError, UsageError
from oomdoctor.output import MAXIMUM_WIDTH, Terminal, deliver, is_terminal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.multi_card.frontier import FrontierRequest
    from oomdoctor.results import FitDocument


def gpus(  # noqa: PLR0913 - one parameter an option
    *,
    known: Annotated[
        bool, typer.Option("--known", help="List the cards that `--gpu` knows instead of the GPUs of this machine.")
    ] = False,
    fit: Annotated[
        str | None,
        typer.Option(
            "--fit",
            metavar="TARGET",
            help="Say what fits each card that `--gpu` knows: a file to probe, or an example's name such as `gpt2`.",
            show_default=False,
        ),
    ] = None,
    target_batch: TargetBatch = None,
    world_size: WorldSize = 1,
    precision: PrecisionName = None,
    optimizer: OptimizerName = None,
    headroom: Headroom = "5%",
    reserve: Reserve = None,
    engine: Annotated[
        Literal["trace", "null"],
        typer.Option(help="How `--fit` answers: traced, in seconds, or by a probe of each card on a null GPU."),
    ] = "trace",
    trial_timeout: TrialTimeout = 300.0,
    at: At = None,
    over: Over = None,
    largest: Largest = None,
    micro_batch: MicroBatchSize = None,
    multiple_of: MultipleOf = None,
    up_to: UpTo = None,
    mode: ModeName = None,
    prompt: Prompt = None,
    new_tokens: NewTokens = None,
    cache: CacheName = None,
    with_eval: WithEvalFlag = False,
    eval_batch: EvalBatch = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CARD",
            help="Card for `--fit` to ask about instead of all; may be given several times.",
            show_default=False,
        ),
    ] = None,
    executor: ExecutorName = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="Cards that `--fit --engine null` probes at once [default: one a core].",
            show_default=False,
        ),
    ] = None,
    form: Format = None,
    json: JsonFlag = False,
    markdown: MarkdownFlag = False,
    html: HtmlFlag = False,
    output: Output = None,
    quiet: QuietFlag = False,
    _help: Help = False,
) -> None:
    """Show this machine's GPUs and who holds their memory, the catalogue of known cards, or what fits each of them."""
    chosen = format_name(form, json=json, markdown=markdown, html=html, output=output)
    if fit is not None:
        if known:
            raise UsageError("`--fit` and `--known` exclude each other", hint="`--fit` asks about every known card")
        from oomdoctor.axes import read_grid, read_sizes
        from oomdoctor.multi_card.frontier import FrontierRequest
        from oomdoctor.request import as_option, build_request, build_searched

        build = partial(
            build_request,
            fit,
            target_batch=target_batch,
            world_size=world_size,
            precision=precision,
            optimizer=optimizer,
            headroom=headroom,
            reserve=reserve,
            trial_timeout=trial_timeout,
            engine=engine,
            mode=mode,
            prompt=prompt,
            new_tokens=new_tokens,
            cache=cache,
            with_eval=with_eval,
            eval_batch=eval_batch,
            spelled=as_option,
        )
        sizes = read_sizes(at or (), "--at"), read_grid(over or (), "--over")
        searched = build_searched(
            largest, micro_batch=micro_batch, multiple_of=multiple_of, up_to=up_to, spelled=as_option
        )
        with executor_called(executor, Path.cwd()) as elsewhere:
            asked = FrontierRequest(build, *sizes, searched, jobs=jobs, executor=elsewhere)
            document = _fitted(asked, gpu, output, quiet=quiet)
        render(document, chosen, output)
        raise typer.Exit(document.exit_code)
    given = {"--target-batch": target_batch, "--gpu": gpu, "--jobs": jobs, "--output": output, "--reserve": reserve}
    given |= {"--executor": executor, "--mode": mode, "--prompt": prompt, "--new-tokens": new_tokens, "--cache": cache}
    given |= {"--with-eval": with_eval or None, "--eval-batch": eval_batch}
    given |= {"--largest": largest, "--micro-batch": micro_batch, "--multiple-of": multiple_of, "--up-to": up_to}
    _check_for_fit(chosen, {**given, "--at": at, "--over": over})
    if known:
        _show_catalogue(as_json=chosen == "json")
    else:
        _show_local(as_json=chosen == "json")


def _check_for_fit(form: str, options: Mapping[str, object]) -> None:
    """See that nothing is asked for that only `--fit` has."""
    for option, value in options.items():
        if value is not None:
            raise UsageError(f"`{option}` is for `--fit`, which names what is to be trained", hint="add `--fit TARGET`")
    if form not in ("text", "json"):
        raise UsageError(f"`{form}` is a format of `--fit` alone", hint="the cards have text and JSON: `--json`")


def _show_catalogue(*, as_json: bool) -> None:
    from oomdoctor.engines.catalogue import all_cards

    cards = all_cards()
    if as_json:
        from oomdoctor.codec import encode

        rows = [
            {
                **_object(encode(card)),
                "compute_capability": ".".join(map(str, card.compute_capability)),
                "capacity_bytes": card.capacity_bytes,
            }
            for card in cards
        ]
        deliver(plain_document("gpus", "known", EXIT_OK, {"cards": rows}))
        return
    from oomdoctor.report.gpus import render_cards

    deliver(render_cards(cards, _terminal()))


def _fitted(request: FrontierRequest, gpu: Sequence[str] | None, output: Path | None, *, quiet: bool) -> FitDocument:
    """Return what fits each card of these names, each once; each that is known where none is named."""
    from oomdoctor.engines.catalogue import all_cards, find_card
    from oomdoctor.multi_card.fit_sizes import fit_sizes
    from oomdoctor.multi_card.frontier import questions
    from oomdoctor.output import check_writable
    from oomdoctor.report.progress import make_progress
    from oomdoctor.results import FitDocument

    cards = (
        list({card.key: card for card in (find_card(name, has_memory=False) for name in gpu)}.values())
        if gpu
        else all_cards()
    )
    reserve_bytes = questions(request)[0][1].reserve_bytes
    cards = [_reserved(card.with_loading(os.environ), reserve_bytes) for card in cards]
    if output is not None:
        check_writable(output)
    progress = make_progress(quiet=quiet)
    try:
        found = fit_sizes(request, cards, progress)
    finally:
        progress.close()
    versions = {**own_versions(), **found.versions}
    if any(card.micro_batch.limited_by == "unknown" for card in found.result.cards):
        return FitDocument("gpus", "incomplete", EXIT_USAGE, versions, found.result)
    return FitDocument("gpus", "fitted", EXIT_OK, versions, found.result)


def _reserved(card: Card, reserve_bytes: int) -> Card:
    try:
        return card.with_reserve(reserve_bytes)
    except UsageError as error:
        hint = "lower it, or name with `--gpu` the cards that have more"
        raise UsageError(f"{card.key}: {error.message}", hint=hint) from None


def _show_local(*, as_json: bool) -> None:
    from oomdoctor.engines.monitor import read_gpus

    try:
        reading = read_gpus()
    except NoAnswerError as error:
        if as_json:
            notes = (error.details or "").splitlines()
            deliver(plain_document("gpus", "no_gpu", EXIT_NO_ANSWER, {"gpus": [], "notes": notes}))
        raise
    if as_json:
        from oomdoctor.codec import encode

        deliver(plain_document("gpus", "read", EXIT_OK, _object(encode(reading))))
        return
    from oomdoctor.report.gpus import render_reading

    deliver(render_reading(reading, _terminal()))
    for note in reading.notes:
        typer.echo(f"note: {note}", err=True)


def _terminal() -> Terminal:
    """Return the terminal of stdout; a pipe or a file has room for every column, unless `COLUMNS` says otherwise."""
    terminal = Terminal.of(sys.stdout)
    boundless = not is_terminal(sys.stdout) and "COLUMNS" not in os.environ
    return replace(terminal, width=MAXIMUM_WIDTH) if boundless else terminal


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError(type(value))
    return value
