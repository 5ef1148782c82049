"""What is kept by a method that a framework calls on each batch: the loop is not in the user's code."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.events import Act, Keeping
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.flow.values import Graph, Kind
from oomdoctor.lint.patterns.syntax import targets_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.code.functions import Class
    from oomdoctor.lint.flow.events import Event, Run
    from oomdoctor.lint.flow.values import Value

FRAMEWORKS: Final = frozenset({"lightning", "transformers", "ignite"})
"""Those that make the backward pass of what a step gives them."""
_STEPS: Final = frozenset({"training_step", "compute_loss"})


def kept_by_steps(run: Run) -> Iterator[Event]:
    """Each value with its graph that a training step adds to an attribute, and that the class never lets go of."""
    function = run.function
    if function is None or function.name not in _STEPS or function.class_ is None:
        return
    for event in run.of(Act.KEEP):
        is_own = event.target.startswith("self.") and len(event.context.frames) == 1 and not event.context.loops
        is_added = event.context.managed in FRAMEWORKS and event.how in (Keeping.SUM, Keeping.APPEND)
        if is_own and is_added and _has_graph(event.value) and not _is_emptied(event.target, function.class_):
            yield event


def _has_graph(value: Value) -> bool:
    """Whether it hangs on the step's graph: a loss does, unless somebody has taken it off."""
    is_loss = value.is_loss and value.kind is Kind.TENSOR and value.graph is Graph.UNKNOWN
    return is_loss or value.graph is Graph.YES


def _is_emptied(target: str, class_: Class) -> bool:
    """Whether any method but the constructor begins it anew, clears it or deletes it."""
    methods = (method.node for name, method in class_.methods.items() if name != "__init__")
    return any(target in _emptied(node) for method in methods for node in walk(method))


def _emptied(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Delete):
        return [text_of(target).removesuffix("[:]") for target in node.targets]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("clear", "pop"):
        return [text_of(node.func.value)]
    return [text_of(target) for target in targets_of(node)]
