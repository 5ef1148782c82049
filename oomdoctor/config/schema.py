"""The keys of a configuration: each is a field, with `-` for `_`, and its type says what it takes.

None is a key that was not given. A table is a dataclass, a list of tables a tuple of one, and a mapping with free keys
a dict; `oomdoctor.config.decoding` reads all of it by these annotations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


SeverityName: TypeAlias = Literal["note", "warning", "error"]
PrecisionName: TypeAlias = Literal["fp32", "bf16", "fp16"]
StepName: TypeAlias = Literal["optimizer", "backward"]
ParallelName: TypeAlias = Literal["ddp", "fsdp"]
ModeName: TypeAlias = Literal["train", "eval", "generate"]
CacheName: TypeAlias = Literal["dynamic", "static"]
EngineName: TypeAlias = Literal["auto", "cuda", "null", "trace"]

EXAMPLE = "example"
"""Key in a field's metadata for a value, in TOML, to show where a wrong one was given."""

WORDS = "words"
"""Key in a field's metadata where a list is the words of a command, so that one in a string can be taken apart."""

_CODES: Mapping[str, str] = MappingProxyType({EXAMPLE: '["OOM102", "OOM2"]'})


@dataclass(frozen=True, slots=True)
class RuleChoice:
    """Selection of rules.

    Attributes:
        select: Codes, prefixes of codes or names, in place of the default set.
        ignore: The same, left out.
        extend_select: The same, on top of `select` or the default set.
        per_file_ignores: Selectors that are left out in files that a glob matches.
    """

    select: tuple[str, ...] | None = field(default=None, metadata=_CODES)
    ignore: tuple[str, ...] | None = field(default=None, metadata=_CODES)
    extend_select: tuple[str, ...] | None = field(default=None, metadata=_CODES)
    per_file_ignores: dict[str, tuple[str, ...]] | None = field(
        default=None, metadata={EXAMPLE: '{ "tests/**" = ["OOM101"] }'}
    )


@dataclass(frozen=True, slots=True)
class LintTable(RuleChoice):
    """`[lint]`: what `oomdoctor lint` looks for, and where.

    Attributes:
        exclude: Globs of files and folders to pass over.
        fail_on: The mildest severity that makes the command exit with 1.
    """

    exclude: tuple[str, ...] | None = field(default=None, metadata={EXAMPLE: '["legacy", "*_test.py"]'})
    fail_on: SeverityName | None = field(default=None, metadata={EXAMPLE: '"error"'})


@dataclass(frozen=True)  # without slots, which two bases of one class cannot both have
class SharedKeys:
    """Keys of `oomdoctor check`: at the top of a file for all entries, in an entry for that one.

    Attributes:
        gpu: Card to ask about; the local GPU without one.
        gpus: Several cards, each of which makes an entry of its own.
        memory: Memory of the card in all, as a size.
        capacity: What PyTorch may take of it, as a size; instead of `memory`.
        reserve: Memory that others hold, as a size; PyTorch may not take it.
        target_batch: Samples per optimizer step over all devices.
        world_size: Devices that share them.
        mesh: Dimensions of the world's device mesh, outermost first.
        rank: Ranks of that world that run alone: numbers, `first`, `last`, `all-distinct`.
        parallel: How a file's model is parallelised over it, where the file has no `parallelize`.
        precision: How the step runs.
        optimizer: A `torch.optim` class, where the target's file builds none.
        headroom: Part of the capacity that has to stay free, as a share.
        baseline: Whether what was found is compared with the baseline file.
        tolerance: Share by which a figure may be worse than in the baseline.
        trial_timeout: Longest time for loading and for each trial, in seconds.
        engine: What answers: `auto`, `cuda`, `null` or `trace`.
        device: Index or UUID of the local GPU.
        guide: Whether a trace tells where the search on a local GPU begins.
        inputs: Files that the answer depends on besides those that the target reads, as patterns.
        verify: Whether accumulating has to train what the whole batch would.
    """

    gpu: str | None = field(default=None, metadata={EXAMPLE: '"rtx-4090"'})
    gpus: tuple[str, ...] | None = field(default=None, metadata={EXAMPLE: '["rtx-4090", "l40s"]'})
    memory: str | None = field(default=None, metadata={EXAMPLE: '"20GiB"'})
    capacity: str | None = field(default=None, metadata={EXAMPLE: '"19.5GiB"'})
    reserve: str | None = field(default=None, metadata={EXAMPLE: '"1GiB"'})
    target_batch: int | None = field(default=None, metadata={EXAMPLE: "256"})
    world_size: int | None = field(default=None, metadata={EXAMPLE: "8"})
    mesh: str | None = field(default=None, metadata={EXAMPLE: '"dp=8,tp=8"'})
    rank: str | None = field(default=None, metadata={EXAMPLE: '"first,last"'})
    parallel: ParallelName | None = field(default=None, metadata={EXAMPLE: '"fsdp"'})
    precision: PrecisionName | None = field(default=None, metadata={EXAMPLE: '"bf16"'})
    optimizer: str | None = field(default=None, metadata={EXAMPLE: '"SGD"'})
    headroom: str | float | None = field(default=None, metadata={EXAMPLE: '"5%"'})
    baseline: bool | None = field(default=None, metadata={EXAMPLE: "true"})
    tolerance: str | float | None = field(default=None, metadata={EXAMPLE: '"2%"'})
    trial_timeout: float | None = field(default=None, metadata={EXAMPLE: "300"})
    engine: EngineName | None = field(default=None, metadata={EXAMPLE: '"null"'})
    device: str | None = field(default=None, metadata={EXAMPLE: '"0"'})
    guide: bool | None = field(default=None, metadata={EXAMPLE: "false"})
    inputs: tuple[str, ...] | None = field(default=None, metadata={EXAMPLE: '["uv.lock", "data/**/*.json"]'})
    verify: bool | None = field(default=None, metadata={EXAMPLE: "true"})


