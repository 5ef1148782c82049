"""Calls of functions of Python and of libraries, and autograd's recording mode."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.events import UNKNOWN, Action, GradMode, Graph, Kind, TensorDevice, Value
from oomdoctor.lint.flow.state import NUMBER, Arguments, State, computed_value, graph_of, sources, text_of
from oomdoctor.lint.module import Function, Module

_OFF_BY_NAME: Final = re.compile(
    r"no_?grad|inference_mode|inference_context|disable_grad|torch_inference", re.IGNORECASE
)
_PERHAPS_BY_NAME: Final = re.compile(r"grad|infer(?!red)|eval", re.IGNORECASE)
_MAKE_NO_DIFFERENCE: Final = re.compile(
    r"autocast|amp|profil|record_function|nullcontext|suppress|open|device|no_sync|accumulate|timer|lock", re.IGNORECASE
)


def grad_mode_of_manager(node: ast.expr, module: Module) -> GradMode | None:
    """Return the grad mode inside a context manager; None where the manager does not change it.

    Args:
        node: The expression of the `with`.
        module: The file, for what its names mean.
    """
    if isinstance(node, ast.IfExp):
        first, second = grad_mode_of_manager(node.body, module), grad_mode_of_manager(node.orelse, module)
        return first if first is second else GradMode.UNKNOWN
    call = node if isinstance(node, ast.Call) else None
    name = manager_name(node, module)
    if name in known.GRADIENTS_BY_ARGUMENT:
        return grad_mode_by_argument(call, empty=GradMode.OFF if name == "torch.inference_mode" else GradMode.UNKNOWN)
    if name in known.NO_GRADIENTS:
        return GradMode.OFF
    if name == "torch.enable_grad":
        return GradMode.ON
    return _by_name(name)


def _by_name(name: str) -> GradMode | None:
    last = name.rpartition(".")[2]
    if _OFF_BY_NAME.search(last):
        return GradMode.OFF
    if _PERHAPS_BY_NAME.search(last) and not _MAKE_NO_DIFFERENCE.search(last):
        return GradMode.UNKNOWN
    return None


def grad_mode_by_argument(call: ast.Call | None, *, empty: GradMode) -> GradMode:
    """Return the grad mode that `set_grad_enabled(x)` or `inference_mode(x)` sets.

    Args:
        call: The call.
        empty: Mode without an argument. `inference_mode(True)` is off, `set_grad_enabled(True)` on.
    """
    arguments = [] if call is None else [*call.args, *(keyword.value for keyword in call.keywords)]
    if not arguments:
        return empty
    value = arguments[0].value if isinstance(arguments[0], ast.Constant) else None
    if not isinstance(value, bool):
        return GradMode.UNKNOWN
    return GradMode.ON if value is (empty is not GradMode.OFF) else GradMode.OFF


def manager_name(node: ast.expr, module: Module) -> str:
    """Qualified name of what a decorator or context manager calls; else its own last name behind a dot, or empty."""
    function = node.func if isinstance(node, ast.Call) else node
    qualified = module.qualified(function)
    if qualified is not None:
        return known.LIBRARY_ALIASES.get(qualified, qualified)
    if isinstance(function, ast.Attribute):
        return f".{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def grad_mode_of_function(function: Function, outside: GradMode) -> GradMode:
    """Return the grad mode of a function's body.

    Args:
        function: The function.
        outside: Whether it records where the function is called.
    """
    for decorator in reversed(function.node.decorator_list):
        found = grad_mode_of_manager(decorator, function.module)
        is_idle = found is GradMode.OFF and isinstance(function.node, ast.AsyncFunctionDef)
        if found is not None and not is_idle:  # the body of a coroutine runs after the decorator has ended
            outside = found
    return outside


BUILTINS: Final = known.TO_NUMBERS | known.NUMBERS | known.CONTAINERS | known.COMPUTING | {"next", "getattr", "map"}


def call_builtin(state: State, node: ast.Call, name: str, given: Arguments) -> Value:
    """Note what a call of one of Python's functions does, and give what it returns."""
    values = given.positional
    if name in known.NUMBERS:
        return NUMBER
    if name in known.TO_NUMBERS:
        if values and values[0].kind is not Kind.NUMBER:
            state.note(Action.TO_HOST, node, values[0], call=node, name=name)
        return Value(kind=Kind.NUMBER, graph=Graph.NO, node=node, made_from=sources(values))
    if name == "next":
        state.note(Action.NEXT, node, values[0] if values else UNKNOWN, call=node, name=name)
        return Value(graph=Graph.NO, node=node)
    if name in known.COMPUTING:
        return computed_value(node, values, state.records)
    if name in known.CONTAINERS:
        return _container(node, name, values)
    return Value(node=node, made_from=sources(values))


