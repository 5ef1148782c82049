"""Changes to a model's repeated blocks: activation checkpointing in its kinds, freezing, and LoRA.

Blocks are the outermost modules of the class that is repeated and has the most trainable parameters. A model of
transformers is left to its own switch, which takes what is kept as well: its layers write caches, which a replay by
somebody else would write twice. The switch of a model of timm is all layers or none; part of them are done by hand.

LoRA gives the linear layers of the blocks a product of two narrow matrices beside them, which alone is trained.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from oomdoctor.remedies.change import Change, refuse
from oomdoctor.remedies.file_edit import FileEdit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Blocks = Sequence[tuple[str, nn.Module]]

# By their full names: a `build_model` often has a parameter `checkpoint`.
_IMPORT: Final = "import torch.utils.checkpoint"
_CONTEXT: Final = (
    "context = functools.partial(torch.utils.checkpoint.create_selective_checkpoint_contexts, KEPT_RESULTS)"
)
_CALL: Final = (
    "block.forward = functools.partial(torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False{context})"
)
_CONTAINERS: Final = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
_ATTENTION: Final = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
_SAVED: Final = {
    "matmuls": ("mm", "addmm", "bmm", "convolution", *_ATTENTION),
    "attention": _ATTENTION,
}
"""Names of the operators in `torch.ops.aten` whose results selective checkpointing keeps."""


def repeated_blocks(model: nn.Module) -> Blocks:
    """Return path and module of each block; empty where no class with children and parameters is repeated."""
    by_class: dict[type[nn.Module], list[tuple[str, nn.Module]]] = {}
    for name, module in model.named_modules():
        trains = any(parameter.requires_grad for parameter in module.parameters())
        if name and trains and not isinstance(module, _CONTAINERS) and any(True for _ in module.children()):
            by_class.setdefault(type(module), []).append((name, module))
    repeated = [blocks for blocks in map(_outermost, by_class.values()) if len(blocks) > 1]
    return max(repeated, key=_parameters, default=())


def _outermost(blocks: Blocks) -> Blocks:
    names = [f"{name}." for name, _ in blocks]
    return [
        (name, block) for name, block in blocks if not any(f"{name}.".startswith(o) for o in names if o != f"{name}.")
    ]


def _parameters(blocks: Blocks) -> int:
    return sum(parameter.numel() for _, block in blocks for parameter in block.parameters())


class CheckpointBlocks(Change):
    """Checkpointing of blocks: all, every n-th (`checkpoint-every-2`) or the first n (`checkpoint-first-5`)."""

    saved: str | None = None

    def model(self, model: nn.Module) -> nn.Module:
        """Have the blocks, or the model's own switch, compute their activations again in the backward."""
        switch = _switch_of(model)
        if switch is not None and (switch.takes_options or (self.saved is None and self.argument is None)):
            self._edit = self._switched(model, switch)
            return model
        blocks = self._chosen(repeated_blocks(model))
        for _, block in blocks:
            block.forward = _checkpointed(block, self._options())
        self._edit = self._by_hand(blocks_expression(model, [name for name, _ in blocks]))
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for _, b in blocks for module in b.modules()):  # noqa: SLF001
            self.note = "batch norms in the blocks update their running statistics twice a step"
        return model

    def edit(self) -> FileEdit:
        """Return lines for the end of `build_model`."""
        return self._edit

    def _chosen(self, blocks: Blocks) -> Blocks:
        if not blocks:
            raise refuse("no class of modules is repeated in the model, so that there are no blocks to checkpoint")
        first = self.argument if "-first-" in self.name else None
        chosen = blocks[:first] if first else blocks[:: self.argument or 1]
        self.count, self.total = len(chosen), len(blocks)
        self.acts_on = (
            f"{len(chosen)} of {len(blocks)} blocks (`{pattern([name for name, _ in blocks])}`{class_line(blocks)})"
        )
        return chosen

    def _options(self) -> dict[str, Any]:
        if self.saved is None:
            return {}
        return {"context_fn": partial(create_selective_checkpoint_contexts, _operators(self.saved))}

    def _switched(self, model: nn.Module, switch: _Switch) -> FileEdit:
        layers = switch.layers
        if self.argument is not None and not layers:
            raise refuse(f"the model checkpoints by a switch of its own, `{switch.name}()`, all layers or none")
        switch.method(*([{"use_reentrant": False, **self._options()}] if self.saved else []))
        first = self.argument if "-first-" in self.name else None
        kept = layers[first:] if first else [] if self.argument is None else _others(layers, self.argument)
        for layer in kept:
            setattr(layer, "gradient_checkpointing", False)  # noqa: B010 - not of every module
        # Where the switch is all or none, part of the blocks can be checkpointed by hand.
        self.total = len(layers) if switch.takes_options else len(repeated_blocks(model))
        self.count = self.total - len(kept)
        which = f"{self.count} of {self.total} layers" if layers else "all layers"
        self.acts_on = f"{which}, by `{switch.name}()`"
        return self._switch_edit(switch, kept, first)

    def _switch_edit(self, switch: _Switch, kept: Sequence[nn.Module], first: int | None) -> FileEdit:
        lines = [f"model.{switch.name}()"]
        if self.saved is not None:
            lines = [_CONTEXT, f'model.{switch.name}({{"use_reentrant": False, "context_fn": context}})']
        if kept:
            part = f"[{first}:]" if first else f" if number % {self.argument}"
            lines += [
                "layers = [module for module in model.modules() if hasattr(module, '_gradient_checkpointing_func')]"
            ]
            lines += [f"layers = [layer for layer in layers if type(layer).__name__ == {type(kept[0]).__name__!r}]"]
            every = f"layers{part}" if first else f"[layer for number, layer in enumerate(layers){part}]"
            lines += [f"for layer in {every}:", "    layer.gradient_checkpointing = False"]
        return replace(self._kept_results(), model=tuple(lines))

    def _kept_results(self) -> FileEdit:
        """Return imports and the list of what selective checkpointing keeps; nothing where all is computed again."""
        if self.saved is None:
            return FileEdit()
        kept = (f"    torch.ops.aten.{name}.default," for name in _SAVED[self.saved])
        return FileEdit(imports=("import functools", _IMPORT), definitions=("KEPT_RESULTS = [", *kept, "]"))

    def _by_hand(self, blocks: str) -> FileEdit:
        lines, context = [f"for block in {blocks}:"], ""
        edit = FileEdit(imports=("import functools", _IMPORT))
        if self.saved is not None:
            edit, context = self._kept_results(), ", context_fn=context"
            lines.insert(0, _CONTEXT)
        lines.append(f"    {_CALL.format(context=context)}")
        return replace(edit, model=tuple(lines))


