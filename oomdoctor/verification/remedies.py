"""What makes accumulating train as the whole batch would, by cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.results.verify import VerifyCauseId, VerifyRemedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from oomdoctor.results.verify import Weighting

_GRADIENT_CACHING: Final = """\
parts = [part for part, _ in accumulate(batch, plan, reduction="sum")]
with torch.no_grad():
    outputs = torch.cat([model_outputs(part) for part in parts]).requires_grad_()  # all that the loss reads
loss_of(outputs).backward()  # the whole batch's loss; gradients of outputs and of the loss's own parameters
for part, gradient in zip(parts, outputs.grad.split(plan.micro_batches)):
    model_outputs(part).backward(gradient)  # with the same random draws as above"""

REMEDIES: Final[dict[VerifyCauseId, VerifyRemedy]] = {
    "batch_norm": VerifyRemedy(
        "use statistics that do not depend on the micro-batch: GroupNorm, or batch norm with frozen statistics; else "
        "keep the micro-batch as large as it can be. SyncBatchNorm joins devices, not micro-batches.",
        "torch.nn.GroupNorm(num_groups=32, num_channels=channels)  # in place of BatchNorm2d(channels)\n"
        "batch_norm.eval()  # or: frozen statistics, after each `model.train()`; in a model file, in `training_step`",
        "OOM209",
    ),
    "module": VerifyRemedy(
        "let the module use each sample's own values, or keep the micro-batch as large as the batch it was made for",
        "x.mean(dim=1, keepdim=True)  # over a sample's own features, in place of x.mean(dim=0)",
    ),
    "model": VerifyRemedy(
        "let the forward use each sample's own values, or keep the micro-batch as large as the batch it was made for",
        "",
    ),
    "pairs": VerifyRemedy(
        "a loss over pairs of samples sees only the pairs within a micro-batch: cache embeddings and their gradients "
        "(gradient caching), gather negatives over devices, or keep the whole batch as one micro-batch",
        _GRADIENT_CACHING,
    ),
    "loss": VerifyRemedy(
        "a term of the loss is over the batch as a whole: make it a sum of terms of single samples, or compute it from "
        "outputs that are gathered over all micro-batches, with gradient caching",
        _GRADIENT_CACHING,
    ),
    "state": VerifyRemedy(
        "put back what a forward leaves behind at the start of each micro-batch, or detach and key it by sample", ""
    ),
    "buffers": VerifyRemedy("update such statistics once an optimizer step, after `optimizer.step()`", ""),
    "random_draws": VerifyRemedy(
        "let `make_batch` draw such numbers and masks, so that each sample brings its own; or draw noise with PyTorch "
        "(`torch.randn`), whose expected values are known",
        "",
    ),
    "not_repeatable": VerifyRemedy(
        "make the step repeatable first: no seed decides its random numbers, or it uses values outside of the model",
        "",
    ),
}
"""What to do about each cause."""

