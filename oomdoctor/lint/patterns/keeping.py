"""Values that a loop over batches keeps from one batch to the next, and their sizes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from oomdoctor.lint.flow.events import Action, Context, Event, Graph, Keeping, Kind, Loop, Run, Value
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Class, Function, Module, called_name, targets_of, walk

_DATA: Final = re.compile(r"loader|batches$|dataset|data_iter", re.IGNORECASE)


def batch_loops(run: Run) -> tuple[Loop, ...]:
    """The loops whose iteration takes a batch: over a loader, or around a backward pass."""
    found = [loop for loop in run.loops if loop.over_batches or _iterates_over_data(loop)]
    return (*found, *(loop for loop in run.training_loops() if not any(loop is other for other in found)))


def _iterates_over_data(loop: Loop) -> bool:
    """Return whether the iterable of a `for` is named as data: `self.loader.validation()`, `batches[:10]`."""
    node = loop.node
    return isinstance(node, ast.For) and any(
        _DATA.search(getattr(inner, "id", getattr(inner, "attr", ""))) is not None
        for inner in walk(node.iter)
        if isinstance(inner, ast.Name | ast.Attribute)
    )


def innermost(context: Context, loops: tuple[Loop, ...]) -> Loop | None:
    """The innermost of these loops that is around a line."""
    return next((loop for loop in reversed(context.loops) if any(loop is other for other in loops)), None)


def depth_of(context: Context, loop: Loop) -> int:
    """Return the number of calls followed to the function that has the loop; 0 at the top of a module."""
    if loop.function is None:
        return 0
    frames = enumerate(context.frames, 1)
    return next((depth for depth, frame in frames if frame.function is loop.function), len(context.frames))


def reported_at(run: Run, event: Event, depth: int) -> tuple[ast.expr | ast.stmt, Module]:
    """Return the node at which a reader of a function sees an event: its own, or the call that leads to it.

    Args:
        run: The run that the event belongs to.
        event: The event.
        depth: Number of calls followed to the function that is read.

    Returns:
        The node and the file that it lies in.
    """
    frames = event.context.frames
    call = frames[depth].call if len(frames) > depth else None
    if call is None:
        return event.node, event.module
    return call, frames[depth - 1].function.module if depth else run.module


def asks_for_gradients(run: Run, loop: Loop) -> bool:
    """Return whether a loop asks for gradients: a backward pass, `autograd.grad`, `requires_grad` inputs."""
    actions = (Action.BACKWARD, Action.AUTOGRAD, Action.STEP, Action.NEEDS_GRADIENT)
    return any(True for _ in run.of(*actions, within=loop))


def is_frozen(run: Run, forward: Event) -> bool:
    """Return whether a part of the model that may be all that a pass goes through is frozen: it never trains."""
    frozen = [event.value for event in run.of(Action.FREEZE)]
    if not any(value.kind is not Kind.MODEL or value.identity == forward.value.identity for value in frozen):
        return False
    passes = [event.result for event in run.of(Action.FORWARD) if event.value.identity == forward.value.identity]
    return not any(event.value.comes_from(made) for event in run.of(Action.BACKWARD) for made in passes)


_GROW: Final = frozenset({Keeping.SUM, Keeping.APPEND, Keeping.ITEM, Keeping.ITEM_SUM, Keeping.YIELD})

_WITH_STEP: Final = 3  # arguments
_TAKE_ONE: Final = frozenset({"append", "appendleft", "add", "put"})


@dataclass(frozen=True, slots=True)
class Kept:
    """A value that is kept from each batch.

    Attributes:
        run: Run of the event.
        event: The keeping.
        loop: The outermost loop over batches whose iterations each add to what is kept.
    """

    run: Run
    event: Event
    loop: Loop

    def forgotten(self) -> tuple[Event, ...]:
        """Return the events in the loop that release the kept value."""
        return tuple(
            event for event in self.run.of(Action.FORGET, within=self.loop) if _is_of(event.target, self.event.target)
        )

    def reported_at(self) -> tuple[ast.expr | ast.stmt, Module]:
        """Return the node to report: the keeping, or the call that hands the value to its keeper, such as a meter."""
        frames = self.event.context.frames
        makers = [event.context.frames for event in self.forwards()]
        depth = len(frames)
        least = depth_of(self.event.context, self.loop)
        while depth > least and makers and not any(frames[:depth] == made[:depth] for made in makers):
            depth -= 1
        return reported_at(self.run, self.event, depth)

    def takes_slices(self) -> bool:
        """Return whether the loop slices one thing, which may be one large batch: `range(0, n, size)`."""
        return (
            isinstance(self.loop.node, ast.For)
            and isinstance(self.loop.node.iter, ast.Call)
            and _is_range(self.loop.node.iter)
        )

    def forwards(self) -> tuple[Event, ...]:
        """The forward passes that it was computed from."""
        return tuple(event for event in self.run.of(Action.FORWARD) if self.event.value.comes_from(event.result))


def kept_over_batches(run: Run) -> Iterator[Kept]:
    """Yield each value that is added to a sum, a list or a mapping once a batch."""
    loops = batch_loops(run)
    for event in run.of(Action.KEEP):
        if event.how in _GROW:
            loop = _outlived(event, loops)
            if loop is not None and (event.how is not Keeping.ITEM or _is_counted(event, loop) or _adds(event)):
                yield Kept(run, event, loop)


def _outlived(event: Event, loops: tuple[Loop, ...]) -> Loop | None:
    around = event.context.loops
    if event.how is Keeping.YIELD:
        return next((loop for loop in reversed(around) if _is_list(loop, event) and _in(loop, loops)), None)
    if event.outlives is None:
        return None
    first = next(index for index, loop in enumerate(around) if loop is event.outlives)
    return next((loop for loop in around[first:] if _in(loop, loops)), None)


def _is_list(loop: Loop, event: Event) -> bool:
    """Return whether the loop is the list comprehension whose element is kept; a generator keeps none."""
    node = loop.node
    return (isinstance(node, ast.ListComp) and node.elt is event.node) or (
        isinstance(node, ast.DictComp) and node.value is event.node
    )


def _in(loop: Loop, loops: tuple[Loop, ...]) -> bool:
    return any(loop is other for other in loops)


def _is_counted(event: Event, loop: Loop) -> bool:
    """Return whether each iteration stores under a key of its own: by the loop's counter, not into a slice."""
    target = event.node.targets[0] if isinstance(event.node, ast.Assign) else None
    if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Name | ast.BinOp | ast.Tuple):
        return False
    names = {node.id for node in walk(target.slice) if isinstance(node, ast.Name)}
    return loop.counter in names and event.target_value.kind is Kind.CONTAINER


