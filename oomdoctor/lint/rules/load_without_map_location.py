"""OOM111: a checkpoint is loaded to wherever it was saved from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Kind, Run
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import has_own_checkpoints, may_use_gpu, runs_in_several_processes
from oomdoctor.lint.patterns.checkpoints import is_only_loaded, loads_of, location, shares_memory
from oomdoctor.lint.patterns.edits import with_keyword
from oomdoctor.lint.rule import Hit, Subject, read_rule
from oomdoctor.lint.source import Edit
from oomdoctor.results import Severity

_MODES: Final = (Action.EVAL_MODE, Action.TRAIN_MODE, Action.FORWARD)
_NUMBERS: Final = frozenset({Kind.SCHEDULER, Kind.SCALER})  # no tensors of any size are in their state
_ONE_PROCESS: Final = re.compile(
    r"distributed|world_size|multiprocess|\bn_?gpus?\b|\bgpu\b|rank|\bddp\b|master|main_process", re.IGNORECASE
)


def _check(subject: Subject) -> Iterator[Hit]:
    found = [(run, event) for run in subject.runs for event in run.of(Action.LOAD)]
    if not found or not may_use_gpu(subject.module) or has_own_checkpoints(subject.module):
        return
    for run, event in found:
        if location(event) is None and event.value.library != "io.BytesIO" and _is_checkpoint(run, event):
            is_spread = _is_spread(run, event)
            if is_spread or _is_full_state(run, event):
                severity = Severity.ERROR if is_spread else None
                message, help_ = _message(event, is_spread=is_spread), _help(run, event, is_spread=is_spread)
                yield Hit.at(event, message, help=help_, severity=severity, edits=_edits(run, event))


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


def _message(event: Event, *, is_spread: bool) -> str:
    call = f"`{text_of(event.call.func)}`" if event.call is not None else "`torch.load`"
    if is_spread:
        return f"{call} without `map_location`: every process loads onto the GPU that the checkpoint was saved from"
    return f"{call} without `map_location`: the model's weights are on the GPU twice during loading"


def _help(run: Run, event: Event, *, is_spread: bool) -> str:
    loaded = loads_of(run, event)
    if not loaded or any(shares_memory(other) for other in loaded):
        return 'pass `map_location="cpu"`, or the device that the weights belong on'
    if is_spread:
        return 'pass `map_location="cpu"`; `load_state_dict` brings each tensor to its own process\'s GPU'
    return 'pass `map_location="cpu"`; `load_state_dict` brings each tensor to where the model is'


def _edits(run: Run, event: Event) -> tuple[Edit, ...]:
    """`map_location="cpu"`, where the checkpoint only goes into `load_state_dict`, which brings it to the model."""
    if event.call is None or not is_only_loaded(run, event):
        return ()
    return with_keyword(event.call, "map_location", '"cpu"', event.module)


RULE: Final = read_rule(__file__, _check)
