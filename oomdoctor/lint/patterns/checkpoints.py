"""What becomes of what `torch.load` gives."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.events import Act, Keeping
from oomdoctor.lint.flow.state import text_of

if TYPE_CHECKING:
    from oomdoctor.lint.flow.events import Event, Run

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
    """What a `torch.load` gives as `map_location`; the call itself where other arguments may hold it."""
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
    """Each `load_state_dict` of what an event loaded, of a part of it, or of a dictionary that it was copied into."""
    copies = {
        kept.target.partition("[")[0]
        for kept in run.of(Act.KEEP)
        if kept.how is Keeping.ITEM and kept.value.comes_from(event.result)
    }
    return tuple(
        loaded
        for loaded in run.of(Act.LOAD_STATE)
        if loaded.value.comes_from(event.result) or _argument(loaded) in copies
    )


def _argument(loaded: Event) -> str:
    given = loaded.call.args if loaded.call is not None else []
    return text_of(given[0]) if given else ""


def is_only_loaded(run: Run, event: Event) -> bool:
    """Whether what is loaded goes into `load_state_dict` alone, but for numbers, which are the same on any device."""
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
    """Whether the parameters may become the loaded tensors themselves, wherever those are."""
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
    """Whether it, or a part of it by a key, is an argument of `load_state_dict`."""
    above = parents.get(node)
    while isinstance(above, ast.Subscript) and above.value is node:
        node, above = above, parents.get(above)
    return (
        isinstance(above, ast.Call) and isinstance(above.func, ast.Attribute) and above.func.attr == "load_state_dict"
    )
