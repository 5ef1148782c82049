"""Errors of the Python API name its parameters, where those of a command name its options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from targets_for_tests import write_target

import oomdoctor
from oomdoctor.errors import OomdoctorError
from oomdoctor.integrations import sizing
from oomdoctor.option_values import in_parameters

NAMES = ("gpu", "memory", "engine", "world_size", "new_tokens")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("`--gpu NAME` plays a card", "`gpu = NAME` plays a card"),
        ("`--memory 24GiB` needs no name", '`memory = "24GiB"` needs no name'),
        ("`--engine null --world-size 4` runs", '`engine = "null", world_size = 4` runs'),
        ("drop `--new-tokens`", "drop `new_tokens`"),
        ("`oomdoctor gpus --known` lists all", "`oomdoctor gpus --known` lists all"),
        ("`oomdoctor run --gpu t4 -- python train.py`", "`oomdoctor run --gpu t4 -- python train.py`"),
        ("`oomdoctor probe model.py --world-size 2`", "`oomdoctor probe model.py --world-size 2`"),
        ("`python train.py --gpu t4`", "`python train.py --gpu t4`"),
    ],
)
def test_options_are_said_as_parameters(text: str, said: str) -> None:
    """What can be given to the function is named as its parameter; a command that can be run stays."""
    assert in_parameters(text, NAMES) == said


QUESTIONS: dict[str, Callable[[str], object]] = {
    "unknown card": lambda path: oomdoctor.probe(path, target_batch=8, gpu="rtx 9999"),
    "two devices": lambda path: oomdoctor.probe(path, target_batch=8, gpu="t4", device=0),
    "device of no engine": lambda path: oomdoctor.probe(path, target_batch=8, device=0, engine="trace", gpu=None),
    "nothing left": lambda path: oomdoctor.probe(path, target_batch=8, memory="2GiB", reserve="4GiB", engine="trace"),
    "no card of a frontier": lambda path: oomdoctor.frontier(path, over={"length": [1]}, gpu="rtx 9999"),
    "no card of remedies": lambda path: oomdoctor.prescribe(path, need=8, gpu="rtx 9999"),
    "no card of a sweep": lambda path: sizing.size(path, {}, target_batch=8, gpu="rtx 9999"),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_error_names_no_option_that_the_function_has_not(tmp_path: Path, question: str) -> None:
    """Message and hint of each error have the names of parameters, and the message is the exception's text."""
    path = write_target(tmp_path)

    with pytest.raises(OomdoctorError) as raised:
        QUESTIONS[question](str(path))

    said = f"{raised.value.message}; {raised.value.hint}".replace("`oomdoctor gpus --known`", "")
    assert "--" not in said
    assert str(raised.value) == raised.value.message
