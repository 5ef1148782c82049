"""A training loop's batch as micro-batches by a plan, with each loss's weight.

The mean of a batch is not the sum of the means of its parts: each part counts by its share of what the mean is over.
Whoever leaves the shares out trains with gradients that are as many times too large as there are micro-batches, and no
error says so. So the shares belong to the loop, and a loop that passes over one is stopped before it can step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

import torch

from oomdoctor.errors import UsageError
from oomdoctor.results import Accumulation
from oomdoctor.search.probe_search import plan_accumulation
from oomdoctor.target.placement import place
from oomdoctor.target.splitting import samples_in, split
from oomdoctor.units import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


Batch = TypeVar("Batch")

_UNWEIGHTED_HINT = """\
in place of `loss.backward()` write

    steps = accumulate(batch, plan)
    for micro_batch, is_boundary in steps:
        ...
        steps.backward(loss)  # or backward of `loss * steps.weight`

or `accumulate(..., reduction="sum")` where the loss is a sum over samples and not a mean"""


_COUNT_HINT = "it takes a micro-batch and returns a number, 0 or more"


class MicroSteps(Generic[Batch]):
    """The micro-batches of one optimizer step, once through: pairs of a micro-batch and whether it is the last.

    Args:
        parts: The micro-batches.
        weights: The share of each in the batch.
        device: Where each is put when its turn comes; None for where it is.
        must_weigh: Whether a loop that passes over a weight is stopped.
    """

    def __init__(
        self, parts: Sequence[Batch], weights: Sequence[float], device: torch.device | str | None, *, must_weigh: bool
    ) -> None:
        self._parts = parts
        self._weights = weights
        self._device = device
        self._must_weigh = must_weigh and len(parts) > 1
        self._done = 0
        self._is_weighed = True  # there is nothing to weigh yet

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[tuple[Batch, bool]]:
        return self

    def __next__(self) -> tuple[Batch, bool]:
        if self._must_weigh and not self._is_weighed:
            raise UsageError(
                f"micro-batch {self._done} of {len(self)} was not weighted, and the gradient would not be the batch's",
                hint=_UNWEIGHTED_HINT,
            )
        if self._done == len(self):
            raise StopIteration
        part = self._parts[self._done]
        self._done += 1
        self._is_weighed = False
        return part if self._device is None else place(part, self._device), self._done == len(self)

    @property
    def weight(self) -> float:
        """Factor of the current micro-batch's loss before its backward, between 0 and 1.

        Raises:
            UsageError: The loop has not begun.
        """
        if not self._done:
            raise UsageError("there is no micro-batch to weigh before the loop", hint="read `weight` inside the loop")
        self._is_weighed = True
        return self._weights[self._done - 1]

    def backward(self, loss: torch.Tensor, **options: Any) -> None:  # noqa: ANN401 - what Tensor.backward takes
        """Run the backward pass of the current micro-batch's loss with its weight.

        Args:
            loss: The loss, or what a gradient scaler made of it.
            options: What `torch.Tensor.backward` takes.

        Raises:
            UsageError: The loop has not begun.
        """
        (loss * self.weight).backward(**options)  # type: ignore[no-untyped-call]


def accumulate(  # noqa: PLR0913 - what a batch and a loss may be
    batch: Batch,
    plan: Accumulation,
    *,
    device: torch.device | str | None = None,
    batch_size: int | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    count: Callable[[Batch], float] | None = None,
) -> MicroSteps[Batch]:
    """Split one device's batch as planned, for a loop over its micro-batches.

        steps = accumulate(batch, plan, device="cuda")
        for micro_batch, is_boundary in steps:
            loss = training_step(model, micro_batch)
            steps.backward(loss)
            if is_boundary:
                optimizer.step()
                optimizer.zero_grad()

    The gradients are those of the whole batch, uneven micro-batches included; only layers that look across samples,
    such as BatchNorm, see each micro-batch by itself. A loop that does not use the weights is stopped at its second
    micro-batch. An epoch's last batch may be smaller than the plan's: it is split as evenly, into micro-batches no
    larger than the plan's largest.

    Args:
        batch: Tensors and NumPy arrays that lead with the samples, in any nest of dicts and other mappings, lists,
            tuples, named tuples and dataclasses. Numbers, text, and tensors without dimensions or with a leading 1 are
            in every micro-batch. Lists and tuples are gone into, and with `batch_size` those with an item a sample are
            split between items. A list that could be either is refused.
        plan: From `load_result(...).plan`, `probe(...).plan` or `plan_accumulation`.
        device: Where each micro-batch is put when its turn comes. Let the batch itself stay on the CPU: the plan was
            made with one micro-batch on the GPU.
        batch_size: Samples in the batch, where it holds lists of samples: images of different shapes, names of files.
            Each list or tuple of that many alike items is then one of samples; name the parts of the batch in a dict.
        reduction: What the loss is over what it counts: their `mean`, or their `sum`, which needs no weights.
        count: What a mean is over, given a micro-batch; such as its tokens that are not padding. None for samples. A
            micro-batch that counts 0 has no part in the mean, and is passed over.

    Raises:
        UsageError: The batch is empty or larger than planned, its samples cannot be counted, a part cannot be split or
            can be read in two ways, or an argument is not what it should be.
    """
    _check(plan, device, reduction)
    samples = samples_in(batch) if batch_size is None else _batch_size(batch_size)
    sizes = _sizes(samples, plan)
    cut = split(batch, samples, sizes, planned=sum(plan.micro_batches), is_told=batch_size is not None)
    parts = cast("list[Batch]", cut)
    if reduction == "sum":
        return MicroSteps(parts, [1.0] * len(parts), device, must_weigh=False)
    counts = sizes if count is None else [_counted(count, part) for part in parts]
    parts, weights = _weighed(parts, counts)
    return MicroSteps(parts, weights, device, must_weigh=True)


def _check(plan: object, device: torch.device | str | None, reduction: str) -> None:
    """Raise a UsageError for arguments of another kind."""
    if not isinstance(plan, Accumulation):
        raise UsageError(
            f"`plan` is `{plan!r:.80}`, which is no plan",
            hint="take `load_result(...).plan`, `probe(...).plan` or `plan_accumulation(...)`",
        )
    if reduction not in ("mean", "sum"):
        raise UsageError(f"`reduction` is `{reduction}`, which is none of its values", hint="one of `mean`, `sum`")
    try:
        _ = device if device is None else torch.device(device)
    except (RuntimeError, TypeError):
        raise UsageError(
            f"`device` is `{device!r}`, which PyTorch does not know", hint="such as `cuda`, `cuda:1` or `cpu`"
        ) from None


def _batch_size(value: int) -> int:
    size = whole_number("batch_size", value)
    if size < 0:
        raise UsageError(f"`batch_size` is `{size}`, which is no number of samples", hint="give the batch's samples")
    return size


def _sizes(samples: int, plan: Accumulation) -> tuple[int, ...]:
    """Return the micro-batches of so many samples: the plan's own, or for an epoch's last batch as even ones."""
    planned = sum(plan.micro_batches)
    if samples == planned:
        return plan.micro_batches
    if samples < 1:
        raise UsageError("the batch is empty", hint="leave the optimizer step out")
    if samples > planned:
        raise UsageError(
            f"the batch has {samples} samples, and the plan {planned} on each device",
            hint="give the share of one device, or probe again with a larger target batch",
        )
    return plan_accumulation(samples, max(plan.micro_batches)).micro_batches


def _counted(count: object, part: object) -> float:
    """Return the count of a micro-batch, which is a number, or a tensor or an array of one."""
    if not callable(count):
        raise UsageError(f"`count` is `{count!r:.80}`, which is no function", hint=_COUNT_HINT)
    counted: Any = count(part)
    try:
        number = math.nan if isinstance(counted, str) else float(counted)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise UsageError(f"`count` returned `{counted!r:.80}`, which is no count", hint=_COUNT_HINT)
    return number


def _weighed(parts: Sequence[Batch], counts: Sequence[float]) -> tuple[list[Batch], list[float]]:
    """Return the micro-batches that count and their shares; the mean of one that does not count is 0 / 0."""
    total = sum(counts)
    if not total > 0:
        raise UsageError(
            "there is nothing in the batch for its mean to be over", hint="leave the optimizer step out, or see `count`"
        )
    kept = [(part, counted / total) for part, counted in zip(parts, counts, strict=True) if counted]
    return [part for part, _ in kept], [weight for _, weight in kept]
