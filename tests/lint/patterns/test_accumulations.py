"""Accumulating loops, held against what they do when they are run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomdoctor.lint.flow.runs import runs_of
from oomdoctor.lint.module import parse
from oomdoctor.lint.patterns.accumulation import AccumulationLoop, accumulations

EPOCHS = 3
BATCHES = 11


@dataclass
class Recorder:
    """A loss, a model and an optimizer in one: it counts backward passes, and notes after how many a step came."""

    passes: int = 0
    steps: list[int] = field(default_factory=list)

    def __call__(self, *_: object) -> Recorder:
        """Stand in for the model and the loss function."""
        return self

    def __truediv__(self, _: int) -> Recorder:
        """Stand in for the loss that is divided."""
        return self

    def backward(self) -> None:
        """Count."""
        self.passes += 1

    def step(self) -> None:
        """Note."""
        self.steps.append(self.passes)

    def zero_grad(self) -> None:
        """Do nothing."""


def run(source: str, k: int) -> list[int]:
    """After how many micro-batches, over all epochs, a script makes its steps."""
    recorder = Recorder()
    names: dict[str, object] = {}
    exec(compile(source.replace("import torch\n", ""), "<script>", "exec"), names)  # noqa: S102 - texts made here
    train = names["train"]
    assert callable(train)
    train(recorder, [(None, None)] * BATCHES, recorder, recorder, k)
    return recorder.steps


def predicted(found: AccumulationLoop, k: int) -> list[int]:
    """The same, by what was read."""
    boundary, count = found.boundary, found.count
    assert boundary is not None
    assert count is not None
    assert count.first is not None
    steps, value = [], count.first
    ahead = 1 if found.comes_after_backward(found.step) else 0
    for done in range(EPOCHS * BATCHES):
        if done and done % BATCHES == 0 and count.restarts:
            value = count.first
        if boundary.holds(value, k, last=done % BATCHES == BATCHES - 1):
            steps.append(done + ahead)
            value = 0 if boundary.reaches else value
        value += 1
    return steps


def found_in(source: str) -> list[AccumulationLoop]:
    """What is read from a script."""
    return [found for one in runs_of(parse(source, Path("train.py"))) for found in accumulations(one)]


HEAD = "import torch\n\n\ndef train(model, loader, optimizer, loss_fn, k):\n"
LOOPS = {
    "i": "        for i, (x, y) in enumerate(loader):\n",
    "i from 1": "        for i, (x, y) in enumerate(loader, 1):\n",
    "i from 3": "        for i, (x, y) in enumerate(loader, start=3):\n",
    "range": "        for i in range(len(loader)):\n            x, y = loader[i]\n",
    "hand": "        for x, y in loader:\n",
}
FORMS = ["{c} % k == 0", "({c} + 1) % k == 0", "{c} % k == k - 1", "not ({c} + 1) % k", "{c} > 0 and {c} % k == 0"]
LAST = " or ({c} + 1 == len(loader))"
BACKWARD = "            loss = loss_fn(model(x), y) / k\n            loss.backward()\n"


def written(loop: str, form: str, place: str, *, late: bool, first: bool, shape: str, last: bool) -> str:  # noqa: PLR0913
    """A script with a counter of one kind and a condition of one form.

    Args:
        loop: Which of `LOOPS`.
        form: Which of `FORMS`.
        place: Where a counter by hand begins: in the epoch, or before all of them.
        late: Whether it counts after the test.
        first: Whether the step comes before the backward pass.
        shape: How the condition stands: around the step, inverted before a `continue`, under a name, in a function.
        last: Whether the last batch is included.
    """
    counter = "n" if loop == "hand" else "i"
    test = (form + (LAST if last and loop in ("i", "range") else "")).format(c=counter)
    begin, add = "n = 0\n", "            n += 1\n"
    steps = "optimizer.step()\n{0}optimizer.zero_grad()\n"
    shapes = {
        "if": f"            if {test}:\n{' ' * 16}{steps.format(' ' * 16)}",
        "name": f"            due = {test}\n            if due:\n{' ' * 16}{steps.format(' ' * 16)}",
        "walrus": f"            if (due := ({test})):\n{' ' * 16}{steps.format(' ' * 16)}",
        "function": f"            step_if({test})\n",
        "continue": f"            if not ({test}):\n                continue\n            {steps.format(' ' * 12)}",
    }
    body = shapes[shape]
    if shape == "function":
        body = f"            step_if({counter})\n"
    parts = [body, BACKWARD] if first else [BACKWARD, body]
    if loop == "hand":
        parts.insert(2 if late else 0, add)
    text = HEAD
    if shape == "function":
        inner = test.replace(f"{counter} ", "at ").replace(f"({counter} ", "(at ")
        text += f"    def step_if(at):\n        if {inner}:\n{' ' * 12}{steps.format(' ' * 12)}\n"
    text += f"    {begin}" if loop == "hand" and place == "before" else ""
    text += f"    for epoch in range({EPOCHS}):\n"
    text += f"        {begin}" if loop == "hand" and place == "epoch" else ""
    return text + LOOPS[loop] + "".join(parts)


@settings(max_examples=250, deadline=None)
@given(
    st.sampled_from(sorted(LOOPS)),
    st.sampled_from(FORMS),
    st.sampled_from(["epoch", "before"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["if", "name", "walrus", "function", "continue"]),
    st.booleans(),
    st.integers(2, 5),
)
def test_what_is_read_from_a_loop_is_what_it_does(  # noqa: PLR0913, PLR0917 - the parts of a loop
    loop: str, form: str, place: str, late: bool, first: bool, shape: str, last: bool, k: int
) -> None:
    """Counter, phase and restart of a generated loop predict after which micro-batches it makes a step."""
    if shape == "continue" and (first or late):
        return  # what follows is skipped as well: another loop
    source = written(loop, form, place, late=late, first=first, shape=shape, last=last)
    (found,) = found_in(source)
    assert predicted(found, k) == run(source, k), source


@pytest.mark.parametrize("place", ["epoch", "before"])
@pytest.mark.parametrize("test", ["n == k", "n >= k", "k <= n", "not n < k", "n > k - 1"])
@pytest.mark.parametrize("late", [False, True])
def test_a_counter_that_is_set_back_is_read_as_it_runs(place: str, test: str, late: bool) -> None:
    """A counter that is compared and set to 0 predicts the steps, counted before the test or after it."""
    set_in, set_before = ("        n = 0\n", "") if place == "epoch" else ("", "    n = 0\n")
    add = "            n += 1\n"
    source = (
        f"{HEAD}{set_before}    for epoch in range({EPOCHS}):\n{set_in}        for x, y in loader:\n{BACKWARD}"
        f"{'' if late else add}            if {test}:\n"
        f"                optimizer.step()\n                n = 0\n{add if late else ''}"
    )
    (found,) = found_in(source)
    assert predicted(found, 4) == run(source, 4)
    assert found.step_offset == (-1 if late else 0)


def test_a_literal_period_makes_phases_small() -> None:
    """Whether `% 8 == 7` is right is known from the 8; `% 8 == 6` is one too early."""
    text = written("i", "{c} % k == R", "", late=False, first=False, shape="if", last=False).replace("% k", "% 8")
    leads = [found_in(text.replace("R", str(rest)))[0].step_offset for rest in (7, 6, 0)]
    assert leads == [0, 1, -1]


NOT_ACCUMULATING = {
    "another model's pass": (
        "if i % k == 0:\n                optimizer.zero_grad()\n                loss_fn(model(y), x).backward()\n"
        "                optimizer.step()\n"
    ),
    "a step in each iteration too": "optimizer.step()\n            if i % k == 0:\n                optimizer.step()\n",
    "a log": "optimizer.step()\n            if i % k == 0:\n                print(i)\n",
    "a warm-up": "if i > k:\n                optimizer.step()\n",
    "a literal one": "if i % 1 == 0:\n                optimizer.step()\n",
}


@pytest.mark.parametrize("body", NOT_ACCUMULATING.values(), ids=NOT_ACCUMULATING)
def test_what_only_looks_like_accumulation_is_none(body: str) -> None:
    """Alternating models, logs and warm-ups are no accumulation."""
    source = f"{HEAD}    if k:\n{LOOPS['i']}{BACKWARD}            {body}"
    assert found_in(source) == []
