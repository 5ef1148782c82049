"""Documents of `oomdoctor prescribe`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oomdoctor.results import (
    Device,
    MeasuredRemedies,
    Patch,
    PrescribedCode,
    PrescribeDocument,
    PrescribeResult,
    Reason,
)
from oomdoctor.search.probe_search import plan_accumulation

MIB = 2**20
VERSIONS = {"oomdoctor": "0.1.0", "python": "3.11.7", "torch": "2.15.0+cu132", "cuda": "13.2"}
DIFF = "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,3 @@\n import torch\n+for block in model.blocks[:5]:\n"


def row(*remedies: str, maximum: int = 0, **changes: Any) -> MeasuredRemedies:
    """A row that was measured."""
    found = MeasuredRemedies(
        remedies,
        "checkpoint every block",
        "same",
        "measured",
        maximum=maximum,
        recommended=maximum - 1,
        limited_by="memory",
        peak_bytes=20_000 * MIB,
        compared_peak_bytes=(36_000 - 1000 * maximum) * MIB,
        bytes_per_sample=600 * MIB,
        fixed_bytes=1900 * MIB,
        acts_on=("12 of 12 blocks (`blocks.*`)",),
        cost=("a second forward of the blocks",),
    )
    return replace(found, **changes)


def prescribed(**changes: Any) -> PrescribeDocument:
    """A model of which checkpointing reaches what is needed, with rows of every outcome."""
    chosen = row("checkpoint-first-5", maximum=20, on_front=True)
    result = PrescribeResult(
        target="train.py",
        target_batch=256,
        world_size=1,
        precision="fp32",
        need=20,
        keep="rounding",
        without=("fp16",),
        capacity_bytes=23_755 * MIB,
        headroom=0.05,
        device=Device("null", "NVIDIA GeForce RTX 4090", "8.9", 24_000 * MIB),
        plain=row(maximum=16, acts_on=(), cost=()),
        alone=(
            row("checkpoint", maximum=27, notes=("batch norms in the blocks update twice",)),
            row("optimizer-fused", maximum=16, exactness="rounding", compared_peak_bytes=20_001 * MIB),
            row("bf16-weights", maximum=16, exactness="other", host_bytes=5 * MIB),
            MeasuredRemedies(("adamw-8bit",), "an optimizer", "other", "not_applicable", problem="not installed"),
            MeasuredRemedies(("fp16",), "fp16 autocast", "other", "raises", problem="micro-batch 4 fails"),
            MeasuredRemedies(("adafactor",), "Adafactor", "other", "not_measured", problem="the budget was spent"),
        ),
        combined=(chosen,),
        prescribed=chosen,
        accumulation=plan_accumulation(256, 20),
        code=(PrescribedCode("at the end of `build_model`", ("for block in model.blocks[:5]:", "    pass")),),
        patch=Patch("train.py", DIFF, 20, "patched.py"),
        patch_problem=None,
        probes=23,
        reasons=(Reason("engine", "null GPU"),),
        warnings=("the loss is not finite",),
        advice=("the scores of attention exist as a whole", "shorter sequences"),
    )
    return PrescribeDocument("prescribe", "reached", 0, VERSIONS, replace(result, **changes))


def not_enough() -> PrescribeDocument:
    """A model of which nothing reaches what is needed, and nothing helps."""
    changes = {"need": 64, "prescribed": None, "code": (), "patch": None, "accumulation": None, "target_batch": None}
    return replace(prescribed(**changes), status="not_reached", exit_code=1)


def interrupted() -> PrescribeDocument:
    """A model whose second remedy was being measured when somebody interrupted."""
    changes = {"interrupted": "1 of 2 rows of this round, 2 of at most 80 probes done, measuring bf16", "combined": ()}
    document = replace(not_enough(), status="interrupted", exit_code=130)
    return replace(document, result=replace(document.result, **changes))


def filled_with(text: str) -> PrescribeDocument:
    """A document with a text wherever the target or a saved document may put one."""
    hostile = row(text, maximum=20, title=text, acts_on=(text,), cost=(text,), notes=(text,), host_bytes=1)
    found = prescribed(
        target=text,
        without=(text,),
        device=Device("null", text, text, 1),
        alone=(hostile, replace(hostile, outcome="raises", problem=text)),
        combined=(),
        prescribed=hostile,
        code=(PrescribedCode(text, (text,)),),
        patch=Patch(text, text, 20, text),
        reasons=(Reason(text, text),),
        warnings=(text,),
        interrupted=text,
    )
    return replace(found, versions={text: text})
