"""What a call of a library's function does and gives, by its qualified name."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.context import Gradients
from oomdoctor.lint.flow.events import Act
from oomdoctor.lint.flow.gradients import by_argument
from oomdoctor.lint.flow.joining import computed, graph_of, sources
from oomdoctor.lint.flow.state import NUMBER, Given, State, text_of
from oomdoctor.lint.flow.values import UNKNOWN, Device, Graph, Kind, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOT_MODELS: Final = ("Tokenizer", "Processor", "Config", "FeatureExtractor", "Collator", "Dataset", "Arguments")


def call_library(state: State, node: ast.Call, name: str, given: Given) -> Value:
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
        state.context = state.context.but(gradients=by_argument(node, empty=Gradients.UNKNOWN))
        return UNKNOWN
    act = known.CALLS.get(name)
    value = _result(state, node, name, given)
    if act is None:
        state.note(Act.CALL, node, call=node, name=name, value=_first(given), result=value)
    else:
        state.note(act, node, call=node, name=name, value=_first(given), result=value)
    if _is_true(node, "requires_grad"):
        state.note(Act.NEEDS_GRADIENT, node, value, call=node, name=name)
        return value.but(graph=Graph.UNKNOWN)
    return value


def note_backward(state: State, node: ast.Call, loss: Value, *, managed: str | None = None, name: str = "") -> Value:
    """Note a backward pass of this loss."""
    state.note(Act.BACKWARD, node, loss, call=node, managed=managed, name=name)
    return Value(kind=Kind.NONE, graph=Graph.NO, node=node)


def _first(given: Given) -> Value:
    return given.positional[0] if given.positional else next(iter(given.keywords.values()), UNKNOWN)


def _is_true(node: ast.Call, name: str) -> bool:
    return any(
        keyword.arg == name and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in node.keywords
    )


def _result(state: State, node: ast.Call, name: str, given: Given) -> Value:
    if name in known.SAME_VALUE or (name in known.WRAPPERS and given.positional):
        return _wrapped(node, name, given)
    if name == "deepspeed.initialize":
        return _deepspeed(node, given)
    kind = kind_made(name)
    if kind is not None:
        graph = Graph.UNKNOWN if kind is Kind.CHECKPOINT else Graph.NO
        return Value(kind=kind, graph=graph, node=node, library=name, wrapped=name in known.WRAPPERS)
    return _computed_by(state, node, name, given)


def _computed_by(state: State, node: ast.Call, name: str, given: Given) -> Value:
    if name.startswith("torch.nn.functional."):
        return _functional(state, node, name, given)
    if name.startswith("torch.") and name.count(".") <= 2:  # noqa: PLR2004 - torch.cat, torch.linalg.norm
        return _torch(state, node, name.rpartition(".")[2], given)
    if name.startswith(("math.", "time.", "os.", "random.", "logging.")):
        return NUMBER
    return Value(node=node, library=name, made_from=sources(given.positional))


def kind_made(name: str) -> Kind | None:
    """What a call of this name makes, by the tables; None where they do not say."""
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


def _wrapped(node: ast.Call, name: str, given: Given) -> Value:
    value = given.positional[0] if given.positional else UNKNOWN
    if name in known.WRAPPERS:
        return value.but(kind=Kind.MODEL, wrapped=True, node=node, library=name)
    return value


def _deepspeed(node: ast.Call, given: Given) -> Value:
    model = given.keywords.get("model") or UNKNOWN
    del given
    engine = Value(kind=Kind.ENGINE, graph=Graph.NO, node=node, library="deepspeed.initialize", class_=model.class_)
    parts = tuple(Value(kind=kind, graph=Graph.NO, node=node) for kind in (Kind.OPTIMIZER, Kind.LOADER, Kind.SCHEDULER))
    return Value(kind=Kind.CONTAINER, graph=Graph.NO, node=node, parts=(engine, *parts))


def _functional(state: State, node: ast.Call, name: str, given: Given) -> Value:
    last = name.rpartition(".")[2]
    value = computed(node, tuple(_arguments(given)), state.records)
    is_loss = last.endswith(("_loss", "cross_entropy", "nll_loss", "kl_div")) or last in ("cross_entropy", "kl_div")
    return value.but(kind=Kind.TENSOR, is_loss=is_loss or value.is_loss, library=name)


def _arguments(given: Given) -> Iterator[Value]:
    yield from given.positional
    yield from given.keywords.values()


def _torch(state: State, node: ast.Call, last: str, given: Given) -> Value:
    values = tuple(_arguments(given))
    if last in known.GRAPHLESS_FUNCTIONS or last[:1].isupper():
        return Value(kind=Kind.TENSOR, graph=Graph.NO, device=_device(node), node=node, made_from=sources(values))
    value = computed(node, values, state.records)
    if last in ("div", "true_divide") and len(node.args) > 1:
        value = value.but(divided_by=(*value.divided_by, text_of(node.args[1])))
    if not values or value.kind is Kind.NUMBER:
        return Value(node=node, library=f"torch.{last}")
    return value.but(kind=Kind.TENSOR, graph=graph_of(values, state.records))


def _device(node: ast.Call) -> Device:
    given = next((keyword.value for keyword in node.keywords if keyword.arg == "device"), None)
    if given is None:
        return Device.CPU
    text = text_of(given).lower()
    return Device.CPU if "cpu" in text else Device.GPU
