"""What happens in a run of the code, as far as memory and gradients are concerned."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from oomdoctor.lint.flow.values import UNKNOWN, Value

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable, Iterator

    from oomdoctor.lint.code.functions import Function, Module
    from oomdoctor.lint.flow.context import Context, Loop


class Act(StrEnum):
    """What an event is; what `value` and `result` are stands beside each."""

    FORWARD = "forward"  # a model is called; value: the model, result: its output
    BACKWARD = "backward"  # value: the loss, whoever makes the pass (`loss.backward()`, `accelerator.backward(loss)`)
    AUTOGRAD = "autograd"  # torch.autograd.grad, functional.jacobian and their like; value: the first argument
    STEP = "step"  # of an optimizer, through a scaler too; value: the optimizer
    ZERO_GRAD = "zero_grad"  # value: the optimizer or the model
    CLIP = "clip"  # of gradients, by norm or value
    UNSCALE = "unscale"  # scaler.unscale_(optimizer)
    SCALER_UPDATE = "scaler_update"  # scaler.update()
    SCHEDULE = "schedule"  # scheduler.step(); value: the scheduler
    TRAIN_MODE = "train_mode"  # model.train(); value: the model
    EVAL_MODE = "eval_mode"  # model.eval() or model.train(False); value: the model
    LOAD = "load"  # torch.load; result: the checkpoint
    LOAD_STATE = "load_state"  # x.load_state_dict(value); value: what is loaded
    EMPTY_CACHE = "empty_cache"  # torch.cuda.empty_cache()
    KEEP = "keep"  # value is stored where it outlives the iteration or the statement; see `target`
    FORGET = "forget"  # `del x`, `xs.clear()`, `x = None`, or a kept total that is set anew; see `target`
    COLLECT = "collect"  # torch.cat or torch.stack; value: the container that is given
    TO_HOST = "to_host"  # .cpu(), .item(), .numpy(), .tolist(), .to("cpu"); value: the tensor
    CALL = "call"  # a call of a library's function by a qualified name that has no event of its own; `name` has it
    NEXT = "next"  # a batch is drawn with next(); value: the iterator
    FREEZE = "freeze"  # requires_grad_(False), or `.requires_grad = False`; value: the model, tensor or parameter
    NEEDS_GRADIENT = "needs_gradient"  # the like with True: an input is to get a gradient; value: the tensor


class Keeping(StrEnum):
    """How a value is kept."""

    SUM = "sum"  # total += value, total = total + value
    APPEND = "append"  # list.append(value), list += [value], list.extend(...), queue.put(value)
    ITEM = "item"  # mapping[key] = value
    ITEM_SUM = "item sum"  # mapping[key] += value
    ATTRIBUTE = "attribute"  # thing.name = value
    YIELD = "yield"  # a comprehension or a generator's element


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens.

    Attributes:
        act: What.
        node: Where: the call or the statement to point at.
        module: The file that `node` lies in; a run that follows a call may leave the file it began in.
        context: Under what circumstances.
        value: What it happens to; see `Act`.
        result: What it gives.
        call: The call, where it is one; its keywords are there to read.
        name: Qualified name of what is called, such as `torch.nn.utils.clip_grad_norm_`, or `.` and a method's name.
        target: For KEEP and FORGET: source text of what it is kept in, such as `self.losses` or `total`.
        target_value: For KEEP: what was known of the target before.
        how: For KEEP.
        outlives: For KEEP: the outermost loop that the target was there before, so that each iteration of it adds to
            what is kept; None where the target is made anew in each iteration or there is no loop.
    """

    act: Act
    node: ast.expr | ast.stmt
    module: Module
    context: Context
    value: Value = UNKNOWN
    result: Value = UNKNOWN
    call: ast.Call | None = None
    name: str = ""
    target: str = ""
    target_value: Value = UNKNOWN
    how: Keeping | None = None
    outlives: Loop | None = None

    @property
    def loop(self) -> Loop | None:
        """The innermost loop around it."""
        return self.context.loops[-1] if self.context.loops else None

    @property
    def function(self) -> Function | None:
        """The function whose body it lies in; None at the top of a module."""
        return self.context.frames[-1].function if self.context.frames else None

    def keyword(self, name: str) -> ast.expr | None:
        """The argument that the call gives by this name."""
        if self.call is None:
            return None
        return next((keyword.value for keyword in self.call.keywords if keyword.arg == name), None)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What happens from one point of entry on: a module's top level, or a function that nobody here calls.

    Attributes:
        module: The file in which it begins.
        function: The function with which it begins; None for the module's top level.
        events: In the order of the program. Both branches of an `if` follow each other; guards tell them apart.
        loops: Every loop that was entered, in the same order.
        training: The loops whose iteration takes one micro-batch, in the order of their backward passes.
    """

    module: Module
    function: Function | None
    events: tuple[Event, ...]
    loops: tuple[Loop, ...]
    training: tuple[Loop, ...] = ()

    def of(self, *acts: Act, within: Loop | None = None) -> Iterator[Event]:
        """Events of these kinds, in order.

        Args:
            acts: Which kinds; all of them where none is given.
            within: Only those with this loop around them, at whatever depth.
        """
        for event in self.events:
            if (not acts or event.act in acts) and (within is None or within in event.context.loops):
                yield event

    def training_loops(self) -> Iterator[Loop]:
        """The loops whose iteration takes one micro-batch."""
        return iter(self.training)


def training_loops(events: Iterable[Event]) -> tuple[Loop, ...]:
    """The innermost loop that takes batches around each backward pass; else the innermost one around it."""
    found: dict[Loop, None] = {}
    for event in events:
        loops = event.context.loops
        if event.act is Act.BACKWARD and loops:
            found[next((loop for loop in reversed(loops) if loop.over_batches), loops[-1])] = None
    return tuple(found)
