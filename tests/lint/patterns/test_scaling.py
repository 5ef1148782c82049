"""The part that a gradient scaler has in passes and steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.lint.flow.events import Action, Event, Run
from oomdoctor.lint.flow.runs import runs_of
from oomdoctor.lint.module import parse
from oomdoctor.lint.patterns.windows import is_scaled, optimizer_of, scaler_of, scales_by_hand, takes_closure

SCRIPT = """
import torch

def train(model, loader, optimizer, closure):
    scaler = torch.amp.GradScaler("cuda"{options})
    for x in loader:
        loss = model(x).mean()
        {lines}
"""


def run_of(lines: str, options: str = "") -> Run:
    """A training loop that ends with these lines."""
    text = SCRIPT.format(lines="\n        ".join(lines.split("; ")), options=options)
    return max(runs_of(parse(text, Path("script.py"))), key=lambda run: len(run.events))


def last(run: Run, action: Action) -> Event:
    """The last event of a kind."""
    return list(run.of(action))[-1]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("scaler.scale(loss).backward()", True),
        ("scaled = scaler.scale(loss); scaled.backward()", True),
        ("loss.backward()", False),
        ("(loss * 8).backward()", False),
    ],
)
def test_a_pass_of_a_scaled_loss_is_told(lines: str, *, expected: bool) -> None:
    """A pass counts as scaled if the loss went through `scaler.scale`, in one line or in two."""
    assert is_scaled(last(run_of(lines), Action.BACKWARD)) is expected


@pytest.mark.parametrize(
    ("line", "scaler", "optimizer", "closure"),
    [
        ("scaler.step(optimizer)", "scaler", "optimizer", False),
        ("optimizer.step()", None, "optimizer", False),
        ("optimizer.step(closure)", None, "optimizer", True),
        ("optimizer.step(lambda: loss)", None, "optimizer", True),
        ("optimizer.step(closure=closure)", None, "optimizer", True),
    ],
)
def test_who_makes_the_step_is_told(line: str, scaler: str | None, optimizer: str, *, closure: bool) -> None:
    """A step is told apart as the scaler's, the optimizer's own, or one with a closure, with the names in it."""
    step = last(run_of(f"loss.backward(); scaler.update(); {line}"), Action.STEP)
    assert (scaler_of(step), optimizer_of(step), takes_closure(step)) == (scaler, optimizer, closure)


@pytest.mark.parametrize(
    ("lines", "options", "expected"),
    [
        ("loss.backward()", "", False),
        ("loss.backward()", ", init_scale=1024", False),
        ("loss.backward()", ", enabled=True", False),
        ("loss.backward()", ", enabled=False", True),
        ("before = scaler.get_scale(); loss.backward(); skipped = scaler.get_scale() < before", "", False),
        ("print(scaler.get_scale()); loss.backward()", "", False),
        ("scale = scaler.get_scale(); (loss * scale).backward()", "", True),
        ("loss.backward(); model.weight.grad.div_(scaler.get_scale())", "", True),
        ("loss.backward(); model.weight.grad /= scaler.get_scale()", "", True),
    ],
)
def test_code_that_sees_to_the_scale_itself_is_told(lines: str, options: str, *, expected: bool) -> None:
    """Computing with the scale, or a scaler that is switched off, is noticed; asking for the scale alone is not."""
    run = run_of(lines, options)
    assert scales_by_hand(run, last(run, Action.BACKWARD)) is expected
