"""OOM103: the outputs of all batches are collected on the GPU."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.events import Action, Device, Graph, Keeping, Kind
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import is_of_other_tensors, may_use_gpu, walk
from oomdoctor.lint.patterns.keeping import kept_expression, kept_over_batches, may_be_small
from oomdoctor.lint.rule import Hit, Rule
from oomdoctor.results import Concern, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.flow.events import Value
    from oomdoctor.lint.patterns.keeping import Kept
    from oomdoctor.lint.rule import Subject


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
        if part.kind is Kind.TENSOR and part.graph is Graph.NO and part.device is Device.GPU and _is_output(kept, part):
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


_BAD: Final = """\
import torch


@torch.no_grad()
def predict(model, loader):
    model.eval()
    outputs = []
    for images, _ in loader:
        outputs.append(model(images.cuda()))
    return torch.cat(outputs)


def main(loader):
    net = torch.nn.Conv2d(3, 21, 1).cuda()
    torch.save(predict(net, loader), "masks.pt")
"""
_GOOD: Final = _BAD.replace("images.cuda()))", "images.cuda()).cpu())")

RULE: Final = Rule(
    code="OOM103",
    name="outputs-kept-on-gpu",
    severity=Severity.WARNING,
    concern=Concern.MEMORY,
    summary="the outputs of all batches are collected on the GPU",
    explanation="""\
An output of a model, without a graph, is added to a list, a mapping or a growing tensor in each iteration of a loop
over batches, and stays on the model's device.

It is silent where a few numbers a sample are kept (a loss, `argmax`, a maximum, a mean), where the collection is
written out and emptied in the loop, where the loop ends early, and where nothing in the file uses a GPU.
""",
    reason="""\
A list of outputs holds the outputs of the whole data set at its end, on the device with the least memory in the
machine; `torch.cat` then needs the same again. Class scores may take little; masks, embeddings of tokens or logits
over a vocabulary take more than the model. Moving to the host once a batch costs about as much time as moving
everything at the end.
""",
    bad=_BAD,
    good=_GOOD,
    references=(
        "https://github.com/huggingface/transformers/issues/7232",
        "https://pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory",
    ),
    words=("append", "+=", " for ", "] =", "cat(", "extend"),
    check=_check,
)
