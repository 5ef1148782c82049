"""Child processes of multiprocessing: what their function raises is printed by the child itself, past every hook."""

# ruff: noqa: ANN401, PLC0415 - torch and what programs hand over have no type here

from __future__ import annotations

import functools
from typing import Any

from .guard import guarded


def watch(process: Any) -> None:
    """Listen to what a child's function raises.

    Args:
        process: The module `multiprocessing.process`.
    """
    original = process.BaseProcess._bootstrap  # noqa: SLF001

    @functools.wraps(original)
    def bootstrap(self: Any, *arguments: Any, **named: Any) -> Any:
        _listen(self)
        return original(self, *arguments, **named)

    process.BaseProcess._bootstrap = bootstrap  # noqa: SLF001


@guarded
def _listen(child: Any) -> None:
    run = child.run

    def watched() -> Any:
        try:
            return run()
        except BaseException as error:
            from .endings import died_of

            died_of(error, "child process")
            raise

    child.run = watched
