"""Changes to tensors: their type, and where they wait for the backward."""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Any

import torch

from oomdoctor.engines.null_gpu import library as null_gpu
from oomdoctor.remedies.change import Change, refuse
from oomdoctor.remedies.file_edit import FileEdit
from oomdoctor.target.placement import tensors_in

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class HalfWeights(Change):
    """Weights, gradients, activations and optimizer state in bfloat16."""

    def model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Convert parameters and buffers."""
        floats = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
        if floats and all(parameter.dtype is torch.bfloat16 for parameter in floats):
            raise refuse("the weights are bfloat16 already")
        return model.to(torch.bfloat16)

    def batch(self, batch: Any) -> Any:  # noqa: ANN401 - any nest
        """Convert tensors of floating-point numbers in place."""
        for tensor in tensors_in(batch):
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(torch.bfloat16)
        return batch

    def edit(self) -> FileEdit:
        """Return lines for `build_model` and `make_batch`."""
        return FileEdit(
            imports=("import torch",),
            model=("model.to(torch.bfloat16)",),
            batch=(
                "for tensor in torch.utils._pytree.tree_leaves(batch):",
                "    if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():",
                "        tensor.data = tensor.data.to(torch.bfloat16)",
            ),
        )


class offload_activations(torch.autograd.graph.saved_tensors_hooks, ContextDecorator):  # noqa: N801 - used as a function
    """Have what the backward needs, but for the weights, wait for it in the host's memory; a context and a decorator.

        @offload_activations()
        def training_step(model, batch): ...

    On a null or emulated GPU, where there are no numbers to keep, nothing is copied: the bytes are counted.

    Attributes:
        host_bytes: Bytes that went to the host.
    """

    def __init__(self) -> None:
        self.host_bytes = 0
        super().__init__(self._pack, _unpack)

    def _recreate_cm(self) -> offload_activations:
        return type(self)()

    def _pack(self, tensor: torch.Tensor) -> object:
        base = tensor if tensor._base is None else tensor._base  # noqa: SLF001 - no public way
        if isinstance(base, torch.nn.Parameter):
            return tensor
        self.host_bytes += tensor.nbytes
        if tensor.is_cuda and not _has_numbers(tensor):
            return tensor.device, torch.empty_like(tensor, device="meta")
        kept = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        return tensor.device, kept.copy_(tensor)


def _has_numbers(tensor: torch.Tensor) -> bool:
    """Return whether a tensor that says it is on a GPU is on a real one."""
    real: torch.device = torch._C.TensorBase.device.__get__(tensor)  # noqa: SLF001 - the emulation patches `Tensor.device`
    return real.type == "cuda" and not null_gpu.is_null_gpu()


def _unpack(packed: Any) -> torch.Tensor:  # noqa: ANN401 - a tensor, or its device and its copy
    if isinstance(packed, torch.Tensor):
        return packed
    device, kept = packed
    if kept.is_meta:
        return torch.empty_like(kept, device=device)
    back: torch.Tensor = kept.to(device, non_blocking=True)
    return back


class OffloadActivations(Change):
    """`offload_activations` around each forward."""

    _context: offload_activations | None = None

    def forward(self) -> AbstractContextManager[object]:
        """Return a context of its own for each forward."""
        if self._context is not None:
            self.host_bytes = max(self.host_bytes, self._context.host_bytes)
        self._context = offload_activations()
        return self._context

    def end(self) -> None:
        """Count the last forward, too."""
        if self._context is not None:
            self.host_bytes = max(self.host_bytes, self._context.host_bytes)
            self._context = None

    def edit(self) -> FileEdit:
        """Return a decorator of `training_step`."""
        return FileEdit(
            imports=("from oomdoctor.remedies.tensors import offload_activations",),
            decorators=("offload_activations()",),
        )


class DropLeftovers(Change):
    """Batch and loss of a micro-step gone before the next batch is made."""

    drops_leftovers = True

    def edit(self) -> FileEdit:
        """Return a line for the training loop."""
        return FileEdit(loop=("del batch, loss  # after `backward()`, before the next batch is made",))
