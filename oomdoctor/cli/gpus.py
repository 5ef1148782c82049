"""`oomdoctor gpus`: parse, call, render, exit code."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Annotated

import typer

from oomdoctor import __version__
from oomdoctor.cli.options import Help, JsonFlag
from oomdoctor.errors import EXIT_NO_ANSWER, EXIT_OK, NoAnswerError
from oomdoctor.output import MAXIMUM_WIDTH, Terminal, deliver, is_terminal


def gpus(
    *,
    known: Annotated[
        bool, typer.Option("--known", help="List the cards that `--gpu` knows instead of the GPUs of this machine.")
    ] = False,
    as_json: JsonFlag = False,
    _help: Help = False,
) -> None:
    """Show this machine's GPUs and who holds their memory, or the catalogue of known cards."""
    if known:
        _show_catalogue(as_json=as_json)
    else:
        _show_local(as_json=as_json)


def _show_catalogue(*, as_json: bool) -> None:
    from oomdoctor.devices.catalogue import all_cards

    cards = all_cards()
    if as_json:
        from oomdoctor.serialisation import encode

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
    from oomdoctor.reports.gpus_text import render_cards

    deliver(render_cards(cards, _terminal()))


def _show_local(*, as_json: bool) -> None:
    from oomdoctor.devices.monitor import read_gpus

    try:
        reading = read_gpus()
    except NoAnswerError as error:
        if as_json:
            notes = (error.details or "").splitlines()
            deliver(_document("no_gpu", EXIT_NO_ANSWER, {"gpus": [], "notes": notes}))
        raise
    if as_json:
        from oomdoctor.serialisation import encode

        deliver(_document("read", EXIT_OK, _object(encode(reading))))
        return
    from oomdoctor.reports.gpus_text import render_reading

    deliver(render_reading(reading, _terminal()))
    for note in reading.notes:
        typer.echo(f"note: {note}", err=True)


def _terminal() -> Terminal:
    """What stdout shows; a pipe or a file has room for every column, unless `COLUMNS` says otherwise."""
    terminal = Terminal.of(sys.stdout)
    boundless = not is_terminal(sys.stdout) and "COLUMNS" not in os.environ
    return replace(terminal, width=MAXIMUM_WIDTH) if boundless else terminal


def _document(status: str, exit_code: int, result: dict[str, object]) -> str:
    import platform

    from oomdoctor.results import SCHEMA_VERSION

    document = {
        "schema_version": SCHEMA_VERSION,
        "command": "gpus",
        "status": status,
        "exit_code": exit_code,
        "versions": {"oomdoctor": __version__, "python": platform.python_version()},
        "result": result,
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError(type(value))
    return value