def _adds(event: Event) -> bool:
    """Return whether an event is `totals[key] = totals[key] + value`."""
    value = event.node.value if isinstance(event.node, ast.Assign) else None
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return False
    return event.target in {text_of(value.left), text_of(value.right)}


def _is_of(forgotten: str, target: str) -> bool:
    """Return whether forgetting one text forgets the other: `xs[:]` for `xs`, `meters` for `meters["loss"]`."""
    base = forgotten.removesuffix("[:]")
    return bool(base) and (target == base or target.startswith((f"{base}[", f"{base}.")))


def kept_expression(event: Event) -> ast.expr | None:
    """The expression that is kept, as it is written; None where it is not one expression of its own."""
    node = event.node
    if isinstance(node, ast.AugAssign):
        elements = node.value.elts if isinstance(node.value, ast.List) else []
        return elements[0] if len(elements) == 1 else node.value
    if isinstance(node, ast.Assign):
        return node.value
    if event.how is Keeping.YIELD and isinstance(node, ast.expr):
        return node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
        return node.args[0] if node.func.attr in _TAKE_ONE else None
    return None


def _is_range(call: ast.Call) -> bool:
    """Return whether a call is `range(start, stop, step)`, with a progress bar around it or without."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("range", "trange"):
        return len(call.args) == _WITH_STEP
    return bool(call.args) and isinstance(call.args[0], ast.Call) and _is_range(call.args[0])


FRAMEWORKS: Final = frozenset({"lightning", "transformers", "ignite"})
"""Frameworks that make the backward pass of a step's result."""
_STEPS: Final = frozenset({"training_step", "compute_loss"})