class SelectiveMatmuls(CheckpointBlocks):
    """Checkpointing of blocks that keeps the results of matrix products, convolutions and attention."""

    saved = "matmuls"


class SelectiveAttention(CheckpointBlocks):
    """Checkpointing of blocks that keeps the results of attention."""

    saved = "attention"


class FreezeBlocks(Change):
    """Freezing of the first half of the blocks, and of what is before them."""

    def model(self, model: nn.Module) -> nn.Module:
        """Freeze them."""
        blocks = repeated_blocks(model)
        if not blocks:
            raise refuse("no class of modules is repeated in the model, so that there are no blocks to freeze")
        chosen = blocks[: len(blocks) // 2]
        self.count, self.total = len(chosen), len(blocks)
        self.acts_on = (
            f"{len(chosen)} of {len(blocks)} blocks (`{pattern([name for name, _ in blocks])}`{class_line(blocks)})"
        )
        self._blocks = blocks_expression(model, [name for name, _ in chosen])
        for _, block in chosen:
            block.requires_grad_(False)  # noqa: FBT003 - torch's own
        for parameter in model.parameters(recurse=False):
            parameter.requires_grad_(False)  # noqa: FBT003 - torch's own
        return model

    def edit(self) -> FileEdit:
        """Return lines for the end of `build_model`."""
        lines = [
            f"for block in {self._blocks}:",
            "    block.requires_grad_(False)",
            "for parameter in model.parameters(recurse=False):",
            "    parameter.requires_grad_(False)",
        ]
        return FileEdit(model=tuple(lines))


def class_line(blocks: Blocks) -> str:
    """Return the line that the blocks' class begins in, with a comma before it; nothing where it has none."""
    kind = type(blocks[0][1])
    try:
        file, (_, line) = inspect.getsourcefile(kind), inspect.getsourcelines(kind)
    except (OSError, TypeError):  # made by code that is in no file
        return ""
    return f", `{kind.__name__}` at {Path(file).name}:{line}" if file else ""


def _checkpointed(block: nn.Module, options: dict[str, Any]) -> Callable[..., object]:
    inner = block.forward

    def forward(*args: Any, **kwargs: Any) -> object:  # noqa: ANN401 - what the block takes
        if not (block.training and torch.is_grad_enabled()):
            return inner(*args, **kwargs)
        result: object = checkpoint(inner, *args, use_reentrant=False, **options, **kwargs)
        return result

    return forward


def _operators(saved: str) -> list[torch._ops.OpOverload]:
    return [getattr(torch.ops.aten, name).default for name in _SAVED[saved] if hasattr(torch.ops.aten, name)]


@dataclass(frozen=True, slots=True)
class _Switch:
    """A model's own switch.

    Attributes:
        name: Of its method.
        method: The method.
        layers: Layers that checkpoint one by one; none where they cannot be told apart.
        takes_options: Whether it takes the options of `torch.utils.checkpoint.checkpoint`.
    """

    name: str
    method: Callable[..., object]
    layers: Sequence[nn.Module] = ()
    takes_options: bool = False


def _switch_of(model: nn.Module) -> _Switch | None:
    """Return a model's own switch; None without one."""
    if getattr(model, "supports_gradient_checkpointing", False):
        names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
        name = next((name for name in names if hasattr(model, name)), None)
        if name is not None:
            return _Switch(name, getattr(model, name), _layers_of_transformers(model), takes_options=True)
    if hasattr(model, "set_grad_checkpointing"):
        return _Switch("set_grad_checkpointing", cast("Any", model).set_grad_checkpointing)
    return None


def _layers_of_transformers(model: nn.Module) -> list[nn.Module]:
    """Return the layers that checkpoint one by one; none where they are of several classes."""
    layers = [
        module
        for module in model.modules()
        if any(base.__name__ == "GradientCheckpointingLayer" for base in type(module).__mro__)
    ]
    return layers if len({type(layer) for layer in layers}) == 1 else []


def _others(layers: Sequence[nn.Module], every: int) -> list[nn.Module]:
    return [layer for number, layer in enumerate(layers) if number % every]


def pattern(names: Sequence[str]) -> str:
    """Return paths of blocks as one, with their numbers as `*`, such as `blocks.*` or `layer1.*`."""
    patterns = dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in names)
    return ", ".join(patterns)


