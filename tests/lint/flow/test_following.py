"""Which functions runs begin with, and how far calls are followed."""

from __future__ import annotations

from pathlib import Path

import pytest
from clock import within
from happening import HEAD, event, events

from oomdoctor.lint.flow.events import Action, GradMode
from oomdoctor.lint.flow.runs import runs_of
from oomdoctor.lint.flow.state import MOST_EVENTS
from oomdoctor.lint.module import parse

HELPER = """
def one(model, x, optimizer):
    model(x).sum().backward()
    optimizer.step()
"""


def beginnings(text: str) -> list[str]:
    """Names of the functions that runs begin with."""
    return [run.function.name for run in runs_of(parse(HEAD + text, Path("a.py"))) if run.function is not None]


def test_a_run_begins_with_whoever_calls() -> None:
    """A loop that only calls the helper is where the run begins, though nothing in it is telling by itself."""
    text = HELPER + "def main(loader):\n    for x in loader:\n        one(model, x, optimizer)\n"
    assert beginnings(text) == ["main"]
    assert len(event(text, Action.STEP).context.loops) == 1


def test_a_helper_that_nobody_calls_runs_by_itself() -> None:
    """What no function of the file calls is a beginning of its own."""
    assert beginnings(HELPER + "def main(loader):\n    pass\n") == ["one"]


def test_code_that_calls_itself_ends() -> None:
    """A recursion is followed once."""
    text = "def down(model, x):\n    loss = model(x).sum()\n    loss.backward()\n    down(model, x)\n"
    assert len(events(text, Action.BACKWARD)) == 1


def test_everything_calling_everything_ends_soon() -> None:
    """Sixty functions that each call the sixty others take no longer than a file of their length may."""
    calls = "".join(f"    f{number}(model, x)\n" for number in range(60))
    text = "".join(f"def f{number}(model, x):\n    model(x).sum().backward()\n{calls}" for number in range(60))
    with within(10):
        found = events(text, Action.BACKWARD)
    assert len(found) >= 60


def test_a_run_notes_a_bounded_number_of_events() -> None:
    """Ten thousand lines that say the same are not all noted: rules compare events with each other."""
    found = events("for x in loader:\n" + "    loss.backward()\n" * 10_000)
    assert len(found) <= MOST_EVENTS


def test_a_small_helper_that_computes_a_loss_is_followed() -> None:
    """The graph of a loss that a helper returns is known, though nothing telling happens in the helper."""
    text = """
def compute(model, x, y):
    return F.mse_loss(model(x), y)
for x, y in loader:
    loss = compute(model, x, y)
    total += loss
    optimizer.step()
"""
    kept = event(text, Action.KEEP)
    assert (kept.value.graph.value, kept.value.is_loss) == ("yes", True)


@pytest.mark.parametrize(
    ("name", "base", "gradients"),
    [
        ("training_step", "pl.LightningModule", GradMode.ON),
        ("validation_step", "pl.LightningModule", GradMode.OFF),
        ("compute_loss", "transformers.Trainer", GradMode.ON),
        ("prediction_step", "transformers.Trainer", GradMode.OFF),
    ],
)
def test_what_a_framework_calls_begins_a_run(name: str, base: str, gradients: GradMode) -> None:
    """Lightning and Transformers call these methods themselves, whoever else does."""
    text = (
        "import lightning as pl, transformers\n"
        f"class Mine({base}):\n"
        f"    def {name}(self, batch):\n"
        "        self.seen.append(self.model(batch))\n"
        "    def other(self, batch):\n"
        f"        self.optimizer.step(); self.{name}(batch); self.model.backward\n"
    )
    assert gradients in {found.context.gradients for found in events(text, Action.FORWARD)}
    assert name in beginnings(text)


def test_a_method_of_a_base_class_is_followed() -> None:
    """`self.step()` may be defined in a base class, and its attributes in that one's constructor."""
    text = """
class Base:
    def __init__(self):
        self.rate = torch.optim.SGD([], lr=0.1)
    def finish(self):
        self.rate.step()
class Mine(Base):
    def fit(self, loader):
        for x in loader:
            self.net(x).sum().backward()
            self.finish()
"""
    step = event(text, Action.STEP)
    assert len(step.context.loops) == 1
    assert step.value.kind.value == "optimizer"


def test_super_is_followed() -> None:
    """`super().fit()` runs the base class's method on the same object."""
    text = """
class Base:
    def fit(self, loader):
        for x in loader:
            self.optimizer.step()
class Mine(Base):
    def fit(self, loader):
        super().fit(loader)
"""
    assert {len(found.context.loops) for found in events(text, Action.STEP)} == {1}


def test_a_closure_runs_where_the_step_is() -> None:
    """`optimizer.step(closure)` runs the closure."""
    text = """
def train(model, loader, optimizer):
    for x in loader:
        def closure():
            optimizer.zero_grad()
            loss = model(x).sum()
            loss.backward()
            return loss
        optimizer.step(closure)
"""
    actions = [
        found.action for found in events(text) if found.action in (Action.ZERO_GRAD, Action.BACKWARD, Action.STEP)
    ]
    assert actions == [Action.ZERO_GRAD, Action.BACKWARD, Action.STEP]


def test_what_deepspeed_does_is_its_own() -> None:
    """An engine's backward and step are marked as managed by DeepSpeed."""
    text = """
import deepspeed
def main(net, loader):
    engine, _, _, _ = deepspeed.initialize(model=net)
    for x in loader:
        engine.backward(engine(x))
        engine.step()
"""
    assert {found.context.managed for found in events(text, Action.BACKWARD, Action.STEP)} == {"deepspeed"}


def test_what_accelerate_accumulates_is_its_own() -> None:
    """Under `accelerator.accumulate` the framework decides when a step is made."""
    text = """
from accelerate import Accelerator
def main(model, loader, optimizer):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x))
            optimizer.step()
"""
    step = event(text, Action.STEP)
    assert (step.context.managed, step.context.loops[0].over_batches) == ("accelerate", True)
