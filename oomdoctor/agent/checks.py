"""Checks of a program: conditions of which one side can only raise, such as `assert torch.isfinite(loss)`.

Training goes on past its checks. So where one asks for the truth of a value that a null GPU does not have, the answer
is the one that passes, whatever zeros would say. Which side raises is read from the bytecode of the function that asks,
so that `assert a and not b`, `if not a: raise`, `if a: sys.exit(1)` and a function that returns what is then checked
need no rules of their own.
"""

from __future__ import annotations

import bisect
import dis
import functools
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from types import CodeType, FrameType

_ENDS = frozenset(("exit", "_exit", "abort", "quit"))
"""Names of functions that end a program."""
_RAISES = ("RAISE_VARARGS", "RERAISE")
_PASSES_ON = ("TO_BOOL", "CACHE", "NOP", "EXTENDED_ARG", "NOT_TAKEN", "RESUME")
"""Instructions that leave the truth of what is on the stack as it is."""
_MOST_INSTRUCTIONS = 400
"""Instructions that are followed to find out whether a side raises; a block that only raises is short."""
_MOST_CALLERS = 12


class Checked(NamedTuple):
    """A value is what a check asks: `passes` is the truth that passes it, None where the value is computed with."""

    passes: bool | None


class _Returned(NamedTuple):
    """A function returns the truth of a value, or its opposite."""

    is_opposite: bool


def check_of(frame: FrameType | None) -> Checked | None:
    """Return the check that a read is for; None where it is for none.

    Args:
        frame: The frame whose current instruction reads.
    """
    is_opposite = False
    for _ in range(_MOST_CALLERS):
        if frame is None:
            return None
        use = _use(frame.f_code, frame.f_lasti)
        if isinstance(use, Checked):
            return Checked(None if use.passes is None else use.passes != is_opposite)
        if not isinstance(use, _Returned):
            return None
        is_opposite, frame = is_opposite != use.is_opposite, frame.f_back
    return None


@functools.lru_cache(maxsize=4096)
def _use(code: CodeType, offset: int) -> Checked | _Returned | None:
    """Return what becomes of the value that the instruction at an offset reads; None for all else."""
    body = _Body(code)
    # A frame that waits for a function may stand in the caches that follow the call.
    index = bisect.bisect_right(list(body.at), offset) - 1
    if body.steps[index].opname == "PRECALL":  # of Python 3.11, which may do the call that follows
        index += 1
    return body.use(index + 1 if "CALL" in body.steps[index].opname else index)


class _Body:
    """The instructions of a function.

    Attributes:
        steps: The instructions in order.
        at: The place of each among them, by its offset in the bytecode.
    """

    def __init__(self, code: CodeType) -> None:
        self.steps = list(dis.get_instructions(code))
        self.at = {step.offset: index for index, step in enumerate(self.steps)}

    def use(self, index: int) -> Checked | _Returned | None:
        """Return what becomes of the value on top of the stack, from an instruction on; None for all else."""
        is_opposite, is_itself = False, True
        for index in range(index, min(index + _MOST_INSTRUCTIONS, len(self.steps))):  # noqa: B020, PLR1704 - goes on
            name = self.steps[index].opname
            if name == "UNARY_NOT":
                is_opposite = not is_opposite
            elif name.startswith("POP_JUMP") and name.endswith(("IF_TRUE", "IF_FALSE")):
                passes = self._passes(index)
                if passes is None:
                    return None
                return Checked(passes != is_opposite if is_itself else None)
            elif name in ("RETURN_VALUE", "YIELD_VALUE"):
                return _Returned(is_opposite) if is_itself else None
            elif "JUMP" in name or name.startswith(("STORE_SUBSCR", "STORE_ATTR", "POP_TOP", "FOR_ITER", "SEND")):
                return None
            elif not (name in _PASSES_ON or self._stores_or_loads_again(index)):
                is_itself = False  # compared or passed to a function: its truth is not the condition's
        return None

    def _stores_or_loads_again(self, index: int) -> bool:
        """Return whether an instruction and its neighbour store a value and load it again."""
        step, before, after = self.steps[index], self.steps[index - 1], self.steps[index + 1 : index + 2]
        if step.opname == "STORE_FAST_LOAD_FAST":
            return bool(step.argval[0] == step.argval[1])
        if step.opname.startswith("STORE_"):
            return any(each.opname.startswith("LOAD_") and each.argval == step.argval for each in after)
        return step.opname.startswith("LOAD_") and before.opname.startswith("STORE_") and before.argval == step.argval

    def _passes(self, index: int) -> bool | None:
        """Return the truth that takes a conditional jump past a check; None where it is the condition of none."""
        step = self.steps[index]
        target = self.at[step.argval]
        jump_raises, next_raises = (self._only_raises(side, index) for side in (target, index + 1))
        if jump_raises == next_raises:
            return None
        return step.opname.endswith("IF_TRUE") != jump_raises

    def _only_raises(self, start: int, condition: int) -> bool:
        """Return whether every way from an instruction ends in an error, without coming back to the condition."""
        waiting, seen = [start], {start}
        while waiting:
            index = waiting.pop()
            step = self.steps[index]
            if index == condition or step.opname.startswith("RETURN") or len(seen) > _MOST_INSTRUCTIONS:
                return False
            if step.opname in _RAISES or (isinstance(step.argval, str) and step.argval in _ENDS):
                continue
            follows = self._followers(index) - seen
            seen |= follows
            waiting += follows
        return True

    def _followers(self, index: int) -> set[int]:
        step = self.steps[index]
        jumps = step.opcode in dis.hasjrel or step.opcode in dis.hasjabs
        target = {self.at[step.argval]} if jumps else set()
        goes_on = not (jumps and step.opname.startswith("JUMP") and "IF" not in step.opname)
        return target | ({index + 1} if goes_on else set())