COMMAND_REMEDIES: Final[dict[VerifyCauseId, VerifyRemedy]] = {
    "zero_grad": VerifyRemedy(
        "zero gradients once an optimizer step: after `optimizer.step()`, under the same condition",
        "if is_boundary:\n    optimizer.step()\n    optimizer.zero_grad()",
        "OOM201",
    ),
    "boundary": VerifyRemedy(
        "step after every `accumulation_steps` micro-batches",
        "if (index + 1) % accumulation_steps == 0:  # index from 0\n    optimizer.step()\n    optimizer.zero_grad()",
        "OOM203",
    ),
    "division": VerifyRemedy(
        "divide each micro-batch's loss by the number of micro-batches in the step",
        "(loss / accumulation_steps).backward()",
        "OOM202",
    ),
    "divided_twice": VerifyRemedy(
        "divide a mean once, and a sum over samples not at all: Accelerate, Lightning and DeepSpeed divide the loss "
        "themselves, where they are told the steps",
        "",
    ),
    "scale": VerifyRemedy(
        "divide each micro-batch's loss by the number of micro-batches in the step, and by nothing else",
        "(loss / accumulation_steps).backward()",
        "OOM202",
    ),
    "weights": VerifyRemedy(
        "divide a sum of losses by the count of all micro-batches of the step, such as their tokens; with the Trainer "
        "of transformers, let `compute_loss` heed `num_items_in_batch`",
        '(summed_loss / tokens_of_all_micro_batches).backward()  # summed_loss with reduction="sum"',
        "OOM207",
    ),
    "clip": VerifyRemedy(
        "clip once an optimizer step: right before `optimizer.step()`, under the same condition",
        "if is_boundary:\n    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n    optimizer.step()",
        "OOM205",
    ),
    "scheduler": VerifyRemedy(
        "step the schedule with the optimizer, under the same condition",
        "if is_boundary:\n    optimizer.step()\n    scheduler.step()",
        "OOM206",
    ),
    "average": VerifyRemedy(
        "update the average of weights once an optimizer step, after `optimizer.step()`: else its decay is that of as "
        "many steps as there are micro-batches",
        "if is_boundary:\n    optimizer.step()\n    average.update_parameters(model)",
    ),
    "moved_weights": VerifyRemedy(
        "change weights once an optimizer step, after `optimizer.step()`: decay, clamping and noise that are written "
        "by hand as well",
        "if is_boundary:\n    optimizer.step()\n    clamp(model)",
    ),
    "partial_window": VerifyRemedy(
        "divide the last window of an epoch by the micro-batches that it has, and step after it; or let an epoch have "
        "a multiple of the accumulation steps (`drop_last=True` with the whole batch's size)",
        "in_window = min(accumulation_steps, len(loader) - first_of_window)\n(loss / in_window).backward()\n"
        "# with Accelerate, which divides by all steps itself:\n"
        "accelerator.backward(loss * accumulation_steps / in_window)",
        "OOM204",
    ),
    "mixing": VerifyRemedy(
        "`oomdoctor verify model.py` names the module or the line, for a file with `build_model` and `make_batch`; a "
        "batch-wide layer or a loss over pairs of samples needs the whole batch. What hooks of parameters do to each "
        "gradient, such as clamping it, belongs before `optimizer.step()`",
        "",
    ),
    "samples": VerifyRemedy(
        "let both runs see the same samples in the same order: give the sampler a seed that does not depend on the "
        "batch size, let random data and augmentations be drawn by sample, not by batch, and let the data have a whole "
        "batch (`--samples`) at least",
        "torch.utils.data.DataLoader(data, shuffle=True, generator=torch.Generator().manual_seed(0))",
    ),
    "other_weights": VerifyRemedy(
        "let both runs begin with the same weights: seed before the model is built",
        "torch.manual_seed(0)",
    ),
    "random_draws": VerifyRemedy(
        "verify with what draws them switched off, or verify a model file, where every draw is replaced by its "
        "expected value",
        "",
    ),
    "several_optimizers": VerifyRemedy(
        "verify one optimizer's training at a time, or a model file for each: which backward belongs to which step is "
        "not known",
        "",
    ),
}
"""What to do about each cause in a command; of those that are not here, what is said of model files."""


def normalisation_remedy(norm: torch.nn.Module) -> VerifyRemedy:
    """Return the remedy for a batch norm, with its own class and channels, and groups that divide them."""
    remedy, channels = REMEDIES["batch_norm"], getattr(norm, "num_features", None)
    if not channels:
        return remedy
    sizes = range(1, min(_MOST_GROUPS, channels // _LEAST_CHANNELS) + 1)
    groups = max((size for size in sizes if channels % size == 0), default=1)
    frozen = remedy.code.splitlines()[1]
    replaced = f"in place of {type(norm).__name__}({channels})"
    code = f"torch.nn.GroupNorm(num_groups={groups}, num_channels={channels})  # {replaced}\n{frozen}"
    return VerifyRemedy(remedy.change, code, remedy.rule)


_MOST_GROUPS: Final = 32
_LEAST_CHANNELS: Final = 4
"""Channels of a group: with one, and no other dimension, nothing but zeros is left of it."""


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
