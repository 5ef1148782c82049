"""Rules on what makes each step wait (OOM106, OOM301, OOM302)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, GradMode, Kind, Loop, Run, TensorDevice
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Module, ancestors, parents_in, walk
from oomdoctor.lint.patterns.iterations import conditions, node_beside, stored_in
from oomdoctor.lint.rule import Hit, Subject, read_rules

_ON_THE_GPU: Final = re.compile(r"is_available\(\)|cuda|gpu", re.IGNORECASE)
_EMPTY_CACHE_HELP: Final = "remove it, or call it once where another process or model needs the memory"


def empty_cache_in_loop(subject: Subject) -> Iterator[Hit]:
    """OOM106: the allocator's cache is emptied in every training step."""
    for run in subject.runs:
        for loop in run.training_loops():
            marks = [
                mark for mark in run.of(Action.BACKWARD, Action.STEP, within=loop) if mark.context.loops[-1] is loop
            ]
            for event in run.of(Action.EMPTY_CACHE, within=loop):
                if marks and not _is_rare(event, marks, loop):
                    yield _emptied(event, marks[0], run)


def _is_rare(event: Event, marks: list[Event], loop: Loop) -> bool:
    """Return whether the call is rarer than the optimizer's step: every so many steps, on a flag, on an error."""
    if event.context.handlers or event.context.gradients is not GradMode.ON:
        return True
    expected = {text for mark in marks for text in conditions(mark.context.guards_in(loop))}
    own = conditions(event.context.guards_in(loop))
    return any(text not in expected and not _ON_THE_GPU.search(text) for text in own)


def _emptied(event: Event, mark: Event, run: Run) -> Hit:
    node, module = node_beside(event, mark, run)
    name = text_of(event.call.func) if event.call is not None else "empty_cache"
    return Hit(
        node,
        module,
        f"`{name}` in every step waits for the GPU and makes the next step request its memory anew",
        _EMPTY_CACHE_HELP,
    )


_FROM_DATA: Final = frozenset(
    {"torch.tensor", "torch.as_tensor", "torch.Tensor", "torch.FloatTensor", "torch.LongTensor"}
)
_FILLED: Final = frozenset({"torch.zeros", "torch.ones", "torch.full", "torch.eye", "torch.arange", "torch.linspace"})
_DEVICE: Final = re.compile(r"cuda|gpu|device|rank", re.IGNORECASE)
_RARE: Final = (ast.If, ast.IfExp, ast.ExceptHandler, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.BoolOp)


def constant_copied_in_loop(subject: Subject) -> Iterator[Hit]:
    """OOM301: a tensor that never changes is made on the host and copied to the GPU in every step."""
    for run in subject.runs:
        for loop in run.training_loops():
            module = run.module if loop.function is None else loop.function.module
            if isinstance(loop.node, ast.For | ast.AsyncFor | ast.While):
                yield from _in_loop(loop, module)


def _in_loop(loop: Loop, module: Module) -> Iterator[Hit]:
    parents, stored = parents_in(loop.node), stored_in(loop)
    for node in walk(loop.node):
        if not isinstance(node, ast.Call) or any(isinstance(above, _RARE) for above in ancestors(node, parents)):
            continue
        source = _moved(node)
        if source is not None and _is_constant(source, loop, stored, module):
            message = f"`{_short(node)}` copies values from the host to the GPU that are the same in every step"
            yield Hit(node, module, message, _constant_help(source))
        elif source is None and _is_given_values(node, module) and _DEVICE.search(_device(node)):
            message = f"`{_short(node)}` copies values from the host to the GPU that are the same in every step"
            yield Hit(node, module, message, "make it once, before the loop")


def _moved(node: ast.Call) -> ast.expr | None:
    """Return the tensor that a call moves to a GPU: `x` of `x.to(device)` and `x.cuda()`."""
    if not isinstance(node.func, ast.Attribute):
        return None
    is_to = node.func.attr == "to" and bool(node.args) and _DEVICE.search(text_of(node.args[0])) is not None
    return node.func.value if is_to or node.func.attr == "cuda" else None


def _is_constant(source: ast.expr, loop: Loop, stored: frozenset[str], module: Module) -> bool:
    """Return whether a tensor holds the same values in every step and is made on the host."""
    if isinstance(source, ast.Name) and source.id not in stored:
        made = loop.values.get(source.id)
        source = source if made is None or made.node is None else made.node
    if not isinstance(source, ast.Call) or _device(source):
        return False
    return _is_given_values(source, module) or module.qualified(source.func) in _FILLED


def _is_given_values(node: ast.Call, module: Module) -> bool:
    """Return whether a call makes a tensor of numbers that are written out."""
    if module.qualified(node.func) not in _FROM_DATA or not node.args:
        return False
    parts = walk(node.args[0])
    allowed = (ast.Constant, ast.List, ast.Tuple, ast.UnaryOp, ast.USub, ast.Load)
    is_list = isinstance(node.args[0], ast.List | ast.Tuple) or module.qualified(node.func) in (
        "torch.tensor",
        "torch.as_tensor",
    )
    return is_list and all(isinstance(part, allowed) for part in parts)


def _device(node: ast.Call) -> str:
    return next((text_of(keyword.value) for keyword in node.keywords if keyword.arg == "device"), "")


def _short(node: ast.Call) -> str:
    text = text_of(node)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _constant_help(source: ast.expr) -> str:
    if isinstance(source, ast.Call) and text_of(source.func).rpartition(".")[2] in (
        "zeros",
        "ones",
        "full",
        "eye",
        "arange",
    ):
        return "make it on the GPU: pass `device=` to the function"
    return "move it once, before the loop"


_LONGEST: Final = 60
"""Characters of an expression that a message quotes."""


_ITEM_HELP: Final = "sum up `.detach()` of it on the GPU, and read that once in a while or at the end of the epoch"


def item_in_every_step(subject: Subject) -> Iterator[Hit]:
    """OOM302: each training step waits for the GPU to read a number."""
    for run in subject.runs:
        for loop in run.training_loops():
            found = [event for event in run.of(Action.TO_HOST, within=loop) if _waits(event, loop, run)]
            if found:
                call = found[0].call
                more = f"; the loop has {len(found)} such calls" if len(found) > 1 else ""
                text = "`.item()`" if call is None else f"`{text_of(call)}`"
                yield Hit.at(found[0], f"{text} waits for the GPU in every step{more}", help=_ITEM_HELP)


def _waits(event: Event, loop: Loop, run: Run) -> bool:
    """Return whether a call reads a number of a GPU's tensor in each iteration that has a backward pass."""
    if event.name != ".item" or event.context.loops[-1] is not loop or event.context.handlers:
        return False
    is_output = any(event.value.comes_from(made.result) for made in run.of(Action.FORWARD, within=loop))
    if event.value.device is TensorDevice.CPU or not (
        is_output or event.value.kind is Kind.TENSOR or event.value.is_loss
    ):
        return False
    passes = run.of(Action.BACKWARD, within=loop)
    expected = {text for other in passes for text in conditions(other.context.guards_in(loop))}
    return all(text in expected for text in conditions(event.context.guards_in(loop)))


RULES: Final = read_rules(empty_cache_in_loop, constant_copied_in_loop, item_in_every_step)
