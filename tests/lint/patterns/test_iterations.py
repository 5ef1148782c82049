"""What goes together in one iteration, and what it takes over from the one before."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from oomdoctor.lint.flow.events import Action, Event, Guard, Loop, Run
from oomdoctor.lint.flow.runs import runs_of
from oomdoctor.lint.module import parse
from oomdoctor.lint.patterns.iterations import (
    carried,
    conditions,
    exclude,
    implies,
    node_beside,
    shared_loop,
    stored_in,
    within,
)


def run_of(text: str) -> Run:
    """The run with the most events in a script."""
    return max(runs_of(parse(dedent(text), Path("script.py"))), key=lambda run: len(run.events))


def loop_of(text: str) -> Loop:
    """The loop that a text consists of."""
    node = ast.parse(dedent(text)).body[0]
    assert isinstance(node, ast.For | ast.While)
    return Loop(node)


def one(run: Run, action: Action) -> Event:
    """The only event of a kind."""
    (event,) = run.of(action)
    return event


@pytest.mark.parametrize(
    ("test", "holds", "expected"),
    [
        ("flag", True, {"flag": True}),
        ("not flag", True, {"flag": False}),
        ("not flag", False, {"flag": True}),
        ("a and not b", True, {"a": True, "b": False}),
        ("a and b", False, {"a and b": False}),
        ("a or b", False, {"a": False, "b": False}),
        ("a or b", True, {"a or b": True}),
        ("scaler is not None", True, {"scaler is None": False}),
        ("scaler is None", True, {"scaler is None": True}),
        ("i % k != 0", False, {"i % k == 0": True}),
    ],
)
def test_conditions_are_taken_apart(test: str, *, holds: bool, expected: dict[str, bool]) -> None:
    """What surely holds of each part of a condition is told, whichever way it came out."""
    assert conditions((Guard(ast.parse(test, mode="eval").body, holds=holds),)) == expected


BRANCHES = """
    import torch

    def train(model, loader, optimizer, half, scaler):
        for x in loader:
            loss = model(x).mean()
            if half:
                loss.backward()
            if {condition}:
                optimizer.step()
    """


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("not half", True),
        ("half", False),
        ("scaler", False),
        ("scaler and not half", True),
        ("not half or scaler", False),
    ],
)
def test_opposite_branches_exclude_each_other(condition: str, *, expected: bool) -> None:
    """Two events never meet where one needs a condition that the other needs not to hold, in whatever words."""
    run = run_of(BRANCHES.format(condition=condition))
    assert exclude(one(run, Action.BACKWARD), one(run, Action.STEP)) is expected
    assert exclude(one(run, Action.STEP), one(run, Action.BACKWARD)) is expected


@pytest.mark.parametrize(("condition", "expected"), [("half", True), ("True", False), ("half and scaler", True)])
def test_what_needs_more_implies_what_needs_less(condition: str, *, expected: bool) -> None:
    """A step implies the backward pass where all that the pass needs is among what the step needs."""
    run = run_of(BRANCHES.format(condition=condition))
    step, backward = one(run, Action.STEP), one(run, Action.BACKWARD)
    assert implies(step, backward, step.context.loops[-1]) is expected


def test_the_innermost_loop_around_both_is_shared() -> None:
    """Of an event in an inner loop and one after it, the outer loop is around both; of one before it all, none."""
    run = run_of(
        """
        import torch

        def train(model, batches, optimizer):
            optimizer.zero_grad()
            for _ in range(10):
                for x in batches:
                    model(x).mean().backward()
                optimizer.step()
        """
    )
    backward, step, zero = one(run, Action.BACKWARD), one(run, Action.STEP), one(run, Action.ZERO_GRAD)
    assert shared_loop(backward, step) is step.context.loops[0]
    assert shared_loop(backward, backward) is backward.context.loops[-1]
    assert shared_loop(backward, zero) is None


def test_a_helper_is_pointed_at_where_it_is_called() -> None:
    """What only a helper does is placed at the helper's call; what stands beside the other event, at itself."""
    run = run_of(
        """
        import torch

        def tidy():
            torch.cuda.empty_cache()

        def step(model, x, optimizer):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            tidy()

        def train(model, loader, optimizer):
            for x in loader:
                step(model, x, optimizer)
        """
    )
    backward = one(run, Action.BACKWARD)
    node, _ = node_beside(one(run, Action.EMPTY_CACHE), backward, run)
    assert (node.lineno, ast.unparse(node)) == (11, "tidy()")
    step = one(run, Action.STEP)
    assert node_beside(step, backward, run) == (step.node, step.module)


