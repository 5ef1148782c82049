"""OOM105: `itertools.cycle` over a loader keeps every batch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Kind
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.rule import Hit, Subject, read_rule

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


RULE: Final = read_rule(__file__, _check)
