"""Checkpoints and state dicts: where they come from, and which names keep their tensors alive."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Keeping, Run
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Class, Function, Module, Parents, ancestors, own_nodes, parents_in, targets_of, walk

_NUMBERS: Final = frozenset(
    {
        "epoch", "step", "iteration", "iter", "iter_num", "global_step", "epochs", "epochs_run", "args",
        "config", "cfg", "hparams", "version", "arch", "iter_no", "start_epoch",
    }
)  # fmt: skip
"""Keys of a checkpoint under which no tensors lie; a best score may be one."""
_BEFORE_ASSIGN: Final = 2
"""Arguments of `load_state_dict` that come before `assign`; with `**kwargs` it may be anything."""


def location(event: Event) -> ast.expr | None:
    """Return the `map_location` of a `torch.load`; the call itself where other arguments may hold it."""
    call = event.call
    if call is None:
        return None
    if any(keyword.arg is None for keyword in call.keywords) or any(
        isinstance(node, ast.Starred) for node in call.args
    ):
        return call
    given = call.args[1] if len(call.args) > 1 else event.keyword("map_location")
    is_none = isinstance(given, ast.Constant) and given.value is None
    return None if is_none else given


def loads_of(run: Run, event: Event) -> tuple[Event, ...]:
    """Return each `load_state_dict` of a loaded checkpoint, of a part of it, or of a dictionary copied from it."""
    copies = {
        kept.target.partition("[")[0]
        for kept in run.of(Action.KEEP)
        if kept.how is Keeping.ITEM and kept.value.comes_from(event.result)
    }
    return tuple(
        loaded
        for loaded in run.of(Action.LOAD_STATE)
        if loaded.value.comes_from(event.result) or _argument(loaded) in copies
    )


def _argument(loaded: Event) -> str:
    given = loaded.call.args if loaded.call is not None else []
    return text_of(given[0]) if given else ""


def is_only_loaded(run: Run, event: Event) -> bool:
    """Return whether a checkpoint goes into `load_state_dict` alone, but for numbers, which have no device."""
    loaded = loads_of(run, event)
    if not loaded or any(shares_memory(other) for other in loaded) or event.call is None:
        return False
    scope = event.module.tree if event.function is None else event.function.node
    parents = {child: parent for parent in walk(scope) for child in ast.iter_child_nodes(parent)}
    above = parents.get(event.call)
    if not isinstance(above, ast.Assign):
        return _is_given_to_load(event.call, parents)
    names = [target.id for target in above.targets if isinstance(target, ast.Name)]
    return len(names) == len(above.targets) == 1 and all(
        _is_harmless(node, parents)
        for node in walk(scope)
        if isinstance(node, ast.Name) and node.id == names[0] and isinstance(node.ctx, ast.Load)
    )


def shares_memory(loaded: Event) -> bool:
    """Return whether the parameters may become the loaded tensors themselves, wherever those are."""
    call = loaded.call
    if call is not None and (len(call.args) > _BEFORE_ASSIGN or any(given.arg is None for given in call.keywords)):
        return True
    assign = loaded.keyword("assign")
    return assign is not None and not (isinstance(assign, ast.Constant) and assign.value is False)


def _is_harmless(node: ast.expr, parents: dict[ast.AST, ast.AST]) -> bool:
    above = parents.get(node)
    if isinstance(above, ast.Compare):
        return True
    key = _key(node, above)
    if isinstance(key, str) and key.lower() in _NUMBERS:
        return True
    return _is_given_to_load(node, parents)


def _key(node: ast.expr, above: ast.AST | None) -> object:
    """The key in `node["key"]` and in `node.get("key")`."""
    if isinstance(above, ast.Subscript) and isinstance(above.slice, ast.Constant):
        return above.slice.value
    return "epoch" if isinstance(above, ast.Attribute) and above.value is node and above.attr == "keys" else None


def _is_given_to_load(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Return whether a node, or a part of it by a key, is an argument of `load_state_dict`."""
    above = parents.get(node)
    while isinstance(above, ast.Subscript) and above.value is node:
        node, above = above, parents.get(above)
    return (
        isinstance(above, ast.Call) and isinstance(above.func, ast.Attribute) and above.func.attr == "load_state_dict"
    )


