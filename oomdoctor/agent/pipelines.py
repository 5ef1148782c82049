"""Pipelines of `torch.distributed.pipelining`: into how many micro-batches a schedule divides what it is given."""

# ruff: noqa: ANN401 - torch has no type here

from __future__ import annotations

import functools
import sys
from typing import Any

from . import imports
from .guard import guarded

_most: list[int] = [0]


def begin() -> None:
    """Note the micro-batches of each schedule that the program makes, from now on."""
    imports.when_imported("torch.distributed.pipelining.schedules", guarded(_watch))


def micro_batches() -> int:
    """Return the most micro-batches of a schedule; 0 where there is none."""
    return _most[0]


def _watch() -> None:
    kind: Any = getattr(sys.modules["torch.distributed.pipelining.schedules"], "_PipelineSchedule", None)
    if kind is None:
        return
    make = kind.__init__

    @functools.wraps(make)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        guarded(_note)(self)

    kind.__init__ = init


def _note(schedule: Any) -> None:
    _most[0] = max(_most[0], int(schedule._n_microbatches))  # noqa: SLF001 - no public way
