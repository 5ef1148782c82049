"""The remedies: what each is, what it changes, and what it leaves as it was. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from oomdoctor.remedies.file_edit import FileEdit
from oomdoctor.results import EnvironmentVariable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oomdoctor.results import Precision, Variant

Exactness: TypeAlias = Literal["same", "rounding", "other"]
EXACTNESS: Final[tuple[Exactness, ...]] = ("same", "rounding", "other")
"""From what changes no number to what trains otherwise."""

ALLOCATOR_VARIABLE: Final = "PYTORCH_CUDA_ALLOC_CONF"
_SCALED: Final = (
    'scaler = torch.amp.GradScaler("cuda")  # before the loop',
    'with torch.autocast("cuda", dtype=torch.float16):',
    "    loss = training_step(model, batch)",
    "scaler.scale(loss).backward()",
    "scaler.step(optimizer)",
    "scaler.update()",
)


@dataclass(frozen=True, slots=True)
class KnownRemedy:
    """One remedy.

    Attributes:
        id: What `--without` calls it.
        kind: Remedies of one kind exclude each other.
        title: What it is.
        exactness: `same` (the same numbers), `rounding` (other roundings of them) or `other` (training differs).
        rank: Order of cost among those of one exactness; higher is dearer.
        cost: What it costs.
        sources: Where it is described.
        change: Name of its change in `oomdoctor.remedies.applied`; None where it changes nothing there.
        precision: Precision of autocast; None where it changes none.
        allocator: Setting of PyTorch's allocator; None for none.
        accumulates: Whether it works where gradients are accumulated.
        on_request: Whether it is measured only where `--with` names it.
        asked_with: Another remedy, which is measured on request as well and brings this one along; None for none.
        alone: Whether it is combined with others only where `--with` names it, since it costs out of proportion.
        needs: Modules of which one has to be installed; none for torch alone.
        uncounted: What it runs that is no operator of PyTorch, so that no count of a step sees it; None for nothing.
        not_in_commands: Why it cannot be measured on a command; None where it can.
        not_in_traces: Why the trace engine cannot measure it; None where it can.
    """

    id: str
    kind: str
    title: str
    exactness: Exactness
    rank: int
    cost: str
    sources: tuple[str, ...]
    change: str | None = None
    precision: Precision | None = None
    allocator: str | None = None
    accumulates: bool = True
    on_request: bool = False
    asked_with: str | None = None
    alone: bool = False
    needs: tuple[str, ...] = ()
    uncounted: str | None = None
    not_in_commands: str | None = None
    not_in_traces: str | None = None

    def added_to(self, variant: Variant) -> Variant:
        """Return the variant with this remedy on top."""
        changes = (*variant.transformations, self.change) if self.change else variant.transformations
        settings = (EnvironmentVariable(ALLOCATOR_VARIABLE, self.allocator),) if self.allocator else ()
        return replace(
            variant,
            precision=self.precision or variant.precision,
            transformations=changes,
            environment=(*variant.environment, *settings),
        )

    @property
    def is_outside_of_steps(self) -> bool:
        """Whether forward and backward run the same operators with it and without."""
        return self.kind in ("allocator", "loop") or (self.kind == "optimizer" and self.accumulates)

    @property
    def missing(self) -> str | None:
        """Sentence that names what is not installed; None where nothing is missing."""
        if not self.needs or any(find_spec(name) for name in self.needs):
            return None
        return (
            f"{self.needs[0]} is not installed"
            if len(self.needs) == 1
            else f"neither {' nor '.join(self.needs)} is installed"
        )

    def edit(self) -> FileEdit:
        """Return how a file is edited for what this is besides its change, which says so itself."""
        if self.precision == "bf16":
            return FileEdit(imports=("import torch",), decorators=('torch.autocast("cuda", dtype=torch.bfloat16)',))
        if self.precision == "fp16":
            return FileEdit(loop=_SCALED)
        if self.allocator:
            return FileEdit(top=("import os", f'os.environ["{ALLOCATOR_VARIABLE}"] = "{self.allocator}"'))
        return FileEdit()


_HOLDS_OPTIMIZER: Final = "the program makes its optimizer itself, and holds it"
_COMPILES: Final = "where the program compiles its model is for the program's own lines"
_OWN_KERNELS: Final = "its kernels are no operators of PyTorch, which the trace engine runs"
_NO_CODE: Final = "the trace engine runs operators one by one, and compiled code is none that it knows"
_HOLDS_PARAMETERS: Final = "the program's optimizer holds the weights before the model is called"

_CHECKPOINT: Final = ("https://docs.pytorch.org/docs/stable/checkpoint.html",)
_AMP: Final = ("https://docs.pytorch.org/docs/stable/amp.html",)
_OPTIMIZERS: Final = ("https://docs.pytorch.org/docs/stable/optim.html",)
_COMPILE: Final = (
    "https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    "https://pytorch.org/blog/activation-checkpointing-techniques/",
)
_ALLOCATOR: Final = ("https://docs.pytorch.org/docs/stable/notes/cuda.html",)

REMEDIES: Final = (
    KnownRemedy(
        "checkpoint",
        "checkpoint",
        "checkpoint every block: keep its input, compute the rest again in the backward",
        "same",
        26,
        "a second forward of the blocks",
        _CHECKPOINT,
        change="checkpoint",
    ),
    KnownRemedy(
        "fused-cross-entropy",
        "loss",
        "compute the last linear layer and the cross entropy in pieces, without all logits at once",
        "rounding",
        10,
        "smaller matrix products",
        ("https://docs.pytorch.org/docs/main/generated/torch.nn.functional.linear_cross_entropy.html",),
        change="fused-cross-entropy",
    ),
    KnownRemedy(
        "liger-cross-entropy",
        "loss",
        "compute the last linear layer and the cross entropy in pieces, by liger-kernel",
        "rounding",
        11,
        "smaller matrix products",
        ("https://github.com/linkedin/Liger-Kernel",),
        change="liger-cross-entropy",
        needs=("liger_kernel",),
        uncounted="kernels of liger-kernel",
        not_in_traces=_OWN_KERNELS,
    ),
    KnownRemedy(
        "cut-cross-entropy",
        "loss",
        "compute the last linear layer and the cross entropy in blocks, by cut-cross-entropy",
        "rounding",
        12,
        "logits computed twice",
        ("https://github.com/apple/ml-cross-entropy",),
        change="cut-cross-entropy",
        needs=("cut_cross_entropy",),
        uncounted="kernels of cut-cross-entropy",
        not_in_traces=_OWN_KERNELS,
    ),
    KnownRemedy(
        "checkpoint-keep-attention",
        "checkpoint",
        "checkpoint every block, but keep what attention returned",
        "same",
        28,
        "a second forward of the blocks without attention",
        _CHECKPOINT,
        change="checkpoint-keep-attention",
    ),
    KnownRemedy(
        "checkpoint-every-2",
        "checkpoint",
        "checkpoint every second block",
        "same",
        20,
        "a second forward of half the blocks",
        _CHECKPOINT,
        change="checkpoint-every-2",
    ),
    KnownRemedy(
        "checkpoint-keep-matmuls",
        "checkpoint",
        "checkpoint every block, but keep what matrix products, convolutions and attention returned",
        "same",
        15,
        "a second run of what is cheap in the blocks",
        _CHECKPOINT,
        change="checkpoint-keep-matmuls",
    ),
    KnownRemedy(
        "offload-activations",
        "offload",
        "let activations wait in the host's memory for the backward",
        "same",
        50,
        "a copy to the host and back of all activations",
        ("https://docs.pytorch.org/docs/stable/autograd.html#torch.autograd.graph.saved_tensors_hooks",),
        change="offload-activations",
        alone=True,
    ),
    KnownRemedy(
        "bf16",
        "precision",
        "run the forward under bf16 autocast",
        "other",
        10,
        "eight bits of mantissa in matrix products",
        _AMP,
        precision="bf16",
    ),
    KnownRemedy(
        "fp16",
        "precision",
        "run the forward under fp16 autocast, with a gradient scaler",
        "other",
        12,
        "a scaler, and steps skipped where a gradient overflows",
        _AMP,
        precision="fp16",
        not_in_commands="the program's loop has no gradient scaler, which its own lines have to call",
    ),
    KnownRemedy(
        "bf16-weights",
        "precision",
        "keep weights, gradients and optimizer state in bfloat16",
        "other",
        30,
        "small updates are lost to rounding",
        ("https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.dtype",),
        change="bf16-weights",
        not_in_commands=_HOLDS_PARAMETERS,
    ),
    KnownRemedy(
        "optimizer-fused",
        "optimizer",
        "step with the optimizer's fused kernel, which has no temporary tensors",
        "rounding",
        1,
        "nothing",
        _OPTIMIZERS,
        change="optimizer-fused",
    ),
    KnownRemedy(
        "optimizer-loop",
        "optimizer",
        "step over parameters one by one (`foreach=False`)",
        "rounding",
        3,
        "many small kernels in each step",
        _OPTIMIZERS,
        change="optimizer-loop",
    ),
    KnownRemedy(
        "optimizer-in-backward",
        "optimizer",
        "step each parameter in the backward, and free its gradient at once",
        "same",
        8,
        "no accumulation, and no clipping by a norm over all gradients",
        ("https://docs.pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html",),
        change="optimizer-in-backward",
        accumulates=False,
        not_in_commands=_HOLDS_OPTIMIZER,
    ),
    KnownRemedy(
        "adafactor",
        "optimizer",
        "train with Adafactor, whose state is a row and a column of each matrix",
        "other",
        20,
        "another optimizer: its learning rate is to be found",
        ("https://docs.pytorch.org/docs/stable/generated/torch.optim.Adafactor.html",),
        change="adafactor",
        not_in_commands=_HOLDS_OPTIMIZER,
    ),
    KnownRemedy(
        "adamw-8bit",
        "optimizer",
        "train with an AdamW whose state has 8 bits (torchao or bitsandbytes)",
        "other",
        15,
        "a coarser state",
        ("https://github.com/pytorch/ao/tree/main/torchao/optim",),
        change="adamw-8bit",
        needs=("torchao", "bitsandbytes"),
        not_in_commands=_HOLDS_OPTIMIZER,
    ),
    KnownRemedy(
        "drop-leftovers",
        "loop",
        "let go of batch and loss before the next batch is made",
        "same",
        0,
        "nothing",
        ("https://docs.pytorch.org/docs/stable/notes/faq.html",),
        change="drop-leftovers",
        not_in_commands="what its loop keeps is in the program's own variables",
    ),
    KnownRemedy(
        "expandable-segments",
        "allocator",
        "let the allocator's segments grow (`expandable_segments:True`)",
        "same",
        1,
        "nothing in a steady loop",
        _ALLOCATOR,
        allocator="expandable_segments:True",
    ),
    KnownRemedy(
        "max-split-size",
        "allocator",
        "split no cached block above 128 MiB (`max_split_size_mb:128`)",
        "same",
        2,
        "nothing in a steady loop",
        _ALLOCATOR,
        allocator="max_split_size_mb:128",
    ),
    KnownRemedy(
        "freeze-half",
        "freeze",
        "train the second half of the blocks only",
        "other",
        40,
        "the first half is not trained",
        ("https://docs.pytorch.org/docs/stable/notes/autograd.html#setting-requires-grad",),
        change="freeze-half",
        on_request=True,
        not_in_commands=_HOLDS_PARAMETERS,
    ),
    KnownRemedy(
        "lora",
        "freeze",
        "train matrices of rank 8 beside the blocks' linear layers, and nothing else (LoRA)",
        "other",
        42,
        "only what the narrow matrices can say is learned",
        ("https://arxiv.org/abs/2106.09685",),
        change="lora",
        on_request=True,
        not_in_commands=_HOLDS_PARAMETERS,
    ),
    KnownRemedy(
        "compile",
        "compile",
        "compile the model with `torch.compile`",
        "rounding",
        30,
        "compilation of each size before its first step",
        _COMPILE,
        change="compile",
        on_request=True,
        uncounted="compiled code",
        not_in_commands=_COMPILES,
        not_in_traces=_NO_CODE,
    ),
    *(
        KnownRemedy(
            f"compile-{percent}",
            "compile",
            f"compile the model, with an activation memory budget of {percent} %",
            "rounding",
            31 + number,
            "compilation of each size before its first step, and what is computed again",
            _COMPILE,
            change=f"compile-{percent}",
            asked_with="compile",
            on_request=True,
            uncounted="compiled code",
            not_in_commands=_COMPILES,
            not_in_traces=_NO_CODE,
        )
        for number, percent in enumerate((75, 50, 25, 10, 0))
    ),
)
"""Every remedy, in the order in which they are measured: the likeliest first."""

BY_ID: Final = {remedy.id: remedy for remedy in REMEDIES}


def remedy(name: str) -> KnownRemedy:
    """Return a remedy by its id; `checkpoint-first-5` is one of the first five blocks."""
    if name.startswith("checkpoint-first-"):
        number = int(name.rpartition("-")[2])
        title = f"checkpoint the first {number} blocks" if number > 1 else "checkpoint the first block"
        rank = min(25, 10 + number)
        return replace(BY_ID["checkpoint"], id=name, title=title, rank=rank, change=name)
    return BY_ID[name]


def with_remedies(variant: Variant, names: Iterable[str]) -> Variant:
    """Return the variant with these remedies on top."""
    for name in names:
        variant = remedy(name).added_to(variant)
    return variant


def exactness(names: Iterable[str]) -> Exactness:
    """Return what is left the same by all of them together."""
    return max((remedy(name).exactness for name in names), key=EXACTNESS.index, default="same")


def cost(names: Sequence[str]) -> tuple[int, int, int]:
    """Return what sorts sets of remedies by what they cost: exactness first, then the sum of ranks."""
    return EXACTNESS.index(exactness(names)), sum(remedy(name).rank for name in names), len(names)
