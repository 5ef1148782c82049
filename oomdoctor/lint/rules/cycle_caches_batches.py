"""OOM105: `itertools.cycle` over a loader keeps every batch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.events import Action, Kind
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.rule import Hit, Rule
from oomdoctor.results import Concern, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.flow.events import Event
    from oomdoctor.lint.rule import Subject


_ONE_LOADER: Final = re.compile(r"(?:loader|_dl)$", re.IGNORECASE)
_HELP: Final = (
    "write a generator, `while True: yield from {loader}`: it keeps no batch, and each round is shuffled anew"
)


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        for event in run.of(Action.CALL):
            if event.name == "itertools.cycle" and _is_loader(event):
                loader = text_of(event.call.args[0])  # type: ignore[union-attr]
                message = f"`itertools.cycle` keeps every batch of `{loader}` and repeats the same ones"
                yield Hit.at(event, message, help=_HELP.format(loader=loader))


def _is_loader(event: Event) -> bool:
    """Return whether the argument is one loader, made in sight or named so; `loaders` may be a list of them."""
    if event.call is None or len(event.call.args) != 1 or event.value.kind is not Kind.LOADER:
        return False
    return event.value.library is not None or _ONE_LOADER.search(text_of(event.call.args[0])) is not None


RULE = Rule(
    code="OOM105",
    name="cycle-caches-batches",
    severity=Severity.WARNING,
    concern=Concern.MEMORY,
    summary="`itertools.cycle` over a DataLoader keeps every batch of the first round",
    explanation="""\
Looks for `itertools.cycle` over a `DataLoader`, or over something that is named as one.

It is silent over lists, ranges and lists of loaders, and where `cycle` is a function of the repository.""",
    reason="""\
`itertools.cycle` saves a copy of each element of the first round and repeats those. Over a loader that is the whole
data set as tensors, in pinned memory or on the GPU if that is where the batches are. After the first round nothing is
loaded, shuffled or augmented again: every epoch sees the very same batches in the same order.""",
    bad="""\
import itertools

import torch
from torch.utils.data import DataLoader


def batches(dataset, steps):
    loader = DataLoader(dataset, batch_size=32, shuffle=True)
    for _, batch in zip(range(steps), itertools.cycle(loader)):
        yield batch
""",
    good="""\
import torch
from torch.utils.data import DataLoader


def forever(loader):
    while True:
        yield from loader


def batches(dataset, steps):
    loader = DataLoader(dataset, batch_size=32, shuffle=True)
    for _, batch in zip(range(steps), forever(loader)):
        yield batch
""",
    references=(
        "https://docs.python.org/3/library/itertools.html#itertools.cycle",
        "https://github.com/pytorch/pytorch/issues/23900",
    ),
    words=("cycle",),
    check=_check,
)
