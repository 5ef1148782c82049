"""Rules on checkpoints and copies of weights (OOM111 to OOM113)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Kind, Run
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import (
    Function,
    Parents,
    has_other_tensors,
    has_own_checkpoints,
    may_use_gpu,
    own_nodes,
    parents_in,
    runs_in_several_processes,
    targets_of,
    walk,
)
from oomdoctor.lint.patterns.checkpoints import (
    Alias,
    Holder,
    aliases,
    has_aliases,
    holder_of,
    is_copied_later,
    is_only_loaded,
    is_set_again,
    lines_between,
    loads_of,
    location,
    scope_of,
    shares_memory,
)
from oomdoctor.lint.patterns.edits import deleted_after_use, with_keyword
from oomdoctor.lint.patterns.keeping import reported_at
from oomdoctor.lint.rule import Hit, Subject, read_rules
from oomdoctor.lint.source import Edit
from oomdoctor.results import Severity

_MODES: Final = (Action.EVAL_MODE, Action.TRAIN_MODE, Action.FORWARD)
_NUMBERS: Final = frozenset({Kind.SCHEDULER, Kind.SCALER})  # no tensors of any size are in their state
_ONE_PROCESS: Final = re.compile(
    r"distributed|world_size|multiprocess|\bn_?gpus?\b|\bgpu\b|rank|\bddp\b|master|main_process", re.IGNORECASE
)


def load_without_map_location(subject: Subject) -> Iterator[Hit]:
    """OOM111: a checkpoint is loaded to wherever it was saved from."""
    found = [(run, event) for run in subject.runs for event in run.of(Action.LOAD)]
    if not found or not may_use_gpu(subject.module) or has_own_checkpoints(subject.module):
        return
    for run, event in found:
        if location(event) is None and event.value.library != "io.BytesIO" and _is_checkpoint(run, event):
            is_spread = _is_spread(run, event)
            if is_spread or _is_full_state(run, event):
                severity = Severity.ERROR if is_spread else None
                message, help_ = (
                    _map_location_message(event, is_spread=is_spread),
                    _map_location_help(run, event, is_spread=is_spread),
                )
                yield Hit.at(event, message, help=help_, severity=severity, edits=_map_location(run, event))


def _is_spread(run: Run, event: Event) -> bool:
    """Return whether several processes load; a condition about that decides for some of them alone."""
    if any(_ONE_PROCESS.search(text_of(guard.test)) for guard in event.context.guards):
        return False
    return runs_in_several_processes(run.module) or runs_in_several_processes(event.module)


def _is_checkpoint(run: Run, event: Event) -> bool:
    """Return whether the loaded object goes into a model or an optimizer, or is a model, and is not data."""
    is_model = any(other.value.identity == event.result.identity for other in run.of(*_MODES))
    return is_model or any(loaded.result.kind not in _NUMBERS for loaded in loads_of(run, event))


def _is_full_state(run: Run, event: Event) -> bool:
    return any(loaded.result.kind is Kind.OPTIMIZER for loaded in loads_of(run, event))


def _map_location_message(event: Event, *, is_spread: bool) -> str:
    call = f"`{text_of(event.call.func)}`" if event.call is not None else "`torch.load`"
    if is_spread:
        return f"{call} without `map_location`: every process loads onto the GPU that the checkpoint was saved from"
    return f"{call} without `map_location`: the model's weights are on the GPU twice during loading"


def _map_location_help(run: Run, event: Event, *, is_spread: bool) -> str:
    loaded = loads_of(run, event)
    if not loaded or any(shares_memory(other) for other in loaded):
        return 'pass `map_location="cpu"`, or the device that the weights belong on'
    if is_spread:
        return 'pass `map_location="cpu"`; `load_state_dict` brings each tensor to its own process\'s GPU'
    return 'pass `map_location="cpu"`; `load_state_dict` brings each tensor to where the model is'


def _map_location(run: Run, event: Event) -> tuple[Edit, ...]:
    """`map_location="cpu"`, where the checkpoint only goes into `load_state_dict`, which brings it to the model."""
    if event.call is None or not is_only_loaded(run, event):
        return ()
    return with_keyword(event.call, "map_location", '"cpu"', event.module)


def checkpoint_kept_alive(subject: Subject) -> Iterator[Hit]:
    """OOM112: a checkpoint stays on the GPU while the model that was loaded from it trains."""
    found = [(run, event) for run in subject.runs for event in run.of(Action.LOAD)]
    if not found or not may_use_gpu(subject.module):
        return
    for run, event in found:
        loaded = loads_of(run, event)
        holder = holder_of(run, event) if loaded and _may_be_on_gpu(event) else None
        if holder is not None and _is_copied(loaded):
            yield from _kept_alive(subject.runs, run, loaded[-1], holder)


def _is_copied(loaded: Sequence[Event]) -> bool:
    """Return whether loading copies: a model does; an optimizer takes over the tensors on its device."""
    has_model = any(other.result.kind is not Kind.OPTIMIZER for other in loaded)
    return has_model and not any(shares_memory(other) for other in loaded)


def _kept_alive(runs: Sequence[Run], run: Run, loaded: Event, holder: Holder) -> Iterator[Hit]:
    line = _training_line(run, loaded, holder)
    in_object = [holder.name] if line is None and _lives_in_object(runs, holder) else []
    names = in_object if line is None else holder.alive(line)
    if names:
        told = " and ".join(f"`{name}`" for name in names) + (" keeps" if len(names) == 1 else " keep")
        yield Hit(
            holder.node,
            holder.module,
            f"{told} the checkpoint on the GPU while the model that it was loaded into trains",
            f'`del {", ".join(names)}` after loading, load with `map_location="cpu"`, or load in a function of its own',
            edits=deleted_after_use(holder, names, line),
        )


def _training_line(run: Run, loaded: Event, holder: Holder) -> int | None:
    """Return the line of the holder's function at which it first trains after loading."""
    frames = loaded.context.frames[: holder.depth]
    is_after = False
    for event in run.events:
        is_after = is_after or event is loaded
        if is_after and event.action is Action.BACKWARD and event.context.frames[: holder.depth] == frames:
            return reported_at(run, event, holder.depth)[0].lineno
    return None


