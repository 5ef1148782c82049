"""Replace names of modules for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import ExitStack

_MISSING = object()


class Patches:
    """Replaces attributes, and puts them back when the stack ends.

    Args:
        stack: What puts them back.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def set(self, owner: Any, name: str, value: object) -> None:  # noqa: ANN401 - a module or class
        """Replace `owner.name`, which may not be there yet."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        if before is _MISSING:
            self._stack.callback(delattr, owner, name)
        else:
            self._stack.callback(setattr, owner, name, before)

    def callback(self, function: Any, *args: object) -> None:  # noqa: ANN401
        """Call `function` when the stack ends."""
        self._stack.callback(function, *args)
