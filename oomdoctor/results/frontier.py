"""The frontier: what fits at each of several sizes besides the batch, such as sequence lengths."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from oomdoctor.codec import ADDED_LATER
from oomdoctor.results.inference import EvaluationMemory
from oomdoctor.results.plan import Accumulation
from oomdoctor.results.probe import Device, Reason
from oomdoctor.results.variant import Axis, Bucket, Mode, SearchedSize, Variant

CellLimit: TypeAlias = Literal["memory", "target", "limit", "model", "unknown"]


@dataclass(frozen=True, slots=True)
class FrontierCell:
    """What fits at one combination of sizes.

    Attributes:
        sizes: The sizes of this cell.
        maximum: Largest micro-batch that fits, or largest value of the searched size; 0 where none does.
        recommended: Largest that was run and leaves the headroom free; 0 where none does.
        limited_by: What keeps it from being larger: `memory`, `target` (nothing above was asked for), `limit` (a limit
            that is not memory), `model` (the model alone does not fit); `unknown` where the cell has no answer.
        elements: Samples of the largest micro-batch times every size, such as tokens; 0 where nothing fits.
        accumulation: How to reach the target batch; None where nothing fits or there is no target.
        trials: Trials that it took.
        notes: What the reader should know.
        problem: Why the cell has no answer; None where it has one.
        evaluation: What an evaluation between the training steps takes at the maximum; None where none was asked for.
    """

    sizes: tuple[Axis, ...]
    maximum: int
    recommended: int
    limited_by: CellLimit
    elements: int
    accumulation: Accumulation | None
    trials: int
    notes: tuple[str, ...] = ()
    problem: str | None = None
    evaluation: EvaluationMemory | None = field(default=None, metadata=ADDED_LATER)


BucketFormat: TypeAlias = Literal["nemo", "lhotse", "json"]


@dataclass(frozen=True, slots=True)
class Buckets:
    """Micro-batches by size that one process trains on in turn: largest first, then shuffled.

    Attributes:
        form: The tool that reads them.
        rows: The buckets, in the order of the cells.
        percent: Their samples in percent of what each cell alone recommends, or of what was asked about; below 100
            where all together ran out, and 0 where a sample of each does.
        token_budget: Most samples times size, such as tokens, in any micro-batch, at which every size fits: what a
            sampler with a budget needs; None where there is none. Of several sizes it is their product, such as pixels.
        trials: Trials of all buckets together.
        cache_returns: Times that PyTorch had to give back its cache in the one whose sizes these are.
        without_budget: Why there is no budget; None where there is one.
        ran_out: How the run with the fewest samples that did not fit ended; None where all of them fit.
    """

    form: BucketFormat
    rows: tuple[Bucket, ...]
    percent: int
    token_budget: int | None
    trials: int
    cache_returns: int = 0
    without_budget: str | None = field(default=None, metadata=ADDED_LATER)
    ran_out: str | None = field(default=None, metadata=ADDED_LATER)


@dataclass(frozen=True, slots=True)
class FrontierResult:
    """The question, and a cell for each combination of sizes.

    Attributes:
        target: The reference to the user's file, or the command in one line, as it was given.
        axes: Names of the sizes whose values the cells combine, in the order in which they were given.
        searched_size: The size that is searched at a fixed micro-batch; None where the micro-batch is searched.
        target_batch: Samples per optimizer step over all devices; None for plain steps.
        world_size: Devices that share the target batch.
        precision: How the step runs: `fp32`, or under autocast as `bf16` or `fp16`; for a command, that nobody knows.
        optimizer: Name of the optimizer that ran.
        headroom: Part of the capacity that the recommended size leaves free, between 0 and 1.
        capacity_bytes: Bytes that PyTorch may take.
        device: Where the trials ran.
        cells: The combinations, the last axis fastest.
        reasons: Where the numbers were had from.
        notes: What the cells together show, such as a smaller size that needs more.
        buckets: The cells as buckets of one training run; None where they were not asked for.
        mode: What each step does with the model: `train` it, or `eval` it without gradients.
        variant: How each trial differs from the target's plain step; its axes are the sizes that every cell has.
    """

    target: str
    axes: tuple[str, ...]
    searched_size: SearchedSize | None
    target_batch: int | None
    world_size: int
    precision: str
    optimizer: str
    headroom: float
    capacity_bytes: int
    device: Device
    cells: tuple[FrontierCell, ...]
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...] = ()
    buckets: Buckets | None = field(default=None, metadata=ADDED_LATER)
    mode: Mode = field(default="train", metadata=ADDED_LATER)
    variant: Variant | None = field(default=None, metadata=ADDED_LATER)