@dataclass(frozen=True)
class CheckKeys(SharedKeys):
    """Keys that the command line, the environment and the top of a file may have.

    Attributes:
        jobs: Entries that run at once.
    """

    jobs: int | None = field(default=None, metadata={EXAMPLE: "2"})


@dataclass(frozen=True)
class CheckEntry(SharedKeys):
    """`[[check]]`: one model, and what has to hold for it.

    Attributes:
        name: What to call it; without one, as its target or its command.
        target: The target, relative to the file's folder.
        command: In place of a target, a command that trains, with placeholders for its sizes; it runs in that folder.
        set: Literals of the command's own files that its trials set, as `FILE:NAME=VALUE`.
        steps: Optimizer steps after which a trial of the command is ended.
        count_steps: What such a step is: one of an optimizer of torch, or a backward pass.
        fresh: Whether each trial of the command starts its Pythons anew.
        micro_batch: Size at which memory is recorded.
        min_micro_batch: Smallest maximum micro-batch that passes.
        max_accumulation_steps: Most accumulation steps that pass.
        max_memory: Most memory that PyTorch may hold at `micro_batch`, as a size.
        at: Sizes besides the batch, by keyword of the file's `make_batch` or placeholder of the command.
        over: Several values of such sizes; each combination makes an entry of its own.
        largest: A size whose largest value at `micro_batch` is asked for, instead of the largest micro-batch.
        multiple_of: Only its multiples are tried.
        up_to: Largest value of it that is tried.
        at_least: Smallest largest value that passes.
        buckets: Micro-batches by size on which one process has to train in turn, each a table of sizes by name and its
            `micro-batch`.
        bucket_file: In place of them, a file with what `oomdoctor probe --buckets json` prints.
        fastest: Whether the optimizer steps of several micro-batches are timed; only a GPU of this machine has a clock.
        min_samples_per_second: Least samples in a second, with the fastest micro-batch, that pass.
        mode: What is done with a file's model: `train` it, `eval`uate it, or `generate` tokens with it.
        prompt: Tokens of each prompt, where it generates.
        new_tokens: Tokens that are generated for each.
        cache: How keys and values are kept.
        with_eval: Whether an evaluation comes between a file's training steps.
        eval_batch: Samples in each of its batches.
    """

    name: str | None = field(default=None, metadata={EXAMPLE: '"pretrain"'})
    target: str | None = field(default=None, metadata={EXAMPLE: '"train/model.py:build_model(depth=24)"'})
    command: tuple[str, ...] | None = field(
        default=None,
        metadata={EXAMPLE: '["python", "train.py", "--batch-size", "{micro_batch}"]', WORDS: True},
    )
    set: tuple[str, ...] | None = field(default=None, metadata={EXAMPLE: '["train.py:BATCH={micro_batch}"]'})
    steps: int | None = field(default=None, metadata={EXAMPLE: "3"})
    count_steps: StepName | None = field(default=None, metadata={EXAMPLE: '"backward"'})
    fresh: bool | None = field(default=None, metadata={EXAMPLE: "true"})
    micro_batch: int | None = field(default=None, metadata={EXAMPLE: "8"})
    min_micro_batch: int | None = field(default=None, metadata={EXAMPLE: "8"})
    max_accumulation_steps: int | None = field(default=None, metadata={EXAMPLE: "32"})
    max_memory: str | None = field(default=None, metadata={EXAMPLE: '"20GiB"'})
    at: dict[str, int] | None = field(default=None, metadata={EXAMPLE: "{ sequence_length = 512 }"})
    over: dict[str, tuple[int, ...]] | None = field(
        default=None, metadata={EXAMPLE: "{ sequence_length = [256, 512, 1024] }"}
    )
    largest: str | None = field(default=None, metadata={EXAMPLE: '"sequence_length"'})
    multiple_of: int | None = field(default=None, metadata={EXAMPLE: "64"})
    up_to: int | None = field(default=None, metadata={EXAMPLE: "8192"})
    at_least: int | None = field(default=None, metadata={EXAMPLE: "2048"})
    buckets: tuple[dict[str, int], ...] | None = field(
        default=None, metadata={EXAMPLE: "[{ sequence_length = 512, micro-batch = 32 }]"}
    )
    bucket_file: str | None = field(default=None, metadata={EXAMPLE: '"buckets.json"'})
    fastest: bool | None = field(default=None, metadata={EXAMPLE: "true"})
    min_samples_per_second: float | None = field(default=None, metadata={EXAMPLE: "500"})
    mode: ModeName | None = field(default=None, metadata={EXAMPLE: '"eval"'})
    prompt: int | None = field(default=None, metadata={EXAMPLE: "512"})
    new_tokens: int | None = field(default=None, metadata={EXAMPLE: "256"})
    cache: CacheName | None = field(default=None, metadata={EXAMPLE: '"static"'})
    with_eval: bool | None = field(default=None, metadata={EXAMPLE: "true"})
    eval_batch: int | None = field(default=None, metadata={EXAMPLE: "64"})


@dataclass(frozen=True, slots=True)
class Configuration(RuleChoice, CheckKeys):
    """A whole configuration.

    Only lint has rules, so what chooses them may stand at the top as well as in `[lint]`; what every entry of a check
    has in common may as well.

    Attributes:
        lint: The table `[lint]`.
        check: The tables `[[check]]`.
    """

    lint: LintTable = field(default_factory=LintTable)
    check: tuple[CheckEntry, ...] = ()
