"""Which module's part of the graph the backward pass works on.

Autograd's threads run no Python, so its allocations cannot be told from frames. But its nodes are numbered in the order
in which the forward made them, and a backward pass takes them in the opposite order: so the numbers between a module's
beginning and its end are that module's, and a hook on the first node of each stretch tells when it is reached.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.probing.profile.marks import Kind
from oomdoctor.targets.placement import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oomdoctor.probing.profile.marks import Marks

_UNNUMBERED: Final = 1 << 62
"""Nodes that accumulate a parameter's gradient have the largest number of all, and run as soon as they can."""


class GraphWatch:
    """Follows which module makes which nodes, and marks when the backward pass comes to them.

    Args:
        marks: Where to note it.
        enabled: False for no hook on any node; then a backward's memory is nobody's.
    """

    def __init__(self, marks: Marks, *, enabled: bool) -> None:
        self._marks = marks
        self._enabled = enabled
        self._in_backward = False
        self._restart()

    def _restart(self) -> None:
        self._stack: list[int] = []
        self._begins: list[int] = []
        self._owners: list[int | None] = []
        self._hooked: set[int] = set()
        self._note_owner()

    def begin_forward(self) -> None:
        """A new graph will be made."""
        self._in_backward = False
        self._restart()

    def begin_backward(self, loss: torch.Tensor | None) -> None:
        """The graph is there; what is computed from now on is computed again, for a checkpoint."""
        if loss is not None:
            self._hook((loss,))
        self._in_backward = True
        self._restart()

    def entered(self, index: int) -> None:
        """A module's forward began."""
        if self._in_backward and not self._stack:
            self._restart()
        self._stack.append(index)
        self._note_owner()

    def left(self, output: object) -> None:
        """The innermost module's forward ended."""
        if self._stack:
            self._stack.pop()
        self._note_owner()
        if self._in_backward and not self._stack:
            # A checkpoint that runs a backward of its own will do so on this graph.
            self._hook(tensors_in(output))

    def _note_owner(self) -> None:
        self._begins.append(_next_number())
        self._owners.append(self._stack[-1] if self._stack else None)

    def _hook(self, outputs: Iterable[torch.Tensor]) -> None:
        if not self._enabled:
            return
        last: object = self  # nobody's index
        for number, node in _nodes(outputs, self._begins[0]):
            owner = self._owners[bisect_right(self._begins, number) - 1]
            if owner != last:
                node.register_prehook(partial(self._reached, owner))
            last = owner

    def _reached(self, owner: int | None, _gradients: object) -> None:
        self._marks.note(Kind.BACK, owner)


def _nodes(outputs: Iterable[torch.Tensor], first: int) -> list[tuple[int, Any]]:
    """The nodes that lead to some tensors and are numbered from `first` on, in the order of the backward pass."""
    found: dict[Any, int] = {}
    waiting: list[Any] = [output.grad_fn for output in outputs]
    while waiting:
        node = waiting.pop()
        if node is None or node in found:
            continue
        number = node._sequence_nr()  # noqa: SLF001 - the only way to the order of the backward pass
        if not first <= number < _UNNUMBERED:
            continue
        found[node] = number
        waiting.extend(following for following, _ in node.next_functions)
    return sorted(((number, node) for node, number in found.items()), key=lambda pair: -pair[0])


def _next_number() -> int:
    return int(torch._C._autograd._get_sequence_nr())  # noqa: SLF001 - as above