def _container(node: ast.Call, name: str, values: tuple[Value, ...]) -> Value:
    if name in ("enumerate", "iter", "reversed") and values:
        return values[0]
    first = values[0] if values else None
    return Value(
        kind=Kind.LOADER if first is not None and first.kind is Kind.LOADER and name == "zip" else Kind.CONTAINER,
        graph=graph_of(values, Graph.YES) if values else Graph.NO,
        device=first.device if first is not None else TensorDevice.UNKNOWN,
        node=node,
        made_from=sources(values),
        parts=first.parts if first is not None and name in ("list", "tuple") else (),
    )


_NOT_MODELS: Final = ("Tokenizer", "Processor", "Config", "FeatureExtractor", "Collator", "Dataset", "Arguments")


def call_library(state: State, node: ast.Call, name: str, given: Arguments) -> Value:
    """Note what a call of a library's function does, and give what it returns.

    Args:
        state: The run.
        node: The call.
        name: Qualified name, such as `torch.nn.functional.cross_entropy`.
        given: Its arguments.
    """
    name = known.LIBRARY_ALIASES.get(name, name)
    if name == known.BACKWARD:
        return note_backward(state, node, given.positional[0] if given.positional else UNKNOWN)
    if name == "torch.set_grad_enabled":
        state.context = state.context.replace(gradients=grad_mode_by_argument(node, empty=GradMode.UNKNOWN))
        return UNKNOWN
    action = known.CALLS.get(name)
    value = _result(state, node, name, given)
    if action is None:
        state.note(Action.CALL, node, call=node, name=name, value=_first(given), result=value)
    else:
        state.note(action, node, call=node, name=name, value=_first(given), result=value)
    if _is_true(node, "requires_grad"):
        state.note(Action.NEEDS_GRADIENT, node, value, call=node, name=name)
        return value.replace(graph=Graph.UNKNOWN)
    return value


def note_backward(state: State, node: ast.Call, loss: Value, *, managed: str | None = None, name: str = "") -> Value:
    """Note a backward pass of this loss."""
    state.note(Action.BACKWARD, node, loss, call=node, managed=managed, name=name)
    return Value(kind=Kind.NONE, graph=Graph.NO, node=node)


def _first(given: Arguments) -> Value:
    return given.positional[0] if given.positional else next(iter(given.keywords.values()), UNKNOWN)


def _is_true(node: ast.Call, name: str) -> bool:
    return any(
        keyword.arg == name and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in node.keywords
    )


def _result(state: State, node: ast.Call, name: str, given: Arguments) -> Value:
    if name in known.SAME_VALUE or (name in known.WRAPPERS and given.positional):
        value = given.positional[0] if given.positional else UNKNOWN
        if name in known.WRAPPERS:
            return value.replace(kind=Kind.MODEL, wrapped=True, node=node, library=name)
        return value
    if name == "deepspeed.initialize":
        return _deepspeed(node, given)
    kind = kind_made(name)
    if kind is not None:
        graph = Graph.UNKNOWN if kind is Kind.CHECKPOINT else Graph.NO
        return Value(kind=kind, graph=graph, node=node, library=name, wrapped=name in known.WRAPPERS)
    return _computed_by(state, node, name, given)


