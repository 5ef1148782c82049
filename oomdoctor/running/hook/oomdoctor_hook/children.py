"""Child processes of multiprocessing: what their function raises is printed by the child itself, past every hook."""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable


def watch(process: Any, ended: Callable[[BaseException | None], None]) -> None:
    """Listen to how a child's function ends.

    Args:
        process: The module `multiprocessing.process`.
        ended: Called in the child with what the function raised, or None where it returned.
    """
    original = process.BaseProcess._bootstrap  # noqa: SLF001

    @functools.wraps(original)
    def bootstrap(self: Any, *arguments: Any, **named: Any) -> Any:
        _listen(self, ended)
        return original(self, *arguments, **named)

    process.BaseProcess._bootstrap = bootstrap  # noqa: SLF001


@guarded
def _listen(child: Any, ended: Callable[[BaseException | None], None]) -> None:
    run = child.run

    def watched() -> Any:
        try:
            result = run()
        except BaseException as error:
            ended(error)
            raise
        ended(None)
        return result

    child.run = watched
