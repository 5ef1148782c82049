"""Evaluation: whether a pass evaluates a model, and whether a function can run without gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Loop, Run
from oomdoctor.lint.module import Function, walk

_EVALUATION: Final = re.compile(
    r"^_*(?:run_|do_)?(?:eval|evaluate|evaluation|validate|validation|valid|val|test|infer|inference|predict)"
    r"(?:_(?:epoch|one_epoch|loop|step|model|net|network|loader|set|dataset|all|loss|accuracy|acc|fn))?$"
)


def is_evaluation(run: Run, event: Event, loop: Loop) -> bool:
    """Return whether a forward pass evaluates a model.

    It goes by the mode that the model was last put in, else by the function's name, unless the function itself puts
    the model in training mode.

    Args:
        run: The run.
        event: The forward pass.
        loop: The loop over batches that it is in.
    """
    last = None
    for other in run.events:
        if other is event:
            break
        if other.action in (Action.EVAL_MODE, Action.TRAIN_MODE) and _is_same(other, event):
            last = other
    if last is not None and last.action is Action.EVAL_MODE:
        return True
    is_own = last is not None and any(frame.function is loop.function for frame in last.context.frames)
    return not is_own and is_evaluation_name(loop.function)


def _is_same(mode: Event, forward: Event) -> bool:
    return mode.value.identity > 0 and mode.value.identity == forward.value.identity


def is_evaluation_name(function: Function | None) -> bool:
    """Return whether a function's name says that it evaluates a model or predicts with it."""
    return function is not None and _EVALUATION.match(function.name) is not None


MUTATORS: Final = frozenset({"append", "extend", "insert", "add", "update", "setdefault"})
"""Methods that put what they are given into what they are called on."""
METHODS: Final = frozenset(
    {"to", "cuda", "cpu", "float", "half", "double", "long", "int", "bool", "item", "tolist", "numpy", "detach"}
    | {"clone", "contiguous", "argmax", "argmin", "argsort", "max", "min", "sum", "mean", "std", "var", "prod", "norm"}
    | {"abs", "exp", "log", "sqrt", "pow", "square", "softmax", "log_softmax", "sigmoid", "tanh", "relu", "clamp"}
    | {"round", "floor", "ceil", "eq", "ne", "gt", "lt", "ge", "le", "view", "reshape", "flatten", "squeeze"}
    | {"unsqueeze", "transpose", "permute", "expand", "repeat", "t", "size", "dim", "numel", "topk", "any", "all"}
    | {"view_as", "expand_as", "type_as", "type", "astype", "items", "keys", "values", "get", "copy", "count"}
    | {"index", "pop", "join", "format", "split", "strip", "lower", "upper", "startswith", "endswith"}
)
"""Methods of tensors, arrays, containers and texts, which do nothing but what their names say."""
_CUT: Final = frozenset(
    {"item", "tolist", "numpy", "detach", "argmax", "argmin", "argsort", "size", "dim", "numel", "eq", "ne"}
)
_NUMBERS: Final = frozenset({"int", "float", "bool", "str", "len", "range", "repr", "isinstance", "print", "type"})
_FACTS: Final = frozenset({"shape", "dtype", "device", "data"})
_PARTS: Final = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.IfExp, ast.Starred)
_ALWAYS: Final = (ast.Constant, ast.JoinedStr, ast.Compare, ast.Slice)
_MADE_HERE: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.BinOp, ast.Constant, ast.JoinedStr)
_KEEP_GRAPHS: Final = ("torch", "torchvision", "torchmetrics", "einops", "copy", "collections", "itertools")


