"""Short forms of what happens in a text, to compare with."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

from oomdoctor.lint.flow.runs import runs_of
from oomdoctor.lint.module import parse

if TYPE_CHECKING:
    from oomdoctor.lint.flow.events import Action, Event

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def events(text: str, *actions: Action) -> list[Event]:
    """Events of all runs of a text, of these kinds."""
    module = parse(HEAD + dedent(text), Path("train.py"))
    return [event for run in runs_of(module) for event in run.of(*actions)]


def event(text: str, action: Action) -> Event:
    """The one event of this kind in a text."""
    (found,) = events(text, action)
    return found


def lines(text: str, action: Action) -> list[int]:
    """Lines of the text in which events of this kind are."""
    return [found.node.lineno - HEAD.count("\n") - 1 for found in events(text, action)]