def _computed_by(state: State, node: ast.Call, name: str, given: Arguments) -> Value:
    if name.startswith("torch.nn.functional."):
        last = name.rpartition(".")[2]
        value = computed_value(node, tuple(_arguments(given)), state.records)
        is_loss = last.endswith(("_loss", "cross_entropy", "cross_entropy_with_logits", "kl_div"))
        activation = known.ACTIVATIONS.get(last)
        value = value.replace(kind=Kind.TENSOR, is_loss=is_loss or value.is_loss, library=name, activation=activation)
        if is_loss:
            note_loss(state, node, name, given, value)
        return value
    if name.startswith("torch.") and name.count(".") <= 2:  # noqa: PLR2004 - torch.cat, torch.linalg.norm
        return _torch(state, node, name.rpartition(".")[2], given)
    if name.startswith(("math.", "time.", "os.", "random.", "logging.")):
        return NUMBER
    return Value(node=node, library=name, made_from=sources(given.positional))


def note_loss(state: State, node: ast.Call, name: str, given: Arguments, result: Value) -> None:
    """Note that a loss function is called.

    Args:
        state: The run.
        node: The call.
        name: Qualified name of the function or of the class that made it; empty where it is not known.
        given: The arguments; the first one, or `input`, is compared with the target.
        result: The loss.
    """
    value = given.positional[0] if given.positional else given.keywords.get("input", UNKNOWN)
    state.note(Action.LOSS, node, value, result=result, call=node, name=name)


def kind_made(name: str) -> Kind | None:
    """Return the kind of the result of a call of this name, by the tables; None where they do not say."""
    kind = known.MAKES.get(name)
    if kind is not None:
        return kind
    last = name.rpartition(".")[2]
    if name.startswith("torch.nn.") and not name.startswith(
        ("torch.nn.functional.", "torch.nn.utils.", "torch.nn.init.")
    ):
        if last[:1].isupper() and last not in ("Parameter", "ParameterList", "ParameterDict", "Module"):
            return Kind.LOSS_FUNCTION if known.CRITERION_CLASS.search(last) else Kind.MODEL
        return None
    if name.startswith(("transformers.", "diffusers.")) and last in ("from_pretrained", "from_config"):
        owner = name.split(".")[-2]
        return None if any(word in owner for word in _NOT_MODELS) else Kind.MODEL
    for beginning, kind in known.MAKES_BELOW:
        if name.startswith(beginning):
            return None if any(word in name for word in _NOT_MODELS) else kind
    return Kind.LOSS_FUNCTION if last.endswith("Loss") and last[:1].isupper() else None


def _deepspeed(node: ast.Call, given: Arguments) -> Value:
    model = given.keywords.get("model") or UNKNOWN
    del given
    engine = Value(kind=Kind.ENGINE, graph=Graph.NO, node=node, library="deepspeed.initialize", class_=model.class_)
    parts = tuple(Value(kind=kind, graph=Graph.NO, node=node) for kind in (Kind.OPTIMIZER, Kind.LOADER, Kind.SCHEDULER))
    return Value(kind=Kind.CONTAINER, graph=Graph.NO, node=node, parts=(engine, *parts))


def _arguments(given: Arguments) -> Iterator[Value]:
    yield from given.positional
    yield from given.keywords.values()


def _torch(state: State, node: ast.Call, last: str, given: Arguments) -> Value:
    values = tuple(_arguments(given))
    if last in known.GRAPHLESS_FUNCTIONS or last[:1].isupper():
        return Value(kind=Kind.TENSOR, graph=Graph.NO, device=_device(node), node=node, made_from=sources(values))
    value = computed_value(node, values, state.records)
    if last in ("div", "true_divide") and len(node.args) > 1:
        value = value.replace(divided_by=(*value.divided_by, text_of(node.args[1])))
    if not values or value.kind is Kind.NUMBER:
        return Value(node=node, library=f"torch.{last}")
    activation = known.ACTIVATIONS.get(last)
    return value.replace(kind=Kind.TENSOR, graph=graph_of(values, state.records), activation=activation)


def _device(node: ast.Call) -> TensorDevice:
    given = next((keyword.value for keyword in node.keywords if keyword.arg == "device"), None)
    if given is None:
        return TensorDevice.CPU
    text = text_of(given).lower()
    return TensorDevice.CPU if "cpu" in text else TensorDevice.GPU
