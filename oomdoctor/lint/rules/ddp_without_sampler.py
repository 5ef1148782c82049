"""OOM218: each process goes through the whole data set, or through its share in the same order each epoch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Kind, Loop, Run
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Module, targets_of, walk
from oomdoctor.lint.rule import Hit, Subject, read_rule

_DIVIDES: Final = re.compile(
    r"rank\s*(?:\(\))?\s*::|split_(?:dataset_)?by_(?:node|rank)|[Ss]hard|Iterable|webdataset|\bwds\b|\bdali\b|num_replicas"
    r"|seed\w*\s*[+*(][^\n]{0,40}rank|rank[^\n]{0,20}\+[^\n]{0,20}seed|accelerat|[Ff]abric|lightning|deepspeed|ignite",
)
"""Text that divides the data over processes in another way, or leaves it to a framework."""
_SAMPLER: Final = "DistributedSampler"


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        modules = {run.module, *(event.module for event in run.events)}
        text = "\n".join(module.text for module in modules)
        for loop in run.training_loops():
            loader = loop.iterates.node
            if isinstance(loader, ast.Call) and _is_distributed(run, loop) and loop.iterates.kind is Kind.LOADER:
                yield from _judged(run, loop, loader, modules, text)


def _is_distributed(run: Run, loop: Loop) -> bool:
    """Return whether the loop trains a model under DistributedDataParallel, on batches of PyTorch's own loader."""
    library = loop.iterates.library or ""
    is_wrapped = any(made.value.wrapped for made in run.of(Action.FORWARD, within=loop))
    return is_wrapped and library.startswith("torch.") and library.endswith(".DataLoader")


def _judged(run: Run, loop: Loop, loader: ast.Call, modules: set[Module], text: str) -> Iterator[Hit]:
    given = {keyword.arg: keyword.value for keyword in loader.keywords}
    module = run.module if loop.function is None else loop.function.module
    if None in given or _DIVIDES.search(text) is not None:
        return
    if not {"sampler", "batch_sampler"} & given.keys() and _SAMPLER not in text:
        message = "every process goes through the whole data set: no sampler divides it"
        help_ = "give the loader `sampler=DistributedSampler(dataset)`, and call its `set_epoch(epoch)` each epoch"
        yield Hit(loop.node, module, message, help_)
    elif "sampler" in given and _is_same_each_epoch(given["sampler"], loop, run, modules) and "set_epoch" not in text:
        sampler = text_of(given["sampler"])
        name = sampler if sampler.isidentifier() else "sampler"
        message = f"`{name}` gives the same order in every epoch: nothing calls `set_epoch`"
        yield Hit(loop.node, module, message, f"call `{name}.set_epoch(epoch)` before each epoch")


def _is_same_each_epoch(sampler: ast.expr, loop: Loop, run: Run, modules: set[Module]) -> bool:
    """Return whether a loop around takes epochs, and the sampler is a distributed one that shuffles."""
    events = list(run.of(Action.BACKWARD, within=loop))
    is_repeated = any(event.context.loops.index(loop) > 0 for event in events)
    made = [sampler] if isinstance(sampler, ast.Call) else _assigned(text_of(sampler), modules)
    calls = [node for value in made for node in walk(value) if isinstance(node, ast.Call)]
    samplers = [call for call in calls if text_of(call.func).rpartition(".")[2] == _SAMPLER]
    return is_repeated and bool(samplers) and not any("shuffle=False" in ast.unparse(call) for call in samplers)


def _assigned(name: str, modules: set[Module]) -> list[ast.expr]:
    """Return all that is assigned to a name in these files."""
    nodes = (node for module in modules for node in walk(module.tree) if isinstance(node, ast.Assign))
    return [node.value for node in nodes if name in map(text_of, targets_of(node))]


RULE: Final = read_rule(__file__, _check)
