"""What Python does beside the work while a file is judged: no collecting of garbage, and room for deep code."""

from __future__ import annotations

import ast
import gc
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAMES: Final = 3000
"""Calls inside each other. A sum of 300 terms is a tree 300 deep, and each level takes a few calls; the default of 1000
is too few for it, while 3000 stay within the stack that C code has."""

_COLLECTED_AFTER: Final = 5_000_000
"""Characters of source after which to look for what is in cycles all the same; files take theirs apart when done."""

DEEP: Final = 60
"""Levels of a tree from which on running out of frames is the code's fault, not that of a rule."""


class Collector:
    """Frees what is left behind in cycles, seldom: looking through all objects takes longer than parsing most files."""

    def __init__(self) -> None:
        self._characters = 0

    def done(self, characters: int) -> None:
        """Note that a text was judged."""
        self._characters += characters
        if self._characters >= _COLLECTED_AFTER:
            self._characters = 0
            gc.collect()


@contextmanager
def quiet() -> Iterator[Collector]:
    """Turn the collector off and allow deeper calls; both are as before in the end."""
    enabled, frames, frozen = gc.isenabled(), sys.getrecursionlimit(), gc.get_freeze_count()
    gc.disable()
    if not frozen:
        gc.freeze()  # what is there already need not be looked through each time
    sys.setrecursionlimit(max(frames, FRAMES))
    try:
        yield Collector()
    finally:
        sys.setrecursionlimit(frames)
        if not frozen:
            gc.unfreeze()
        if enabled:
            gc.enable()


def is_deep(tree: ast.AST) -> bool:
    """Whether a tree has more levels than people write; found without recursion."""
    level: list[ast.AST] = [tree]
    for _ in range(DEEP):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True
