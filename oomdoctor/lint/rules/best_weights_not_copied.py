"""OOM113: the weights that are to be restored later are the model's own, and change with it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action
from oomdoctor.lint.module import Parents, has_other_tensors, parents_in
from oomdoctor.lint.patterns.checkpoints import (
    Alias,
    aliases,
    has_aliases,
    is_copied_later,
    is_set_again,
    lines_between,
    scope_of,
)
from oomdoctor.lint.patterns.keeping import reported_at
from oomdoctor.lint.rule import Hit, Subject, read_rule

_ASSIGNED: Final = re.compile(r"=[^=]*\.state_dict\(\)")


def _check(subject: Subject) -> Iterator[Hit]:
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


RULE: Final = read_rule(__file__, _check)
