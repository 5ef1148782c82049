"""OOM103: the outputs of all batches are collected on the GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Graph, Keeping, Kind, TensorDevice, Value
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import is_of_other_tensors, may_use_gpu, walk
from oomdoctor.lint.patterns.keeping import Kept, kept_expression, kept_over_batches, may_be_small
from oomdoctor.lint.rule import Hit, Subject, read_rule

_LIST: Final = frozenset({Keeping.APPEND, Keeping.ITEM, Keeping.YIELD})


def _check(subject: Subject) -> Iterator[Hit]:
    hits = [_hit(kept) for run in subject.runs for kept in kept_over_batches(run) if _is_large_output(kept)]
    if hits and may_use_gpu(subject.module):
        yield from (hit for hit in hits if not is_of_other_tensors(hit.node, hit.module))


def _is_large_output(kept: Kept) -> bool:
    output = _output(kept)
    return output is not None and _grows(kept) and not _is_small(kept, output)


def _output(kept: Kept) -> Value | None:
    """The part of what is kept that is an output of a model, without a graph, where the model is."""
    value = kept.event.value
    for part in (value, *value.parts):
        if (
            part.kind is Kind.TENSOR
            and part.graph is Graph.NO
            and part.device is TensorDevice.GPU
            and _is_output(kept, part)
        ):
            return part
    return None


def _is_output(kept: Kept, value: Value) -> bool:
    return not value.is_loss and any(value.comes_from(event.result) for event in kept.run.of(Action.FORWARD))


def _grows(kept: Kept) -> bool:
    """Return whether every batch of the loop adds to the container, and nothing removes anything."""
    if kept.event.how not in _LIST or kept.forgotten() or kept.takes_slices():
        return False
    return not any(isinstance(node, ast.Break) for node in walk(kept.loop.node))


def _is_small(kept: Kept, output: Value) -> bool:
    is_from_loss = any(
        output.comes_from(event.value) for event in kept.run.of(Action.BACKWARD) if event.value.identity > 0
    )
    return is_from_loss or may_be_small(output.node, kept.event.module, kept.event.function)


def _hit(kept: Kept) -> Hit:
    node, module = kept.reported_at()
    where = f" in `{kept.event.target}`" if kept.event.target else ""
    expression = kept_expression(kept.event)
    named = isinstance(expression, ast.Name | ast.Attribute)
    what = f"`{text_of(expression)}`" if named and expression is not None else "the model's output"
    return Hit(
        node,
        module,
        f"{what} of every batch is kept on the GPU{where}, so that memory grows with the data set",
        "keep `.cpu()` of it, or only what is needed of it, such as its `argmax`",
    )


RULE: Final = read_rule(__file__, _check)