def blocks_expression(model: nn.Module, names: Sequence[str]) -> str:
    """Return an expression for the blocks of these paths of `model`."""
    parents: dict[str, list[int]] = {}
    for name in names:
        parent, _, last = name.rpartition(".")
        if not _is_list_item(model, name):
            return f"map(model.get_submodule, {list(names)!r})"
        parents.setdefault(parent, []).append(int(last))
    parts = [
        f"*{_attribute(parent)}{_slice(numbers, sum(1 for _ in model.get_submodule(parent).children()))}"
        for parent, numbers in parents.items()
    ]
    return parts[0][1:] if len(parts) == 1 else f"[{', '.join(parts)}]"


def _is_list_item(model: nn.Module, name: str) -> bool:
    """Return whether a module is an item of a list, and so is each on the way whose name is a number."""
    parts = name.split(".")
    owners = [model.get_submodule(".".join(parts[:depth])) for depth, part in enumerate(parts) if part.isdigit()]
    are_lists = all(isinstance(owner, nn.ModuleList | nn.Sequential) for owner in owners)
    return len(parts) > 1 and parts[-1].isdigit() and are_lists


def _attribute(path: str) -> str:
    return "model" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path.split("."))


def _slice(numbers: Sequence[int], length: int) -> str:
    """Return the slice of a list's items with these numbers; nothing for all."""
    if [*numbers] == [*range(length)]:
        return ""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    return f"[{numbers[0] or ''}:{numbers[-1] + 1}{f':{step}' if step != 1 else ''}]"


