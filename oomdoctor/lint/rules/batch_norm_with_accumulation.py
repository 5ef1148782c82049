"""Rule on batch norms under accumulation (OOM209)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, GradMode, Run, Value, model_origins
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Class, Module, walk
from oomdoctor.lint.patterns.accumulation import accumulations, measured_by
from oomdoctor.lint.rule import Hit, Subject, read_rules

_NORM: Final = re.compile(r"(?:^|\.)(?:Lazy)?BatchNorm[123]d$")
_NETWORKS: Final = re.compile(
    r"^(?:(?:wide_)?res(?:net|next)\d|densenet\d|mobilenet|mnasnet|efficientnet|shufflenet|googlenet|inception|regnet|vgg\d+_bn)",
    re.IGNORECASE,
)
"""Models of torchvision and timm that have BatchNorm unless told otherwise."""
_HANDLED_TEXT: Final = re.compile(
    r"isinstance\([^)]*BatchNorm|Frozen\w*(?:Batch|BN)|freeze_(?:bn|batch|norm)|bn_eval|norm_eval|norm_layer|SyncBatchNorm"
    r"|track_running_stats\s*=\s*False|convert_\w*norm|replace_\w*(?:bn|norm)",
    re.IGNORECASE,
)
"""Text that shows that the author has thought of BatchNorm."""
_HELP: Final = "use GroupNorm or LayerNorm, freeze the statistics, or keep the micro-batch large"


def batch_norm_with_accumulation(subject: Subject) -> Iterator[Hit]:
    """OOM209: BatchNorm sees micro-batches, not the batch that they stand for."""
    for run in subject.runs:
        for found in accumulations(run):
            for event in run.of(Action.FORWARD, within=found.loop):
                if event.context.gradients is not GradMode.OFF and any(
                    backward.value.comes_from(event.result) for backward in found.backwards
                ):
                    yield from _judge(run, event)


def _judge(run: Run, event: Event) -> Iterator[Hit]:
    if any(_HANDLED_TEXT.search(module.text) for module in {run.module, event.module}) or _is_frozen(run, event):
        return
    norms = (_norm_of(model, event.module) for model in model_origins(run, event.value))
    norm = next((norm for norm in norms if norm is not None), None)
    if norm is not None and event.call is not None:
        message = f"`{text_of(event.call.func)}` has {norm}, which takes its statistics from single micro-batches"
        yield Hit.at(event, message, help=f"{_HELP}; {measured_by(run)}")


def _is_frozen(run: Run, event: Event) -> bool:
    """Return whether the model was put into evaluation mode last, before this pass."""
    modes = [
        mode
        for mode in run.events[: run.events.index(event)]
        if mode.action in (Action.EVAL_MODE, Action.TRAIN_MODE) and mode.value.identity == event.value.identity
    ]
    return bool(modes) and modes[-1].action is Action.EVAL_MODE


def _norm_of(model: Value, module: Module) -> str | None:
    """Return the name of a model's BatchNorm layer for the message; None where it has none."""
    if model.class_ is not None:
        return _of_class(model.class_, set())
    library = model.library or ""
    name = library.rpartition(".")[2]
    if (
        library.startswith("torchvision.models.")
        and _NETWORKS.search(name)
        and "." not in library[19:].replace(name, "")
    ):
        return "BatchNorm"
    if not isinstance(model.node, ast.Call):
        return None
    if library.endswith("timm.create_model") and _NETWORKS.search(_first_text(model.node)):
        return "BatchNorm"
    return _made_in(model.node, module) if library == "torch.nn.Sequential" else None


def _first_text(call: ast.Call) -> str:
    first = call.args[0] if call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def _of_class(class_: Class, seen: set[str]) -> str | None:
    """Return the BatchNorm layer that a class, or a class that it makes, makes in its body."""
    if class_.name in seen:
        return None
    seen.add(class_.name)
    own = _made_in(class_.node, class_.module)
    if own is not None:
        return own
    names = {
        node.func.id for node in walk(class_.node) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    inner = [class_.module.classes[name] for name in sorted(names & set(class_.module.classes))]
    return next((norm for other in inner if (norm := _of_class(other, seen)) is not None), None)


def _made_in(tree: ast.AST, module: Module) -> str | None:
    for node in walk(tree):
        if isinstance(node, ast.Call):
            name = module.qualified(node.func) or ""
            if name.startswith("torch.nn.") and _NORM.search(name):
                return f"`{name.rpartition('.')[2]}`"
    return None


RULES: Final = read_rules(batch_norm_with_accumulation)