@dataclass(frozen=True, slots=True)
class Holder:
    """The statement that names a loaded checkpoint.

    Attributes:
        name: `checkpoint` or `self.checkpoint`.
        node: The call that gives it: of `torch.load`, or of the user's function that returns what that gave.
        statement: The assignment.
        function: The function that has it; None at the top of the module.
        module: The file.
        depth: Number of calls followed to that function.
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
        """Return the names that still hold the checkpoint at a line further down in the function."""
        return [name for name, since in self.names().items() if not _is_released(name, since, line, self.scope)]


def holder_of(run: Run, event: Event) -> Holder | None:
    """Return the statement that names a loaded checkpoint; None where there is none, or it cannot be seen."""
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
    around = ancestors(node, parents_in(scope))
    return next((outer for outer in around if not isinstance(outer, ast.Subscript)), None)


def _assignments(scope: ast.AST) -> list[ast.Assign]:
    return [node for node in own_nodes(scope) if isinstance(node, ast.Assign)]


def _root(node: ast.expr) -> str | None:
    """`checkpoint` for `checkpoint["model"]` and for `checkpoint.get("model")`."""
    while isinstance(node, ast.Subscript) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop")
    ):
        node = node.value if isinstance(node, ast.Subscript) else node.func.value  # type: ignore[attr-defined]
    return text_of(node) if isinstance(node, ast.Name | ast.Attribute) else None


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


_SHALLOW: Final = frozenset({"dict", "OrderedDict", "copy"})
_SAME_TENSOR: Final = frozenset({"detach", "data"})
_COPIES: Final = frozenset({"deepcopy", "clone", "cpu"})
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True, slots=True)
class Alias:
    """`best = model.state_dict()`.

    Attributes:
        target: Target of the assignment.
        model: Source text of the model.
        value: Value of the assignment.
        scope: The function or the module that it stands in.
    """

    target: ast.expr
    model: str
    value: ast.expr
    scope: ast.AST

    @property
    def name(self) -> str:
        """Source text of what it is assigned to."""
        return text_of(self.target)

    def loads(self, parents: Parents) -> Iterator[ast.Call]:
        """Yield each `model.load_state_dict(best)` of the file."""
        for node in parents:
            if _loads(node, self.name, self.model) and self._reaches(node, parents):
                yield node  # type: ignore[misc]

    def _reaches(self, load: ast.AST, parents: Parents) -> bool:
        """Return whether the name means the same there: an attribute anywhere, a local in its function and around."""
        if self.is_attribute():
            return True
        scope = scope_of(load, parents)
        outer = [self.scope, *(node for node in ancestors(self.scope, parents) if _is_shared(self.name, self.scope))]
        return any(scope is other for other in outer)

    def is_attribute(self) -> bool:
        """Whether the name is an attribute of an object."""
        return isinstance(self.target, ast.Attribute)


def has_aliases(module: Module) -> bool:
    """Return whether a file has any aliases; asked first, since it needs no table of the whole tree."""
    return any(aliased_model(value) is not None for node in walk(module.tree) for _, value in _pairs(node))


def aliases(parents: Parents) -> Iterator[Alias]:
    """Yield each assignment in a file that names a state dict whose tensors are the model's own."""
    for node in parents:
        for target, value in _pairs(node):
            model = aliased_model(value)
            if model is not None:
                yield Alias(target, model, value, scope_of(node, parents))