def test_loops_one_after_the_other_share_none() -> None:
    """Two loops at one depth are not around each other's events."""
    run = run_of(
        """
        import torch

        def train(model, loader, optimizer):
            for x in loader:
                model(x).mean().backward()
            for _ in range(3):
                optimizer.step()
        """
    )
    assert shared_loop(one(run, Action.BACKWARD), one(run, Action.STEP)) is None


def test_two_helpers_of_one_caller_are_told_apart() -> None:
    """An event in one helper is placed at that helper's call where the other event lies in another helper."""
    run = run_of(
        """
        import torch

        def learn(model, x):
            model(x).mean().backward()

        def tidy():
            torch.cuda.empty_cache()

        def train(model, loader):
            for x in loader:
                learn(model, x)
                tidy()
        """
    )
    node, _ = node_beside(one(run, Action.EMPTY_CACHE), one(run, Action.BACKWARD), run)
    assert ast.unparse(node) == "tidy()"


@pytest.mark.parametrize(("inner", "expected"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_node_lies_within_another_by_its_text(inner: int, *, expected: bool) -> None:
    """A node lies within what begins no later and ends no sooner, itself among that."""
    nodes = ast.parse("a\nif b:\n    c\nd\n").body
    outer = nodes[1]
    assert isinstance(outer, ast.If)
    assert within([nodes[0], outer, outer.body[0], nodes[2]][inner], outer) is expected


def test_a_comprehension_carries_nothing() -> None:
    """What a comprehension computes is new for each element."""
    node = ast.parse("[total + x for x in xs]", mode="eval").body
    assert isinstance(node, ast.ListComp)
    assert carried(Loop(node)) == frozenset()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("out = model(x); loss = out.mean()", set()),
        ("out, hidden = model(x, hidden)", {"hidden"}),
        ("total += 1", {"total"}),
        ("self.state = cell(x, self.state)", {"self.state"}),
        ("totals[key] = totals[key] + 1", {"totals"}),
        ("print(x); x = 1", set()),
        ("hidden = None\n    out, hidden = model(x, hidden)", set()),
        ("with autocast():\n        out = model(x)\n        loss = out.mean()", set()),
        ("if ready:\n        out = last\n    last = model(x)", {"last"}),
        ("try:\n        out = model(x)\n    except ValueError:\n        out = None\n    use(out)", set()),
        ("for part in out:\n        use(part)\n    out = model(x)", {"out"}),
        ("if total > 1:\n        total = 0", {"total"}),
    ],
)
def test_what_is_read_before_it_is_set_is_carried(body: str, expected: set[str]) -> None:
    """A name is carried from one iteration to the next if the body reads it before it sets it, and does set it."""
    assert carried(loop_of(f"for x in loader:\n    {body}\n")) == expected


def test_a_while_carries_what_its_condition_reads() -> None:
    """The condition of a `while` is read first in each iteration."""
    assert carried(loop_of("while loss > 1:\n    loss = step()\n")) == {"loss"}


def test_all_that_a_loop_sets_is_listed() -> None:
    """Its own variables, names, attributes and the holders of elements count as set."""
    loop = loop_of("for i, x in enumerate(xs):\n    self.a = x\n    b[0] = 1\n    with open(x) as c:\n        d += c\n")
    assert stored_in(loop) == {"i", "x", "self.a", "b", "c", "d"}
