"""What makes accumulating train as the whole batch would, by cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.results.verify import VerifyCauseId, VerifyRemedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results.verify import Weighting

REMEDIES: Final[dict[VerifyCauseId, VerifyRemedy]] = {
    "batch_norm": VerifyRemedy(
        "use statistics that do not depend on the micro-batch: GroupNorm, or batch norm with frozen statistics; else "
        "keep the micro-batch as large as it can be. SyncBatchNorm joins devices, not micro-batches.",
        "torch.nn.GroupNorm(num_groups=32, num_channels=channels)  # in place of BatchNorm2d(channels)\n"
        "batch_norm.eval()  # or: frozen statistics, after each `model.train()`",
        "OOM209",
    ),
    "module": VerifyRemedy(
        "let the module use each sample's own values, or keep the micro-batch as large as the batch it was made for", ""
    ),
    "model": VerifyRemedy(
        "let the forward use each sample's own values, or keep the micro-batch as large as the batch it was made for",
        "",
    ),
    "pairs": VerifyRemedy(
        "a loss over pairs of samples sees only the pairs within a micro-batch: cache embeddings and their gradients "
        "(gradient caching), gather negatives over devices, or keep the whole batch as one micro-batch",
        "",
    ),
    "loss": VerifyRemedy(
        "a term of the loss is over the batch as a whole: make it a sum of terms of single samples, or compute it from "
        "values that are gathered over all micro-batches",
        "",
    ),
    "state": VerifyRemedy(
        "put back what a forward leaves behind at the start of each micro-batch, or detach and key it by sample", ""
    ),
    "buffers": VerifyRemedy("update such statistics once an optimizer step, after `optimizer.step()`", ""),
    "not_repeatable": VerifyRemedy(
        "make the step repeatable first: no seed decides its random numbers, or it uses values outside of the model",
        "",
    ),
}
"""What to do about each cause."""


def weighting_remedy(weighting: Weighting, weights: Sequence[float], count: str | None) -> VerifyRemedy:
    """Return how to weigh micro-batches.

    Args:
        weighting: What made the accumulated gradient the whole batch's.
        weights: The weights of equal micro-batches.
        count: Code of what is counted in a micro-batch called `part`; None where it is not known.
    """
    if weighting == "sum":
        return VerifyRemedy(
            "the loss is a sum over samples: do not divide it by the accumulation steps",
            'for part, is_boundary in accumulate(batch, plan, reduction="sum"):',
        )
    if count is not None:
        code = f"steps = accumulate(batch, plan, count=lambda part: {count})\nfor part, is_boundary in steps:\n"
        return VerifyRemedy(
            f"the loss is a mean over `{count}`, not over samples: weigh each micro-batch by its share",
            f"{code}    steps.backward(training_step(model, part))",
            "OOM207",
        )
    shown = ", ".join(f"{weight:.3g}" for weight in weights)
    return VerifyRemedy(
        f"the loss is a mean over something other than samples, here with the shares {shown}: let it be a "
        "sum, and divide by the count of the whole batch",
        'for part, is_boundary in accumulate(batch, plan, reduction="sum"):  # with loss = summed / count_of_batch',
    )
