"""OOM301: a tensor that never changes is made on the host and copied to the GPU in every step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Loop
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Module, ancestors, parents_in, walk
from oomdoctor.lint.patterns.iterations import stored_in
from oomdoctor.lint.rule import Hit, Subject, read_rule

_FROM_DATA: Final = frozenset(
    {"torch.tensor", "torch.as_tensor", "torch.Tensor", "torch.FloatTensor", "torch.LongTensor"}
)
_FILLED: Final = frozenset({"torch.zeros", "torch.ones", "torch.full", "torch.eye", "torch.arange", "torch.linspace"})
_DEVICE: Final = re.compile(r"cuda|gpu|device|rank", re.IGNORECASE)
_RARE: Final = (ast.If, ast.IfExp, ast.ExceptHandler, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.BoolOp)


def _check(subject: Subject) -> Iterator[Hit]:
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
            yield Hit(node, module, message, _help(source))
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


def _help(source: ast.expr) -> str:
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

RULE: Final = read_rule(__file__, _check)