def _lives_in_object(runs: Sequence[Run], holder: Holder) -> bool:
    """Return whether the holder is an attribute of an object whose methods train and never release it."""
    class_ = holder.class_
    if class_ is None:
        return False
    trains = any(
        frame.function.class_ is class_
        for run in runs
        for event in run.of(Action.BACKWARD)
        for frame in event.context.frames
    )
    return trains and not any(
        _lets_go(node, holder.name) and node is not holder.statement for node in walk(class_.node)
    )


def _lets_go(node: ast.AST, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Delete) else targets_of(node)
    return any(text_of(target) == name for target in targets)


def _may_be_on_gpu(event: Event) -> bool:
    given = location(event)
    if isinstance(given, ast.Name):
        given = _meaning(given, event.function, event) or given
    if given is None:
        return True
    text = text_of(given)
    return given is not event.call and not isinstance(given, ast.Lambda) and ("cpu" not in text or "cuda" in text)


def _meaning(name: ast.Name, function: Function | None, event: Event) -> ast.expr | None:
    """Return the value of a name in the function or the file, or a parameter's default."""
    scopes: list[ast.AST] = [event.module.tree] if function is None else [function.node, event.module.tree]
    for scope in scopes:
        for node in own_nodes(scope):
            if any(isinstance(target, ast.Name) and target.id == name.id for target in targets_of(node)):
                return node.value  # type: ignore[attr-defined, no-any-return]
    return None if function is None else _default(name.id, function.node.args)


def _default(name: str, arguments: ast.arguments) -> ast.expr | None:
    given = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(reversed(given), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return next((default for argument, default in pairs if argument.arg == name), None)


_ASSIGNED: Final = re.compile(r"=[^=]*\.state_dict\(\)")


def best_weights_not_copied(subject: Subject) -> Iterator[Hit]:
    """OOM113: the weights that are to be restored later are the model's own, and change with it."""
    module = subject.module
    text = module.text
    if "load_state_dict(" not in text or _ASSIGNED.search(text) is None or has_other_tensors(module):
        return
    if not has_aliases(module):
        return
    parents = parents_in(module.tree)
    for alias in aliases(parents):
        loads = alias.loads(parents)
        if not is_copied_later(alias) and any(_restores_nothing(subject, alias, load, parents) for load in loads):
            yield Hit(
                alias.target,
                module,
                f"`{alias.name}` holds the tensors of `{alias.model}` itself, which training changes: "
                "loading it later restores nothing",
                f"keep a copy, `copy.deepcopy({alias.model}.state_dict())`",
            )


def _restores_nothing(subject: Subject, alias: Alias, load: ast.Call, parents: Parents) -> bool:
    """Return whether the same model trains between the assignment and the loading."""
    if scope_of(load, parents) is not alias.scope:
        return _trains(subject, subject.module.tree, None) and not _is_replaced(alias, parents)
    first, last = lines_between(alias.target, load, parents)
    return _trains(subject, alias.scope, (first, last)) and not is_set_again(alias.model, alias.scope, first)


def _is_replaced(alias: Alias, parents: Parents) -> bool:
    """Return whether the model's name may mean another model by then."""
    around = [alias.scope] if alias.is_attribute() else [alias.scope, scope_of(alias.scope, parents)]
    return any(is_set_again(alias.model, scope, alias.target.lineno) for scope in around)


def _trains(subject: Subject, scope: ast.AST, lines: tuple[int, int] | None) -> bool:
    """Return whether an optimizer makes a step, in lines of one function where they are given."""
    for run in subject.runs:
        for event in run.of(Action.STEP):
            if lines is None:
                return True
            nodes = [frame.function.node for frame in event.context.frames]
            depth = nodes.index(scope) + 1 if scope in nodes else 0
            is_there = depth > 0 or (run.function is None and scope is run.module.tree)
            if is_there and lines[0] <= reported_at(run, event, depth)[0].lineno <= lines[1]:
                return True
    return False


RULES: Final = read_rules(load_without_map_location, checkpoint_kept_alive, best_weights_not_copied)