def kept_by_steps(run: Run) -> Iterator[Event]:
    """Yield each value with its graph that a training step adds to an attribute and the class never releases."""
    function = run.function
    if function is None or function.name not in _STEPS or function.class_ is None:
        return
    for event in run.of(Action.KEEP):
        is_own = event.target.startswith("self.") and len(event.context.frames) == 1 and not event.context.loops
        is_added = event.context.managed in FRAMEWORKS and event.how in (Keeping.SUM, Keeping.APPEND)
        if is_own and is_added and _has_graph(event.value) and not _is_emptied(event.target, function.class_):
            yield event


def _has_graph(value: Value) -> bool:
    """Return whether a value hangs on the step's graph: a loss does, unless it was detached."""
    is_loss = value.is_loss and value.kind is Kind.TENSOR and value.graph is Graph.UNKNOWN
    return is_loss or value.graph is Graph.YES


def _is_emptied(target: str, class_: Class) -> bool:
    """Return whether a method other than the constructor sets the target anew, clears it or deletes it."""
    methods = (method.node for name, method in class_.methods.items() if name != "__init__")
    return any(target in _emptied(node) for method in methods for node in walk(method))


def _emptied(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Delete):
        return [text_of(target).removesuffix("[:]") for target in node.targets]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("clear", "pop"):
        return [text_of(node.func.value)]
    return [text_of(target) for target in targets_of(node)]


_SMALL: Final = frozenset(
    {
        "argmax", "argmin", "max", "min", "amax", "amin", "topk", "mode", "median", "mean", "sum", "prod", "std", "var",
        "norm", "numel", "any", "all", "eq", "ne", "item", "tolist", "gather", "cross_entropy", "nll_loss", "mse_loss",
        "cosine_similarity", "squeeze", "flatten_loss", "bincount", "histc", "nonzero", "multinomial", "batch_decode",
        "count_nonzero", "logsumexp", "square_error", "einsum", "where", "masked_select", "max_memory_allocated",
    }
)  # fmt: skip
"""Calls after which a few numbers a sample, or fewer, are left; or that may leave so few."""
_LOSS: Final = re.compile(
    r"loss|criterion|(?:^|_)(?:nll|acc|accuracy|metric|score|error|err|dice|iou|psnr|ssim)(?:$|_)", re.IGNORECASE
)
_MOST_NAMES: Final = 4


def may_be_small(node: ast.expr | None, module: Module, function: Function | None, names: int = 0) -> bool:
    """Return whether an expression may come down to a few numbers a sample.

    Args:
        node: Expression that made the tensor; an unknown one may be small.
        module: The file it stands in.
        function: The function, for what its names were last set to.
        names: Names followed so far.
    """
    if node is None:
        return True
    return any(_is_small(step, module, function, names) for step in _steps(node))


def _steps(node: ast.expr) -> Iterator[ast.expr]:
    """An expression and what it is taken from: `model(x).logits` and `model(x)`; arguments are not looked at."""
    while True:
        yield node
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and called_name(node) not in ("cat", "stack")
        ):
            node = node.func.value
        elif isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            node = node.value
        else:
            return


def _is_small(node: ast.expr, module: Module, function: Function | None, names: int) -> bool:
    if isinstance(node, ast.Name):
        made = _last_set(node, module, function) if names < _MOST_NAMES else None
        is_loss = _LOSS.search(node.id) is not None
        return is_loss or (made is not None and may_be_small(made, module, function, names + 1))
    if isinstance(node, ast.Call):
        return called_name(node) in _SMALL or _LOSS.search(called_name(node)) is not None
    if isinstance(node, ast.Attribute):
        return node.attr in ("loss", "indices", "shape")
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
        return len(parts) > 1 and any(isinstance(part, ast.Constant | ast.UnaryOp) for part in parts[1:])
    return isinstance(node, ast.Compare)


def _last_set(name: ast.Name, module: Module, function: Function | None) -> ast.expr | None:
    """Return the value that a name was last set to above; None where there is none, or it is the name itself."""
    scope = module.tree if function is None else function.node
    found = None
    for node in walk(scope):
        if isinstance(node, ast.Assign) and node.lineno < name.lineno and _sets(node, name.id):
            found = node.value if found is None or node.lineno > found.lineno else found
    return found


def _sets(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