@dataclass(slots=True)
class Bindings:
    """The values that a function's names are bound to.

    Attributes:
        function: The function.
        qualified: Gives the qualified name of a library's function that an expression means.
        is_given_graphs: Whether its parameters may hang on a graph.
        hanging: Names that may; filled step by step.
        bound: Values that each name is bound to, in any way.
        changed: Values put into an object under an unchanged name.
        escaping: Values stored outside the function.
    """

    function: Function
    qualified: Callable[[ast.expr], str | None]
    is_given_graphs: bool = False
    hanging: set[str] = field(default_factory=set)
    bound: dict[str, list[ast.expr]] = field(default_factory=dict)
    changed: dict[str, list[ast.expr]] = field(default_factory=dict)
    escaping: list[ast.expr] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Collect the bindings, and follow what hangs on a graph from name to name."""
        for node in walk(self.function.node):
            for target, value in _bindings(node):
                self._bind(target, value, is_change=isinstance(node, ast.AugAssign | ast.Call))
        if self.is_given_graphs:
            self.hanging |= parameters(self.function)
        while self._spread():
            pass

    def _bind(self, target: ast.expr, value: ast.expr, *, is_change: bool) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            is_alike = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
            for position, element in enumerate(target.elts):
                given = value.elts[position] if is_alike else value  # type: ignore[attr-defined]
                self._bind(element, given, is_change=is_change)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, value, is_change=is_change)
        elif isinstance(target, ast.Name) and not is_change:
            self.bound.setdefault(target.id, []).append(value)
        else:
            self._change(target, value)

    def _change(self, target: ast.expr, value: ast.expr) -> None:
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name):
            self.changed.setdefault(target.id, []).append(value)
        else:
            self.escaping.append(value)

    def _spread(self) -> bool:
        before = len(self.hanging)
        for given in (self.bound, self.changed):
            self.hanging |= {name for name, values in given.items() if not all(map(self.is_free, values))}
        return len(self.hanging) > before

    def leaks_graph(self, *, returned: bool) -> bool:
        """Return whether something that may hang on a graph is stored outside the function or, if asked, returned."""
        outside = {name for name in self.changed if name in self.hanging and not self._is_own(name)}
        results = [node.value for node in walk(self.function.node) if isinstance(node, ast.Return) and node.value]
        values = [*self.escaping, *(results if returned else [])]
        return bool(outside) or not all(map(self.is_free, values))

    def _is_own(self, name: str) -> bool:
        """Return whether the value of a name was made in this function, so that nobody else has it."""
        values = self.bound.get(name, [])
        return bool(values) and name not in parameters(self.function) and all(map(self._is_made_here, values))

    def _is_made_here(self, value: ast.expr) -> bool:
        if isinstance(value, ast.List | ast.Tuple | ast.Set):
            return all(map(self._is_made_here, value.elts))
        if isinstance(value, ast.Dict):
            return all(map(self._is_made_here, value.values))
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not self.qualified(value.func):
            value = value.func.value  # `Accuracy().to(device)`
        return isinstance(value, (ast.Call, *_MADE_HERE))

    def is_free(self, node: ast.expr) -> bool:
        """Return whether a value surely hangs on no graph that this function makes."""
        if isinstance(node, ast.Name):
            return node.id not in self.hanging
        if isinstance(node, ast.Attribute | ast.Subscript):
            return getattr(node, "attr", "") in _FACTS or self.is_free(node.value)
        if isinstance(node, ast.Call):
            return self._is_free_call(node)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            return self.is_free(node.value if isinstance(node, ast.DictComp) else node.elt)
        inner = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
        return isinstance(node, _ALWAYS) or (isinstance(node, _PARTS) and all(map(self.is_free, inner)))

    def _is_free_call(self, node: ast.Call) -> bool:
        name = self.qualified(node.func)
        given = all(map(self.is_free, [*node.args, *(keyword.value for keyword in node.keywords)]))
        if name is not None:
            return given or name.partition(".")[0] not in _KEEP_GRAPHS
        if isinstance(node.func, ast.Name):
            return node.func.id in _NUMBERS or (given and node.func.id in _KEEPING)
        if not isinstance(node.func, ast.Attribute):
            return False
        return node.func.attr in _CUT or (given and node.func.attr in METHODS and self.is_free(node.func.value))


_KEEPING: Final = frozenset(
    {"sum", "max", "min", "abs", "round", "list", "dict", "set", "tuple", "sorted", "reversed", "iter", "next", "zip"}
    | {"enumerate", "any", "all", "divmod", "hasattr"}
)
"""Builtins that give nothing on a graph where they are given nothing on one."""


def parameters(function: Function) -> frozenset[str]:
    """Names of a function's parameters."""
    return frozenset(node.arg for node in walk(function.node.args) if isinstance(node, ast.arg))


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets that a node binds or changes, each with its value."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield node.target, node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        yield from ((node.func.value, value) for value in given)


_LIBRARIES: Final = frozenset(
    {"torch", "torchvision", "torchmetrics", "numpy", "math", "tqdm", "sklearn", "scipy", "pandas", "time", "os"}
    | {"sys", "json", "logging", "random", "collections", "itertools", "statistics", "pathlib", "einops", "PIL", "cv2"}
)
_GRADIENTS: Final = re.compile(
    r"^torch\.(?:autograd|func|optim|utils|hub|jit|library|ops|cuda\.graph|enable_grad|set_grad)|\.grad$|register"
)
_BUILTINS: Final = frozenset(
    {"print", "len", "range", "enumerate", "zip", "int", "float", "str", "bool", "sum", "max", "min", "abs", "round"}
    | {"list", "dict", "set", "tuple", "sorted", "reversed", "iter", "next", "isinstance", "any", "all", "type", "repr"}
)
_LOSS: Final = re.compile(r"(?:^|_)(?:criterion|crit|loss|loss_?fn|loss_?func|loss_function)\d*$")
_REFUSED: Final = (
    *(ast.AsyncFunctionDef, ast.Await, ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal),
    *(ast.Lambda, ast.ClassDef, ast.AsyncFor, ast.AsyncWith, ast.Match),
)
_KNOWN_ACTS: Final = (Action.FORWARD, Action.EVAL_MODE, Action.TRAIN_MODE)
_DEEPEST: Final = 3