RANK: Final = 8
_CLASS: Final = f'''
class LowRank(torch.nn.Module):
    """A frozen linear layer, and a product of two narrow matrices that is trained beside it."""

    def __init__(self, linear, rank={RANK}, scale=2.0):
        super().__init__()
        options = {{"bias": False, "dtype": linear.weight.dtype, "device": linear.weight.device}}
        self.linear, self.scale = linear, scale
        self.down = torch.nn.Linear(linear.in_features, rank, **options)
        self.up = torch.nn.Linear(rank, linear.out_features, **options)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x)) * self.scale
'''


class LowRank(nn.Module):
    """A frozen linear layer, and a product of two narrow matrices that is trained beside it.

    The first output is that of the layer alone, since the second matrix is zero.

    Args:
        linear: The layer.
        rank: Width of the matrices.
        scale: What the product is multiplied with.
    """

    def __init__(self, linear: nn.Linear, rank: int = RANK, scale: float = 2.0) -> None:
        super().__init__()
        dtype, device = linear.weight.dtype, linear.weight.device
        self.linear, self.scale = linear, scale
        self.down = nn.Linear(linear.in_features, rank, bias=False, dtype=dtype, device=device)
        self.up = nn.Linear(rank, linear.out_features, bias=False, dtype=dtype, device=device)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., inputs) to (..., outputs)."""
        y: torch.Tensor = self.linear(x) + self.up(self.down(x)) * self.scale
        return y


class LowRankAdapters(Change):
    """LoRA of all linear layers of the blocks; everything else is frozen."""

    def model(self, model: nn.Module) -> nn.Module:
        """Freeze the model, and put the matrices beside its linear layers."""
        blocks = repeated_blocks(model)
        if not blocks:
            raise refuse("no class of modules is repeated in the model, so that there are no blocks to adapt")
        model.requires_grad_(False)  # noqa: FBT003 - torch's own
        count = sum(_adapt(block) for _, block in blocks)
        if not count:
            raise refuse("its blocks have no layer of the class `torch.nn.Linear`")
        names = [name for name, _ in blocks]
        self._blocks = blocks_expression(model, names)
        where = f"(`{pattern(names)}`{class_line(blocks)})"
        self.acts_on = f"{count} linear layers of {len(blocks)} blocks {where}, with rank {RANK}"
        return model

    def edit(self) -> FileEdit:
        """Return a class, and lines for the end of `build_model`."""
        lines = (
            "model.requires_grad_(False)",
            f"for block in {self._blocks}:",
            "    for layer in list(block.modules()):",
            "        for name, part in list(layer.named_children()):",
            "            if type(part) is torch.nn.Linear:",
            "                setattr(layer, name, LowRank(part))",
        )
        return FileEdit(imports=("import torch",), definitions=tuple(_CLASS.strip("\n").splitlines()), model=lines)


def _adapt(block: nn.Module) -> int:
    """Adapt the linear layers in a block, but for classes derived from them, whose weights others may read."""
    count = 0
    for layer in list(block.modules()):
        for name, part in list(layer.named_children()):
            if type(part) is nn.Linear:
                setattr(layer, name, LowRank(part))
                count += 1
    return count
