"""OOM112: a checkpoint stays on the GPU while the model that was loaded from it trains."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Kind, Run
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Function, may_use_gpu, own_nodes, targets_of, walk
from oomdoctor.lint.patterns.checkpoints import Holder, holder_of, loads_of, location, shares_memory
from oomdoctor.lint.patterns.edits import deleted_after_use
from oomdoctor.lint.patterns.keeping import reported_at
from oomdoctor.lint.rule import Hit, Subject, read_rule


def _check(subject: Subject) -> Iterator[Hit]:
    found = [(run, event) for run in subject.runs for event in run.of(Action.LOAD)]
    if not found or not may_use_gpu(subject.module):
        return
    for run, event in found:
        loaded = loads_of(run, event)
        holder = holder_of(run, event) if loaded and _may_be_on_gpu(event) else None
        if holder is not None and _is_copied(loaded):
            yield from _judged(subject.runs, run, loaded[-1], holder)


def _is_copied(loaded: Sequence[Event]) -> bool:
    """Return whether loading copies: a model does; an optimizer takes over the tensors on its device."""
    has_model = any(other.result.kind is not Kind.OPTIMIZER for other in loaded)
    return has_model and not any(shares_memory(other) for other in loaded)


def _judged(runs: Sequence[Run], run: Run, loaded: Event, holder: Holder) -> Iterator[Hit]:
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


RULE: Final = read_rule(__file__, _check)
