"""Documents of `oomdoctor verify`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oomdoctor.results import VerifyDocument
from oomdoctor.results.verify import GradientError, VerifyCause, VerifyRemedy, VerifyResult

VERSIONS = {"oomdoctor": "0.1.0", "python": "3.11.7", "torch": "2.15.0"}


def verified(**changes: Any) -> VerifyDocument:
    """A model with a batch norm and padded labels: different, and weighted besides."""
    sizes, unequal = (2, 2, 2, 2), (3, 3, 2)
    errors = (
        GradientError("mean", sizes, (0.25,) * 4, 0.37),
        GradientError("mean", unequal, (0.375, 0.375, 0.25), 0.29),
        GradientError("sum", sizes, (1.0,) * 4, 3.1),
    )
    result = VerifyResult(
        target="train.py",
        samples=8,
        precision="fp64",
        tolerance=1e-6,
        verdict="different",
        gradient_error=0.37,
        weighted_error=3e-16,
        weights_error=0.37,
        errors=errors,
        random_error=0.41,
        reversed_error=0.02,
        random_operators=("bernoulli_",),
        changed_buffers=tuple(f"layers.{index}.running_mean" for index in range(8)),
        causes=(VerifyCause("batch_norm", "layers.1", "train.py:5", "the rows of `native_batch_norm` differ"),),
        remedies=(VerifyRemedy("use GroupNorm", "torch.nn.GroupNorm(4, 8)\n# or freeze it", "OOM209"),),
        notes=("every label of this batch counts",),
    )
    return VerifyDocument("verify", "different", 1, VERSIONS, replace(result, **changes))


def equal() -> VerifyDocument:
    """A model that is equal."""
    found = verified(
        verdict="equal", gradient_error=0.0, weights_error=0.0, random_error=0.0, causes=(), remedies=(), notes=()
    )
    return replace(found, status="equal", exit_code=0)


def filled_with(text: str) -> VerifyDocument:
    """A document with a text wherever the target or a saved document may put one."""
    found = verified(
        target=text,
        random_operators=(text,),
        changed_buffers=(text,),
        causes=(VerifyCause("module", text, text, text),),
        remedies=(VerifyRemedy(text, text, text),),
        notes=(text,),
    )
    return replace(found, versions={text: text})
