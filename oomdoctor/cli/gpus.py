"""`oomdoctor gpus`: the catalogue, the local GPUs, or what fits each card."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oomdoctor import __version__
from oomdoctor.cli.options import Help, JsonFlag
from oomdoctor.cli.probe import (
    Headroom,
    OptimizerName,
    PrecisionName,
    QuietFlag,
    TargetBatch,
    TrialTimeout,
    WorldSize,
)
from oomdoctor.errors import EXIT_NO_ANSWER, EXIT_OK, NoAnswerError, UsageError
from oomdoctor.output import MAXIMUM_WIDTH, Terminal, deliver, is_terminal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.request import ProbeRequest


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
    engine: Annotated[
        Literal["trace", "null"],
        typer.Option(help="How `--fit` answers: traced, in seconds, or by a probe of each card on a null GPU."),
    ] = "trace",
    trial_timeout: TrialTimeout = 300.0,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    _help: Help = False,
) -> None:
    """Show this machine's GPUs and who holds their memory, the catalogue of known cards, or what fits each of them."""
    if fit is not None:
        if known:
            raise UsageError("`--fit` and `--known` exclude each other", hint="`--fit` asks about every known card")
        from oomdoctor.request import as_option, build_request

        request = build_request(
            fit,
            target_batch=target_batch,
            world_size=world_size,
            precision=precision,
            optimizer=optimizer,
            headroom=headroom,
            trial_timeout=trial_timeout,
            engine=engine,
            spelled=as_option,
        )
        _show_fits(request, as_json=as_json, quiet=quiet)
    elif target_batch is not None:
        raise UsageError(
            "`--target-batch` is for `--fit`, which names what is to be trained", hint="add `--fit TARGET`"
        )
    elif known:
        _show_catalogue(as_json=as_json)
    else:
        _show_local(as_json=as_json)


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
        deliver(_document("known", EXIT_OK, {"cards": rows}))
        return
    from oomdoctor.report.gpus import render_cards

    deliver(render_cards(cards, _terminal()))


def _show_fits(request: ProbeRequest, *, as_json: bool, quiet: bool) -> None:
    from oomdoctor.engines.catalogue import all_cards
    from oomdoctor.multi_card.card_probes import probe_cards
    from oomdoctor.multi_card.fit import fit_cards
    from oomdoctor.report.progress import make_progress

    cards, progress = all_cards(), make_progress(quiet=quiet)
    try:
        found = (probe_cards if request.engine == "null" else fit_cards)(request, cards, progress)
    finally:
        progress.close()
    if as_json:
        from oomdoctor.report.fit.text import result_of

        deliver(_document("fitted", EXIT_OK, result_of(request, found, cards), found.versions))
        return
    from oomdoctor.report.fit.text import render_fits

    deliver(render_fits(request, found, cards, _terminal()))


def _show_local(*, as_json: bool) -> None:
    from oomdoctor.engines.monitor import read_gpus

    try:
        reading = read_gpus()
    except NoAnswerError as error:
        if as_json:
            notes = (error.details or "").splitlines()
            deliver(_document("no_gpu", EXIT_NO_ANSWER, {"gpus": [], "notes": notes}))
        raise
    if as_json:
        from oomdoctor.codec import encode

        deliver(_document("read", EXIT_OK, _object(encode(reading))))
        return
    from oomdoctor.report.gpus import render_reading

    deliver(render_reading(reading, _terminal()))
    for note in reading.notes:
        typer.echo(f"note: {note}", err=True)


def _terminal() -> Terminal:
    """What stdout shows; a pipe or a file has room for every column, unless `COLUMNS` says otherwise."""
    terminal = Terminal.of(sys.stdout)
    boundless = not is_terminal(sys.stdout) and "COLUMNS" not in os.environ
    return replace(terminal, width=MAXIMUM_WIDTH) if boundless else terminal


def _document(status: str, exit_code: int, result: dict[str, object], versions: Mapping[str, str] | None = None) -> str:
    import platform

    from oomdoctor.results import SCHEMA_VERSION

    document = {
        "schema_version": SCHEMA_VERSION,
        "command": "gpus",
        "status": status,
        "exit_code": exit_code,
        "versions": {"oomdoctor": __version__, "python": platform.python_version(), **(versions or {})},
        "result": result,
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError(type(value))
    return value