def only_evaluates(function: Function, events: Iterable[Event]) -> bool:
    """Return whether all calls of a function are harmless, and nothing that hangs on a graph leaves it.

    Harmless are the model itself, loss functions, functions of well-known libraries, builtins, methods of tensors and
    containers, and functions of the same file of which the same holds.

    Args:
        function: The function.
        events: Events of the run; calls of models are known from them.
    """
    known = {id(event.call) for event in events if event.action in _KNOWN_ACTS and event.call is not None}
    return _is_harmless(function, known, 0)


def _is_harmless(function: Function, known: set[int], depth: int) -> bool:
    nodes = list(walk(function.node))
    others = (node for node in nodes if node is not function.node)
    if isinstance(function.node, ast.AsyncFunctionDef) or any(
        isinstance(node, (*_REFUSED, ast.FunctionDef)) for node in others
    ):
        return False
    body = _Body(function, known, depth)
    calls = [node for statement in function.node.body for node in walk(statement) if isinstance(node, ast.Call)]
    return all(map(body.may_call, calls)) and not body.names.leaks_graph(returned=depth == 0)


class _Body:
    """A function's body, with the calls that are harmless in it."""

    def __init__(self, function: Function, known: set[int], depth: int) -> None:
        self.function, self.known, self.depth = function, known, depth
        self.given = parameters(function)
        self.own = {
            node.id for node in walk(function.node) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        self.names = Bindings(function, self.library, is_given_graphs=depth > 0)

    def library(self, node: ast.expr) -> str | None:
        """Qualified name of a function of a well-known library that does nothing about gradients."""
        root = _root(node)
        name = self.function.module.qualified(node)
        if name is None or root is None or root.id in self.given | self.own:
            return None
        is_known = name.partition(".")[0] in _LIBRARIES and not name.startswith(".")
        return name if is_known and _GRADIENTS.search(name) is None else None

    def may_call(self, node: ast.Call) -> bool:
        """Return whether a call surely takes no gradient and keeps no graph for others."""
        if id(node) in self.known or self.library(node.func) is not None:
            return True
        if isinstance(node.func, ast.Name):
            return self._may_call_name(node.func.id, node)
        return isinstance(node.func, ast.Attribute) and self._may_call_method(node.func)

    def _may_call_name(self, name: str, node: ast.Call) -> bool:
        if self._is_of_library(name):
            return True
        if name in self.given | self.own or name in self.function.module.names:
            return _LOSS.search(name) is not None and name in self.given
        if name in self.function.module.top:
            return self._may_follow(self.function.module.top[name])
        if _LOSS.search(name) is not None:
            return self.function.parent is not None or self._is_set_at_top(name)
        return name in _BUILTINS and not any(keyword.arg == "key" for keyword in node.keywords)

    def _may_follow(self, other: Function) -> bool:
        is_plain = not other.node.decorator_list and other is not self.function and self.depth < _DEEPEST
        return is_plain and _is_harmless(other, self.known, self.depth + 1)

    def _is_set_at_top(self, name: str) -> bool:
        stored = (node for statement in self.function.module.tree.body for node in _targets(statement))
        return any(isinstance(node, ast.Name) and node.id == name for node in stored)

    def _may_call_method(self, method: ast.Attribute) -> bool:
        root = _root(method)
        if isinstance(method.value, ast.Name) and method.value.id in ("self", "cls"):
            return _LOSS.search(method.attr) is not None and self._is_set_in_class(method.attr)
        if method.attr in METHODS or (root is not None and self._is_of_library(root.id)):
            return True
        return method.attr in MUTATORS and self._holds_values(method.value)

    def _holds_values(self, receiver: ast.expr) -> bool:
        """Return whether a receiver is a list or dictionary that the function itself displays."""
        while isinstance(receiver, ast.Subscript):
            receiver = receiver.value
        values = self.names.bound.get(receiver.id, []) if isinstance(receiver, ast.Name) else []
        return bool(values) and all(map(self._is_container, values))

    def _is_container(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Call):
            is_builtin = isinstance(value.func, ast.Name) and value.func.id in ("list", "dict", "set")
            return is_builtin or (self.library(value.func) or "").startswith("collections.")
        return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)

    def _is_set_in_class(self, name: str) -> bool:
        class_ = self.function.class_
        if class_ is None or name in class_.methods:
            return False
        return any(
            isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == name
            for node in walk(class_.node)
        )

    def _is_of_library(self, name: str) -> bool:
        """Return whether a local name only ever holds a library's object, such as a metric or a progress bar."""
        values = self.names.bound.get(name, [])
        return bool(values) and name not in self.given and all(map(self._is_made_by_library, values))

    def _is_made_by_library(self, value: ast.expr) -> bool:
        while isinstance(value, ast.Call) and self.library(value.func) is None:
            value = value.func.value if isinstance(value.func, ast.Attribute) else value.func
        return isinstance(value, ast.Call)


def _root(node: ast.expr) -> ast.Name | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def _targets(statement: ast.stmt) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else []
