"""The options of `oomdoctor probe`, many of which other commands have too."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import typer

_DEFAULT_STEPS: Final = 3
"""As in `oomdoctor.request`, whose import would slow down `--help`; a test holds the two together."""


TargetArgument: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="TARGET | -- COMMAND...",
        help="The file to probe: `model.py`, `pkg.module`, `model.py:build_model(depth=24)`, an example such as "
        "`gpt2`, or a model's name such as `timm:resnet50`. Or any training command with a placeholder where its batch "
        "size goes: `-- python train.py --batch-size {micro_batch} --grad-accum {accumulation_steps}`.",
        show_default=False,
    ),
]
TargetBatch: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="Samples per optimizer step over all devices; without it, steps of one micro-batch are asked about.",
        show_default=False,
    ),
]
WorldSize: TypeAlias = Annotated[
    int, typer.Option(help="Devices that share the target batch; for a launcher such as torchrun, ranks of the world.")
]
Rank: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--rank",
        metavar="RANKS",
        help="Ranks that run where `--world-size` is above the processes that a launcher such as torchrun starts, each "
        "alone on a null GPU: numbers, `first`, `last`, `all-distinct`. [default: all-distinct]",
        show_default=False,
    ),
]
MeshText: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--mesh",
        metavar="DIMENSIONS",
        help="Device mesh of these ranks, outermost dimension first, such as `pp=4,dp=8,tp=2`, instead of "
        "`--world-size`: what is not tensor, context or pipeline parallel shares the target batch.",
        show_default=False,
    ),
]
Parallel: TypeAlias = Annotated[
    Literal["ddp", "fsdp"] | None,
    typer.Option(
        "--parallel",
        help="How the ranks of a file's world share its model, where the file has no `parallelize(model, mesh)`: fsdp "
        "shards the repeated blocks and the root by `fully_shard`.",
        show_default=False,
    ),
]
Devices: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--devices",
        min=1,
        help="Devices of one process, over which `torch.nn.DataParallel` divides each batch of a file.",
        show_default=False,
    ),
]
Gpu: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="CARD", help="Card to ask about, such as rtx-4090; needs no GPU.", show_default=False),
]
Device: TypeAlias = Annotated[
    str | None, typer.Option(help="Index or UUID of a GPU of this machine.", show_default=False)
]
Memory: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory of the card in all, such as 16GiB; the CUDA context is taken off it.",
        show_default=False,
    ),
]
Capacity: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="What PyTorch may take of the card's memory, such as 15.5GiB.", show_default=False
    ),
]
Reserve: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory that others hold, a desktop or NCCL, such as 1GiB; PyTorch may not take it.",
        show_default=False,
    ),
]
PrecisionName: TypeAlias = Annotated[
    Literal["fp32", "bf16", "fp16"] | None,
    typer.Option(
        help="How the step of a file runs: fp32, or under autocast (fp16 with a gradient scaler). [default: fp32]",
        show_default=False,
    ),
]
OptimizerName: TypeAlias = Annotated[
    str | None, typer.Option(help="A torch.optim class, where the file builds none (AdamW).", show_default=False)
]
Headroom: TypeAlias = Annotated[str, typer.Option(help="Part of the capacity that the recommended size leaves free.")]
EngineName: TypeAlias = Annotated[
    Literal["auto", "cuda", "null", "trace"],
    typer.Option(help="Where trials run: the local GPU, a null GPU, or no GPU at all (trace)."),
]
TrialTimeout: TypeAlias = Annotated[
    float, typer.Option(help="Longest time a trial may take, in seconds.", min=1.0, max=604800.0)
]
DryRunFlag: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Load the file, run one trial at the smallest size, explain.")
]
SetLiterals: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FILE:NAME=VALUE",
        help="For a command whose batch size is a literal: set it in each trial, the file stays as it is. As in `--set "
        "'train.py:BATCH={micro_batch}'`; several times for several.",
        show_default=False,
    ),
]
Steps: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help=f"Optimizer steps after which a trial of a command is ended. [default: {_DEFAULT_STEPS}]",
        min=1,
        max=1_000_000,
        show_default=False,
    ),
]
CountSteps: TypeAlias = Annotated[
    Literal["optimizer", "backward"] | None,
    typer.Option(
        help="What a step of a command is: a step of an optimizer of torch, or a backward pass. [default: optimizer]",
        show_default=False,
    ),
]
FreshFlag: TypeAlias = Annotated[
    bool,
    typer.Option("--fresh", help="Start new Python processes for each trial of a command; fork none."),
]
GuideFlag: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--guide/--no-guide",
        help="On a real GPU, start the search of a file at the size that a trace predicts.",
    ),
]
At: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        metavar="NAME=SIZE",
        help="A size besides the batch: a keyword of the file's `make_batch`, such as `sequence_length=512`, or a "
        "placeholder of a command; several times for several.",
        show_default=False,
    ),
]
Over: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--over",
        metavar="NAME=SIZE,SIZE,...",
        help="Ask at each of several sizes besides the batch, such as `sequence_length=256,512,1024`; given twice, at "
        "each combination.",
        show_default=False,
    ),
]
Largest: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--largest",
        metavar="NAME",
        help="Find the largest value of that size at `--micro-batch`, instead of the largest micro-batch.",
        show_default=False,
    ),
]
MicroBatchSize: TypeAlias = Annotated[
    int | None,
    typer.Option("--micro-batch", help="Samples in one forward and backward, for `--largest`.", show_default=False),
]
MultipleOf: TypeAlias = Annotated[
    int | None,
    typer.Option("--multiple-of", help="Only multiples are tried, for `--largest`. [default: 1]", show_default=False),
]
UpTo: TypeAlias = Annotated[
    int | None, typer.Option("--up-to", help="Largest value that is tried, for `--largest`.", show_default=False)
]
BucketsFor: TypeAlias = Annotated[
    Literal["nemo", "lhotse", "json"] | None,
    typer.Option(
        "--buckets",
        help="With `--over`: train on all sizes in turn in one process as well, and print the lines that configure a "
        "sampler of buckets.",
        show_default=False,
    ),
]
FastestFlag: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--fastest",
        help="On a real GPU, time whole optimizer steps with smaller micro-batches too: is the largest the fastest?",
    ),
]
ModeName: TypeAlias = Annotated[
    Literal["train", "eval", "generate"] | None,
    typer.Option(
        "--mode",
        help="What is done with a file's model: train it; evaluate it batch after batch without gradients, by the "
        "file's `evaluation_step(model, batch)` where it has one; or generate tokens with it. [default: train]",
        show_default=False,
    ),
]
Prompt: TypeAlias = Annotated[
    int | None,
    typer.Option("--prompt", min=1, help="With `--mode generate`: tokens of each sample's prompt.", show_default=False),
]
NewTokens: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--new-tokens", min=1, help="With `--mode generate`: tokens that are generated for each.", show_default=False
    ),
]
CacheName: TypeAlias = Annotated[
    Literal["dynamic", "static"] | None,
    typer.Option(
        "--cache",
        help="With `--mode generate`: how keys and values are kept, in tensors that grow with each token or that have "
        "the full length at once. [default: dynamic]",
        show_default=False,
    ),
]
WithEvalFlag: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--with-eval",
        help="Evaluate between the training steps of a file, by its `evaluation_step(model, batch)` where it has one: "
        "does the next training step still fit?",
    ),
]
EvalBatch: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--eval-batch",
        min=1,
        help="With `--with-eval`: samples in each batch of the evaluation. [default: as many as the training has]",
        show_default=False,
    ),
]
Jobs: TypeAlias = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Probes at once [default: one a core].", show_default=False),
]
ExecutorName: TypeAlias = Annotated[
    Literal["ray"] | None,
    typer.Option(help="Where several probes run: `ray` for the cores of a Ray cluster.", show_default=False),
]
QuietFlag: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]


def one_card(cards: list[str] | None) -> str | None:
    """Return the card of `--gpu`.

    Raises:
        UsageError: There are several.
    """
    if cards and len(cards) > 1:
        from oomdoctor.errors import UsageError

        raise UsageError(
            f"`--gpu` names {len(cards)} cards, and one is asked about at a time",
            hint="`oomdoctor gpus --fit` and `oomdoctor check` compare cards",
        )
    return cards[0] if cards else None
