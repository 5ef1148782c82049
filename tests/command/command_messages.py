"""Made-up messages of the agent, and the outcome of a trial that sent them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oomdoctor.agent.channel import PROTOCOL
from oomdoctor.command.outcome import ClassifiedTrial, classify_trial
from oomdoctor.command.trial import EndedTrial
from oomdoctor.command.trial_events import TrialEvents

CAPACITY = 256 * 2**20
STEPS = 3
TAIL = "the end of its output:\nGoodbye"

Message = dict[str, Any]


def started(pid: int = 1, **fields: Any) -> Message:
    """A Python that has imported torch."""
    versions = {"python": "3.11.7", "torch": "2.15.0", "cuda": "13.2"}
    return {"protocol": PROTOCOL, "event": "started", "pid": pid, "rank": 0, "world_size": 1, **versions, **fields}


def device(pid: int = 1) -> Message:
    """A process that has initialised CUDA."""
    card = {"index": 0, "name": "a card", "compute_capability": "8.0", "has_kernels": True}
    return {
        "protocol": PROTOCOL,
        "event": "device",
        "pid": pid,
        **card,
        "total_bytes": CAPACITY,
        "free_bytes": CAPACITY,
    }


def batch(*shapes: list[int], pid: int = 1) -> Message:
    """The first batch that reached a model."""
    return {"protocol": PROTOCOL, "event": "batch", "pid": pid, "shapes": list(shapes), "training": True}


def oom(pid: int = 1, phase: str = "backward") -> Message:
    """An allocation for which there was no memory."""
    sizes = {"tried_bytes": 64 * 2**20, "total_bytes": CAPACITY, "free_bytes": 2**20}
    return {
        "protocol": PROTOCOL,
        "event": "oom",
        "pid": pid,
        **sizes,
        "phase": phase,
        "iteration": 1,
        "steps": 0,
        "count": 1,
    }


def step(steps: int, pid: int = 1) -> Message:
    """An optimizer step that has been done."""
    return {"protocol": PROTOCOL, "event": "step", "pid": pid, "steps": steps}


def measured(ending: str, steps: int, pid: int = 1, **fields: Any) -> Message:
    """The last word of a process."""
    unless_told = {
        "idle_optimizers": 0,
        "passes": 1,
        "optimizer": "AdamW",
        "parameter_bytes": 1000,
        "gradient_bytes": 1000,
        "peak_allocated_bytes": 100_000,
        "peak_reserved_bytes": 2**21,
        "fixed_bytes": 4000,
        "alloc_retries": 0,
        "workspace_retries": 0,
        "workspace_bytes": 0,
        "ooms": 0,
        "training_peak_bytes": 100_000,
        "evaluation_peak_bytes": None,
        "phases": [{"iteration": 1, "phase": "forward", "peak_allocated_bytes": 90_000, "end_allocated_bytes": 80_000}],
        "allocations": "",
        "timing_bytes": 0,
        "zeros_read": 0,
        "unknown_reads": [],
        "unknown_calls": [],
        "assumptions": [],
        "error": None,
        "step_ends": [],
        "memory_fraction": 1.0,
        "holder": None,
        "cuda": True,
        "communicators": [],
        "pipeline_micro_batches": 0,
        "process": None,
        "failures": [],
    }
    return {
        "protocol": PROTOCOL,
        "event": "measured",
        "pid": pid,
        "ending": ending,
        "steps": steps,
        **unless_told,
        **fields,
    }


def error(text: str, *types: str) -> dict[str, Any]:
    """An error that ended a process, as its last word has it."""
    link = {"types": [*types, "Exception"], "text": text}
    return {"links": [link], "traceback": f"Traceback (most recent call last):\n{text}"}


OOM_TEXT = "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 256.00 MiB"
OOM_ERROR = error(OOM_TEXT, "torch.OutOfMemoryError", "RuntimeError")


def events(messages: Iterable[Message]) -> TrialEvents:
    """What a trial's record is after these."""
    record = TrialEvents()
    for message in messages:
        record.add(message)
    return record


def ended(
    *messages: Message, return_code: int | None = None, timed_out: bool = False, tail: str | None = TAIL
) -> EndedTrial:
    """A trial that these messages came from."""
    return EndedTrial(events(messages), return_code, timed_out, 12.0, tail)


def classified(*messages: Message, **how: Any) -> ClassifiedTrial:
    """What the trial is taken for, at micro-batch 8 of 256 MiB and three steps."""
    return classify_trial(ended(*messages, **how), 8, CAPACITY, STEPS)
