"""OOM106: the allocator's cache is emptied in every training step."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.events import Action, GradMode
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.iterations import conditions, node_beside
from oomdoctor.lint.rule import Hit, Rule
from oomdoctor.results import Concern, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.flow.events import Event, Loop, Run
    from oomdoctor.lint.rule import Subject


_ON_THE_GPU: Final = re.compile(r"is_available\(\)|cuda|gpu", re.IGNORECASE)
_HELP: Final = "remove it, or call it once where another process or model needs the memory"


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        for loop in run.training_loops():
            marks = [
                mark for mark in run.of(Action.BACKWARD, Action.STEP, within=loop) if mark.context.loops[-1] is loop
            ]
            for event in run.of(Action.EMPTY_CACHE, within=loop):
                if marks and not _is_rare(event, marks, loop):
                    yield _hit(event, marks[0], run)


def _is_rare(event: Event, marks: list[Event], loop: Loop) -> bool:
    """Return whether the call is rarer than the optimizer's step: every so many steps, on a flag, on an error."""
    if event.context.handlers or event.context.gradients is not GradMode.ON:
        return True
    expected = {text for mark in marks for text in conditions(mark.context.guards_in(loop))}
    own = conditions(event.context.guards_in(loop))
    return any(text not in expected and not _ON_THE_GPU.search(text) for text in own)


def _hit(event: Event, mark: Event, run: Run) -> Hit:
    node, module = node_beside(event, mark, run)
    name = text_of(event.call.func) if event.call is not None else "empty_cache"
    return Hit(
        node, module, f"`{name}` in every step waits for the GPU and makes the next step request its memory anew", _HELP
    )


RULE = Rule(
    code="OOM106",
    name="empty-cache-in-loop",
    severity=Severity.WARNING,
    concern=Concern.SPEED,
    summary="`torch.cuda.empty_cache()` in every training step",
    explanation="""\
Looks for `torch.cuda.empty_cache()` that runs in each iteration of a loop with a backward pass, in a helper that
is called there too.

It is silent between epochs, in evaluation, in handlers of errors, once in several steps, and behind a flag.""",
    reason="""\
`empty_cache` gives the free part of PyTorch's cache back to the driver. It frees no tensor: what is in use stays.
Each call waits until the GPU is idle, and the next step has to ask the driver for the same memory again, which is
slow. A process that runs out of memory empties its cache by itself before it gives up, so this does not prevent
that either.""",
    bad="""\
import torch


def train(model, loader, optimizer, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        torch.cuda.empty_cache()
""",
    good="""\
import torch


def train(model, loader, optimizer, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    torch.cuda.empty_cache()
""",
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html",
        "https://github.com/huggingface/transformers/issues/31372",
        "https://github.com/huggingface/peft/pull/2894",
    ),
    words=("empty_cache",),
    check=_check,
)
