"""Whether a model is evaluated rather than trained."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.events import Act

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Function
    from oomdoctor.lint.flow.context import Loop
    from oomdoctor.lint.flow.events import Event, Run

_EVALUATION: Final = re.compile(
    r"^_*(?:run_|do_)?(?:eval|evaluate|evaluation|validate|validation|valid|val|test|infer|inference|predict)"
    r"(?:_(?:epoch|one_epoch|loop|step|model|net|network|loader|set|dataset|all|loss|accuracy|acc|fn))?$"
)


def is_evaluation(run: Run, event: Event, loop: Loop) -> bool:
    """Whether a forward pass evaluates a model.

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
        if other.act in (Act.EVAL_MODE, Act.TRAIN_MODE) and _is_same(other, event):
            last = other
    if last is not None and last.act is Act.EVAL_MODE:
        return True
    is_own = last is not None and any(frame.function is loop.function for frame in last.context.frames)
    return not is_own and is_named_so(loop.function)


def _is_same(mode: Event, forward: Event) -> bool:
    return mode.value.identity > 0 and mode.value.identity == forward.value.identity


def is_named_so(function: Function | None) -> bool:
    """Whether a function's name says that it evaluates a model or predicts with it."""
    return function is not None and _EVALUATION.match(function.name) is not None
