"""What stands around an event in the text of its function."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from oomdoctor.lint.flow.events import Action, Event, Run
from oomdoctor.lint.flow.runs import runs_of
from oomdoctor.lint.module import parse
from oomdoctor.lint.patterns.iterations import (
    calls_between,
    explained_calls,
    in_same_call,
    is_used,
    sets_gradients_between,
    statement_of,
)


def run_of(lines: str) -> Run:
    """A loop that zeroes gradients, does something, and steps."""
    body = "\n            ".join(lines.split("; "))
    text = f"""
    import torch

    def train(model, loader, optimizer):
        for x in loader:
            model(x).mean().backward()
            optimizer.zero_grad()
            {body}
            optimizer.step()

    def helper(optimizer):
        optimizer.step()
    """
    return max(runs_of(parse(dedent(text), Path("script.py"))), key=lambda run: len(run.events))


def ends(run: Run) -> tuple[Event, Event]:
    """Where gradients are zeroed, and the step."""
    return next(run.of(Action.ZERO_GRAD)), list(run.of(Action.STEP))[-1]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("pass", []),
        ("print(x)", []),
        ("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", []),
        ("compute(model, x)", ["compute(model, x)"]),
        ("self.agent.learn(x)", ["self.agent.learn(x)"]),
    ],
)
def test_calls_that_may_do_anything_are_listed(lines: str, expected: list[str]) -> None:
    """Between two events, calls that are neither events nor known to be harmless are listed."""
    run = run_of(lines)
    zero, step = ends(run)
    assert [ast.unparse(call) for call in calls_between(zero, step, run)] == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [("pass", False), ("x.grad = x", True), ("x.grad.add_(1)", True), ("x.gradient = x", False)],
)
def test_gradients_that_are_written_by_hand_are_noticed(lines: str, *, expected: bool) -> None:
    """A `.grad` between two events counts, and no other attribute."""
    assert sets_gradients_between(*ends(run_of(lines))) is expected


def test_a_call_is_its_statement_or_a_part_of_it() -> None:
    """A call whose result is assigned is used, and one that is a statement by itself is not."""
    alone = next(run_of("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)").of(Action.CLIP))
    assigned = next(run_of("norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)").of(Action.CLIP))
    assert not is_used(alone)
    assert is_used(assigned)
    assert isinstance(statement_of(assigned), ast.Assign)


def test_a_helper_is_another_place() -> None:
    """Two events of one function run share a place; an event of a function that is called does not."""
    run = run_of("helper(optimizer)")
    zero, last = ends(run)
    first = next(run.of(Action.STEP))
    assert in_same_call(zero, last)
    assert not in_same_call(zero, first)


SCRIPT = """
import torch

from steps import finish

def zero(optimizer):
    optimizer.zero_grad()

def step(optimizer):
    optimizer.step()

def train(model, loader, optimizer):
    for x in loader:
        first(x)
        zero(optimizer)
        second(x)
        step(optimizer)
        finish(optimizer)
        torch.cuda.synchronize()
"""


def in_helpers() -> Run:
    """A run in which gradients are zeroed in one helper, and the step is made in another."""
    return max(runs_of(parse(SCRIPT, Path("script.py"))), key=lambda run: len(run.events))


def test_two_helpers_are_two_places() -> None:
    """Events of two functions do not share a place, however deep both lie."""
    run = in_helpers()
    assert not in_same_call(*ends(run))
    assert in_same_call(next(run.of(Action.STEP)), next(run.of(Action.STEP)))


def test_only_calls_between_the_two_are_listed() -> None:
    """What is called before the first event and after the second is not between them."""
    text = """
    import torch

    def train(model, loader, optimizer):
        for x in loader:
            before(x)
            optimizer.zero_grad()
            between(x)
            optimizer.step()
            after(x)
    """
    run = max(runs_of(parse(dedent(text), Path("script.py"))), key=lambda run: len(run.events))
    assert [ast.unparse(call) for call in calls_between(*ends(run), run)] == ["between(x)"]


def test_what_is_imported_from_elsewhere_is_not_explained() -> None:
    """Events, followed calls and torch's own functions are explained; others' functions are not."""
    run = in_helpers()
    known = explained_calls(run)
    calls = [node for node in ast.walk(run.module.tree) if isinstance(node, ast.Call)]
    unexplained = {ast.unparse(node) for node in calls if id(node) not in known}
    assert unexplained == {"first(x)", "second(x)", "finish(optimizer)"}
