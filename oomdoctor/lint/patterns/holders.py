"""The names under which what `torch.load` gave stays alive."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.syntax import above, own_nodes, parents_in, targets_of

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Class, Function, Module
    from oomdoctor.lint.flow.events import Event, Run


@dataclass(frozen=True, slots=True)
class Holder:
    """Where a loaded checkpoint gets a name.

    Attributes:
        name: `checkpoint` or `self.checkpoint`.
        node: The call that gives it: of `torch.load`, or of the user's function that returns what that gave.
        statement: The assignment.
        function: The function that has it; None at the top of the module.
        module: The file.
        depth: How many calls were followed to that function.
    """

    name: str
    node: ast.expr
    statement: ast.stmt
    function: Function | None
    module: Module
    depth: int

    @property
    def scope(self) -> ast.AST:
        """The function, or the module."""
        return self.module.tree if self.function is None else self.function.node

    @property
    def class_(self) -> Class | None:
        """For an attribute of `self`, the class."""
        is_own = self.name.startswith("self.") and self.function is not None
        return self.function.class_ if is_own and self.function is not None else None

    def names(self) -> dict[str, int]:
        """All names in the function that keep the checkpoint or a part of it alive, each with the line that sets it."""
        found = {self.name: self.statement.lineno}
        for statement in sorted(_assignments(self.scope), key=lambda statement: statement.lineno):
            if statement.lineno > self.statement.lineno and _root(statement.value) in found:
                for target in targets_of(statement):
                    if isinstance(target, ast.Name) and _is_loaded(target.id, self.scope):
                        found[target.id] = statement.lineno
        return found

    def alive(self, line: int) -> list[str]:
        """Those of the names that still hold it at a line of the function further down."""
        return [name for name, since in self.names().items() if not _is_released(name, since, line, self.scope)]


def holder_of(run: Run, event: Event) -> Holder | None:
    """Where what an event loads gets a name; None where it gets none, or nobody here can say."""
    frames = event.context.frames
    node: ast.AST | None = event.call
    for depth in range(len(frames), -1, -1):
        function = frames[depth - 1].function if depth else None
        module = run.module if function is None else function.module
        if not isinstance(node, ast.expr):
            return None
        statement = _statement_of(node, module.tree if function is None else function.node)
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            is_name = isinstance(target, ast.Name | ast.Attribute)
            return Holder(text_of(target), node, statement, function, module, depth) if is_name else None
        if not isinstance(statement, ast.Return) or not depth:
            return None
        node = frames[depth - 1].call
    return None


def _statement_of(node: ast.expr, scope: ast.AST) -> ast.AST | None:
    """The statement whose whole value is `node`, or a part of it by a key."""
    around = above(node, parents_in(scope))
    return next((outer for outer in around if not isinstance(outer, ast.Subscript)), None)


def _assignments(scope: ast.AST) -> list[ast.Assign]:
    return [node for node in own_nodes(scope) if isinstance(node, ast.Assign)]


def _root(node: ast.expr) -> str | None:
    """`checkpoint` for `checkpoint["model"]` and for `checkpoint.get("model")`."""
    while isinstance(node, ast.Subscript) or _is_get(node):
        node = node.value if isinstance(node, ast.Subscript) else node.func.value  # type: ignore[attr-defined]
    return text_of(node) if isinstance(node, ast.Name | ast.Attribute) else None


def _is_get(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop")


def _is_loaded(name: str, scope: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "load_state_dict"
        and any(isinstance(argument, ast.Name) and argument.id == name for argument in node.args)
        for node in own_nodes(scope)
    )


def _is_released(name: str, since: int, until: int, scope: ast.AST) -> bool:
    return any(since < getattr(node, "lineno", 0) < until and name in _let_go_of(node) for node in own_nodes(scope))


def _let_go_of(node: ast.AST) -> list[str]:
    """Names that a statement deletes or gives a new meaning."""
    if isinstance(node, ast.Delete):
        return [text_of(target) for target in node.targets]
    if isinstance(node, ast.Assign) and _root(node.value) in {text_of(target) for target in node.targets}:
        return []  # `state = state["model"]` keeps the part
    return [text_of(target) for target in targets_of(node)]
