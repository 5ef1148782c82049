"""Edits by hand that are alike in several files; they share no line with `oomdoctor.remedies`.

An edit is a list of texts in the file and what replaces them.
"""

from __future__ import annotations

from typing import TypeAlias

Edit: TypeAlias = tuple[tuple[str, str], ...]
IMPORT = "import torch\n"
BATCH = "def make_batch("


def common(loss: str, built: str, batch: str, *, optimizer: str | None = None) -> dict[str, Edit]:
    """Return the edits that differ from file to file by a few words.

    Args:
        loss: What `training_step` returns.
        built: What `build_model` returns.
        batch: What `make_batch` returns.
        optimizer: The call of the file's own `build_optimizer`; None where it has none.
    """
    step = f"    return {loss}\n"

    adafactor = "torch.optim.Adafactor(model.parameters())"
    set_first = 'import os\n\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "{setting}"\n' + IMPORT
    return {
        "bf16": ((step, f'    with torch.autocast("cuda", dtype=torch.bfloat16):\n        return {loss}\n'),),
        "bf16-weights": (
            (f"    return {built}\n", f"    return ({built}).to(torch.bfloat16)\n"),
            (f"    return {batch}\n", f"    return halved(({batch}))\n"),
            (BATCH, HALVED + BATCH),
        ),
        "offload-activations": ((step, OFFLOADED.format(loss=loss)),),
        "drop-leftovers": (
            (step, f"    KEPT.append(batch)\n{step}"),
            (f"    return {batch}\n", f"    free()\n    return {batch}\n"),
            (BATCH, FREE + BATCH),
        ),
        "optimizer-loop": flags(optimizer, "foreach=False"),
        "optimizer-fused": flags(optimizer, "fused=True"),
        "adafactor": ((optimizer, adafactor),) if optimizer else made(adafactor),
        "expandable-segments": ((IMPORT, set_first.format(setting="expandable_segments:True")),),
        "max-split-size": ((IMPORT, set_first.format(setting="max_split_size_mb:128")),),
        **compiled(built),
    }


def compiled(built: str) -> dict[str, Edit]:
    """Return the edits that compile a file's model, with each budget of memory for activations."""
    as_documented = (f"    return {built}\n", f"    return torch.compile({built})\n")
    budget = "import torch\nimport torch._functorch.config\n\ntorch._functorch.config.activation_memory_budget = {}\n"
    budgets = {f"compile-{percent}": percent / 100 for percent in (75, 50, 25, 10, 0)}
    return {
        "compile": (as_documented,),
        **{name: ((IMPORT, budget.format(share)), as_documented) for name, share in budgets.items()},
    }


def made(call: str) -> Edit:
    """Return the edit that gives a file an optimizer."""
    return ((BATCH, f"def build_optimizer(model):\n    return {call}\n\n\n{BATCH}"),)


def flags(optimizer: str | None, flag: str) -> Edit:
    """Return the edit that gives a file's optimizer a flag."""
    if optimizer is None:
        return made(f"torch.optim.AdamW(model.parameters(), {flag})")
    return ((optimizer, f"{optimizer[:-1]}, {flag})"),)


HALVED = """\
def halved(batch):
    if isinstance(batch, dict):
        return {name: halved(value) for name, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map(halved, batch))
    return batch.to(torch.bfloat16) if batch.is_floating_point() else batch


"""
FREE = """\
KEPT = []


def free():
    for batch in KEPT:
        for tensor in batch.values() if isinstance(batch, dict) else batch:
            tensor.untyped_storage().resize_(0)
    KEPT.clear()


"""
OFFLOADED = """\
    def pack(tensor):
        owner = tensor if tensor._base is None else tensor._base
        stays = isinstance(owner, torch.nn.Parameter) or not tensor.is_cuda
        return tensor if stays else torch.empty_like(tensor, device="meta")

    def unpack(kept):
        return torch.empty_like(kept, device="cuda") if kept.is_meta else kept

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return {loss}
"""


KEPT_ATTENTION = [f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn")]
KEPT_PRODUCTS = ["mm", "addmm", "bmm", "convolution"]


def context_of(kept: list[str]) -> str:
    """Return a function for `context_fn` that keeps the results of these operators."""
    operators = ", ".join(f"torch.ops.aten.{name}.default" for name in kept)
    return f"""\
def context():
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    return create_selective_checkpoint_contexts([{operators}])


"""


def replayed(call: str, block: str, arguments: str) -> dict[str, Edit]:
    """Return the edits that checkpoint a file's own loop over its blocks.

    Args:
        call: How the file calls a block.
        block: The block.
        arguments: What it is called with.
    """
    every = f"checkpoint({block}, {arguments}, use_reentrant=False)"
    imports = (IMPORT, f"{IMPORT}from torch.utils.checkpoint import checkpoint\n")

    def keeping(kept: list[str]) -> Edit:
        return (imports, (call, f"{every[:-1]}, context_fn=context)"), (BATCH, context_of(kept) + BATCH))

    return {
        "checkpoint": (imports, (call, every)),
        "checkpoint-keep-attention": keeping(KEPT_ATTENTION),
        "checkpoint-keep-matmuls": keeping(KEPT_PRODUCTS + KEPT_ATTENTION),
    }


def keeping(built: str) -> dict[str, Edit]:
    """Return the edits that have a model of transformers keep results while it checkpoints by its own switch."""
    names = {"attention": KEPT_ATTENTION, "matmuls": KEPT_PRODUCTS + KEPT_ATTENTION}
    return {
        f"checkpoint-keep-{kind}": (
            (
                f"    return {built}\n",
                (
                    f"    model = {built}\n"
                    '    options = {"use_reentrant": False, "context_fn": context}\n'
                    "    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)\n    return model\n"
                ),
            ),
            (BATCH, context_of(kept) + BATCH),
        )
        for kind, kept in names.items()
    }


def switched(built: str, rest: str) -> Edit:
    """Return the edit that has a model of transformers checkpoint by its own switch."""
    return (
        (
            f"    return {built}\n",
            f"    model = {built}\n    model.gradient_checkpointing_enable()\n{rest}    return model\n",
        ),
    )


def in_a_loop(built: str, blocks: str) -> Edit:
    """Return the edit that checkpoints some blocks of a model once it is built.

    Args:
        built: What `build_model` returns.
        blocks: An expression for the blocks of `model`.
    """
    lines = f"    model = {built}\n    for block in {blocks}:\n        replay(block)\n    return model\n"
    return ((f"    return {built}\n", lines), (BATCH, REPLAY.format(options="") + BATCH))


REPLAY = """\
def replay(block):
    from torch.utils.checkpoint import checkpoint

    inside = block.forward
    block.forward = lambda *given, **named: checkpoint(inside, *given, use_reentrant=False{options}, **named)


"""
ADAPTED = """\
class Adapted(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.adapts_down = nn.Parameter(torch.randn(8, inputs))
        self.adapts_up = nn.Parameter(torch.zeros(outputs, 8))

    def forward(self, x):
        low = nn.functional.linear(x, self.adapts_down)
        return super().forward(x) + nn.functional.linear(low, self.adapts_up) * 2.0


"""


def adapted(built: str, first_class: str) -> Edit:
    """Return the edit that gives every linear layer of a file narrow matrices, and freezes all else."""
    lines = f"""\
    model = {built}
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "adapts" in name
    return model
"""
    return ((f"    return {built}\n", lines), ("nn.Linear(", "Adapted("), (first_class, ADAPTED + first_class))
