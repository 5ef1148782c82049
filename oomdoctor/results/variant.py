"""The difference of a trial from the target's plain step: its precision, optimizer, environment, changes and sizes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from oomdoctor.codec import ADDED_LATER

Precision = Literal["fp32", "bf16", "fp16"]
Parallel = Literal["ddp", "fsdp"]
Mode = Literal["train", "eval", "generate"]
CacheKind = Literal["dynamic", "static"]


@dataclass(frozen=True, slots=True)
class EnvironmentVariable:
    """A variable of the worker's environment, such as `PYTORCH_CUDA_ALLOC_CONF`.

    Attributes:
        name: Its name.
        value: Its value.
    """

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Axis:
    """A size other than the batch that `make_batch` takes as a keyword, such as a sequence length.

    Attributes:
        name: The keyword.
        size: Its value.
    """

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class SearchedSize:
    """A size other than the batch that is searched in its place, at one micro-batch.

    Attributes:
        name: The keyword that `make_batch` takes it as.
        micro_batch: Samples in one forward and backward.
        multiple_of: Unit of its steps: only multiples are tried.
        up_to: Largest value that is tried; None for no bound.
    """

    name: str
    micro_batch: int
    multiple_of: int = 1
    up_to: int | None = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """Samples of one range of sizes, as a sampler that sorts by length puts them together.

    Attributes:
        sizes: The largest sizes of the range, to which its samples are padded.
        micro_batch: Samples in one forward and backward.
    """

    sizes: tuple[Axis, ...]
    micro_batch: int


@dataclass(frozen=True, slots=True)
class LoneRank:
    """One rank of a world, which runs without the others.

    Attributes:
        rank: Its number.
        world_size: Number of ranks in the world.
        mesh: Dimensions of its device mesh, of a file's model; None for one dimension, `dp`.
        parallel: How the model is parallelised where the file has no `parallelize`; None where it has.
    """

    rank: int
    world_size: int
    mesh: str | None = field(default=None, metadata=ADDED_LATER)
    parallel: Parallel | None = field(default=None, metadata=ADDED_LATER)


@dataclass(frozen=True, slots=True)
class Generation:
    """How tokens are generated.

    Attributes:
        prompt_tokens: Tokens of each sample's prompt.
        new_tokens: Tokens that are generated for each sample.
        cache: How keys and values are kept: `dynamic`, which grows with each token, or `static`, of the full length.
    """

    prompt_tokens: int
    new_tokens: int
    cache: CacheKind = "dynamic"


@dataclass(frozen=True, slots=True)
class EvaluationBetween:
    """An evaluation between two training steps.

    Attributes:
        micro_batch: Samples in each of its batches; None for as many as the training has.
    """

    micro_batch: int | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """The difference of a trial from the target's plain step; the default is that step, in fp32.

    `oomdoctor.request.build_variant` makes it, and `oomdoctor.trial.variants` applies it.

    Attributes:
        precision: How the step runs: `fp32`, or under autocast as `bf16` or `fp16` (with a gradient scaler).
        optimizer: Name of a `torch.optim` class where the file builds none; None for AdamW.
        environment: Variables that the worker's environment has besides the parent's, by name.
        transformations: Names of changes to model, batch, forward or optimizer, in the order in which they are made.
        axes: Sizes other than the batch, by name.
        searched: The size that is searched, where that is not the micro-batch: a trial's size counts its multiples.
        lone_rank: The rank that a trial plays alone; None where all processes run, or a whole model.
        devices: Devices of one process, over which `nn.DataParallel` divides each batch.
        mode: What a trial does with the model: `train` it, `eval` it batch after batch without gradients, or `generate`
            tokens with it.
        generation: How tokens are generated; None in the other modes.
        evaluation: What is evaluated between the training steps; None for nothing.
        buckets: Batches of several sizes that one trial trains on in turn; its size is the percentage of their samples.
    """

    precision: Precision = "fp32"
    optimizer: str | None = None
    environment: tuple[EnvironmentVariable, ...] = ()
    transformations: tuple[str, ...] = ()
    axes: tuple[Axis, ...] = ()
    searched: SearchedSize | None = field(default=None, metadata=ADDED_LATER)
    lone_rank: LoneRank | None = field(default=None, metadata=ADDED_LATER)
    buckets: tuple[Bucket, ...] = field(default=(), metadata=ADDED_LATER)
    devices: int = field(default=1, metadata=ADDED_LATER)
    mode: Mode = field(default="train", metadata=ADDED_LATER)
    generation: Generation | None = field(default=None, metadata=ADDED_LATER)
    evaluation: EvaluationBetween | None = field(default=None, metadata=ADDED_LATER)

    def sizes_at(self, trial_size: int) -> dict[str, int]:
        """Return the sizes of the axes in a trial of this size, with the searched one's or the buckets' largest."""
        is_given = self.searched is not None and self.generation is None  # tokens are no size of `make_batch`
        searched = {self.searched.name: trial_size * self.searched.multiple_of} if self.searched and is_given else {}
        axes = sorted((axis for bucket in self.buckets for axis in bucket.sizes), key=lambda axis: axis.size)
        return self.sizes | searched | {axis.name: axis.size for axis in axes}

    def generating(self, trial_size: int) -> Variant:
        """Return the variant of a trial of this size, where tokens of the prompt or new ones are searched."""
        if self.searched is None or self.generation is None:
            return self
        tokens = trial_size * self.searched.multiple_of
        if self.searched.name == "prompt":
            return replace(self, generation=replace(self.generation, prompt_tokens=tokens))
        return replace(self, generation=replace(self.generation, new_tokens=tokens))

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the axes by name."""
        return {axis.name: axis.size for axis in self.axes}