def _pairs(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Return targets and values of an assignment; `best, state = score, model.state_dict()` has two."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return []
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def aliased_model(node: ast.expr) -> str | None:
    """Source text of the model whose own tensors an expression holds; None where it copies, or is something else."""
    if isinstance(node, ast.DictComp):
        source = node.generators[0].iter
        value = node.value
        if isinstance(value, ast.Call) and not value.args:
            value = value.func
        is_same = isinstance(value, ast.Name) or (isinstance(value, ast.Attribute) and value.attr in _SAME_TENSOR)
        is_items = (
            isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) and source.func.attr == "items"
        )
        return aliased_model(source.func.value) if is_same and is_items else None  # type: ignore[attr-defined]
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name == "state_dict" and isinstance(function, ast.Attribute) and not node.args:
        return _text(function.value)
    if name == "copy" and not node.args and isinstance(function, ast.Attribute):
        return aliased_model(function.value)
    return aliased_model(node.args[0]) if name in _SHALLOW and len(node.args) == 1 else None


def _text(node: ast.expr) -> str | None:
    return text_of(node) if isinstance(node, ast.Name | ast.Attribute) else None


def _loads(node: ast.AST, name: str, model: str) -> bool:
    is_load = (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load_state_dict"
    )
    if not is_load or not node.args:  # type: ignore[attr-defined]
        return False
    receiver, given = text_of(node.func.value), text_of(node.args[0])  # type: ignore[attr-defined]
    if receiver.rpartition(".")[2] != model.rpartition(".")[2]:
        return False
    return given == name or ("." in name and "[" not in name and given.rpartition(".")[2] == name.rpartition(".")[2])


def _is_shared(name: str, scope: ast.AST) -> bool:
    return any(isinstance(node, ast.Nonlocal | ast.Global) and name in node.names for node in own_nodes(scope))


def scope_of(node: ast.AST, parents: Parents) -> ast.AST:
    """The function that a node stands in, or the module."""
    outer = node
    for outer in ancestors(node, parents):
        if isinstance(outer, _FUNCTIONS):
            return outer
    return outer


def loops_around(node: ast.AST, parents: Parents) -> list[ast.stmt]:
    """The loops of its own function that a node stands in, outermost first."""
    found: list[ast.stmt] = []
    for outer in ancestors(node, parents):
        if isinstance(outer, _FUNCTIONS):
            break
        if isinstance(outer, _LOOPS):
            found.append(outer)
    return found[::-1]


def lines_between(first: ast.AST, second: ast.AST, parents: Parents) -> tuple[int, int]:
    """The lines of a function that may run after one of its nodes and before another, loops that go round included."""
    loops, others = loops_around(first, parents), loops_around(second, parents)
    start = next((loop.lineno for loop in loops if loop not in others), getattr(first, "lineno", 0))
    end = next((loop.end_lineno for loop in others if loop not in loops), getattr(second, "lineno", 0))
    return start, end or 0


def is_set_again(name: str, scope: ast.AST, since: int) -> bool:
    """Return whether a function gives a name another meaning from a line on."""
    stored = (node for node in own_nodes(scope) if isinstance(node, ast.Name | ast.Attribute))
    return any(isinstance(node.ctx, ast.Store) and node.lineno >= since and text_of(node) == name for node in stored)


def is_copied_later(alias: Alias) -> bool:
    """Return whether the function copies what the name holds further down: `copy.deepcopy(best)`."""
    return any(
        isinstance(node, ast.Assign)
        and any(target is not alias.target and text_of(target) == alias.name for target in targets_of(node))
        and aliased_model(node.value) is None
        and any(_is_copy(part, node, alias) for part in walk(node.value))
        for node in own_nodes(alias.scope)
    )


def _is_copy(part: ast.AST, node: ast.Assign, alias: Alias) -> bool:
    name = part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")
    return (isinstance(part, ast.Name | ast.Attribute) and text_of(part) == alias.name) or (
        name in _COPIES and node.lineno > alias.target.lineno
    )
