"""LoRA: the linear layers of the blocks get a product of two narrow matrices beside them, which alone is trained."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from oomdoctor.remedies.blocks import blocks_expression, class_line, pattern, repeated_blocks
from oomdoctor.remedies.change import Change, refuse
from oomdoctor.remedies.file_edit import FileEdit

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
