"""Commands of oomdoctor to type next: they ask of the card and the program that ran out of memory."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from oomdoctor.engines.catalogue import find_card
from oomdoctor.errors import UsageError
from oomdoctor.request import MICRO_BATCH, command_line
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.diagnose.evidence import Situation


_BATCH_OPTION: Final = re.compile(r"(-{0,2}(?:[a-z]+[-_.])*batch[-_]?size|-b|-bs|--bs)(=?)(\d*)", re.IGNORECASE)
_PLACE: Final = f"{MICRO_BATCH} goes where the script takes its batch size"
_ELSEWHERE: Final = ("--gpu", "a100-sxm4-80gb")
_USUAL_BATCH: Final = 256


def probe(situation: Situation) -> str:
    """Return the command that finds the batch that fits, on the card that the run was asked to show."""
    size = str((situation.batch_size or _USUAL_BATCH) * _world_size(situation))
    return _on_program("probe", situation, ("--target-batch", size, *situation.case.card_options))


def probe_elsewhere(situation: Situation) -> str:
    """Return the command that asks whether a larger card has room."""
    size = str(_world_size(situation))  # a sample for each device
    options = ("--target-batch", size, *_ELSEWHERE, *_options_of(situation, "--world-size", "--rank"))
    return _on_program("probe", situation, options, "does it fit there?")


def prescribe(situation: Situation) -> str:
    """Return the command that measures remedies on the card that ran out."""
    size = situation.batch_size
    needed = ("--need", str(size)) if size else ()
    world = _options_of(situation, "--world-size")  # it has no `--rank`
    return _on_program("prescribe", situation, (*_card_options(situation), *world, *needed))


def run_again(situation: Situation) -> str:
    """Return the command that runs the program again, on the same card, and leaves a snapshot."""
    program = situation.case.command or ("python", "train.py")
    return command_line(("oomdoctor", "run", *situation.case.card_options, "--", *program))


def _on_program(name: str, situation: Situation, options: Sequence[str], question: str = "") -> str:
    """Return a command about what ran, its batch size left open; about a file of functions where nothing is known."""
    ran = situation.case.command
    if not ran:
        comment, words = question, ("oomdoctor", name, "model.py", *options)
    else:
        program = _with_placeholder(ran)
        comment = " ".join(filter(None, (question, "" if program else _PLACE)))
        words = ("oomdoctor", name, *options, "--", *(program or ran))
    return command_line(words) + (f"  # {comment}" if comment else "")


def _with_placeholder(command: Sequence[str]) -> tuple[str, ...] | None:
    """Return a command with the placeholder in place of its batch size; None where no option names that.

    A number alone may be anything, so that none is replaced, and none is added.
    """
    for at, word in enumerate(command):
        option = _BATCH_OPTION.fullmatch(word)
        if option is not None and option[3] and option[2]:
            return (*command[:at], f"{option[1]}={MICRO_BATCH}", *command[at + 1 :])
        if option is not None and not option[3] and command[at + 1 : at + 2] and command[at + 1].isdecimal():
            return (*command[: at + 1], MICRO_BATCH, *command[at + 2 :])
    return None


def _card_options(situation: Situation) -> tuple[str, ...]:
    """Return options that name the card that ran out; none where none is known."""
    asked = _options_of(situation, "--gpu", "--device", "--memory", "--capacity", "--reserve")
    return asked if set(asked[::2]) - {"--reserve"} else (*_seen_card(situation), *asked)


def _options_of(situation: Situation, *names: str) -> tuple[str, ...]:
    """Return those options of the run that have these names, each with its value behind it."""
    given = situation.case.card_options
    pairs = zip(given[::2], given[1::2], strict=True)
    return tuple(word for name, value in pairs if name in names for word in (name, value))


def _world_size(situation: Situation) -> int:
    """Return the number of ranks that the run was asked for; the target batch is that of all of them."""
    asked = _options_of(situation, "--world-size")
    return int(asked[1]) if asked and asked[1].isdecimal() else 1


def _seen_card(situation: Situation) -> tuple[str, ...]:
    """Return the option for the card that a report or a table names, else for the memory that the error tells."""
    named = situation.case.device_names or (() if situation.card is None else (situation.card.name,))
    total_bytes = situation.facts.total_bytes
    for name in named[:1]:
        with suppress(UsageError):
            return "--gpu", find_card(name).key
    return () if total_bytes is None else ("--memory", format_size(total_bytes).replace(" ", ""))
