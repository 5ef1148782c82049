"""Trials of the examples."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

SIZES = {
    "gpt2": (8, 17),  # the smallest micro-batch that does not fit, too
    "lstm": (8,),
    "resnet50": (8,),
    "unet:build_model(channels=32)": (1,),
    "vit_b16:build_model(layers=3)": (8,),
}


def trials(name: str, micro_batches: tuple[int, ...]) -> list[dict[str, Any]]:
    """A trial of each size."""
    from oomdoctor.results import Variant
    from oomdoctor.target.contract import build
    from oomdoctor.target.importing import load_target
    from oomdoctor.target.placement import BatchShape
    from oomdoctor.target.reference import parse_reference
    from oomdoctor.trial.protocol import RunTrial
    from oomdoctor.trial.step import TrialSetup
    from oomdoctor.trial.trial import run_trial

    target = load_target(parse_reference(name, directory=Path.cwd()))
    model, device = build(target).to("cuda").train(), torch.device("cuda", 0)
    setup = TrialSetup(target, model, device, Variant(), computes=False, shape=BatchShape())
    allowed = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    return [facts(run_trial(setup, RunTrial(size, 1, allowed)).trial) for size in micro_batches]


def facts(trial: Any) -> dict[str, Any]:
    """What has to agree."""
    return {
        "outcome": trial.outcome.value,
        "peak": trial.peak_allocated_bytes,
        "reserved": trial.peak_reserved_bytes,
        "phases": [(p.iteration, p.phase.value, p.peak_allocated_bytes, p.end_allocated_bytes) for p in trial.phases],
        "error": re.sub(r"Process \d+ has|this process has", "it has", (trial.error or "").split(" If reserved")[0]),
    }


def answers() -> dict[str, Any]:
    """Outcome, peaks and phases of each."""
    return {name: trials(name, sizes) for name, sizes in SIZES.items()}
