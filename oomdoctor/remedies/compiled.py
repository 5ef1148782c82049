"""`torch.compile` of the model, with a budget of memory for the activations that its partitioner keeps."""

from __future__ import annotations

import torch
from torch import nn

from oomdoctor.remedies.change import Change, refuse
from oomdoctor.remedies.file_edit import FileEdit


class Compiled(Change):
    """A model compiled by Inductor; a trial forgets what was compiled for it.

    The number in the name is `torch._functorch.config.activation_memory_budget` in percent: how much of what the
    backward needs is kept, where 100 is the default and less is computed again.
    """

    def model(self, model: nn.Module) -> nn.Module:
        """Have it compiled at its first call.

        Raises:
            NotApplicableError: It is compiled already, or this PyTorch has no such budget.
        """
        if any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules()):
            raise refuse("the model is compiled already")
        if isinstance(model, torch._dynamo.eval_frame.OptimizedModule):  # noqa: SLF001 - what `torch.compile` returns
            raise refuse("the model is compiled already")
        from torch._functorch import config  # noqa: PLC0415 - only where something is compiled

        if self.argument is not None:
            if not hasattr(config, "activation_memory_budget"):
                raise refuse(f"PyTorch {torch.__version__} has no budget of memory for activations")
            config.activation_memory_budget = self.argument / 100
        model.compile(dynamic=False)
        self.acts_on = "the whole model"
        return model

    def edit(self) -> FileEdit:
        """Return lines for the end of `build_model`."""
        lines = ("model.compile(dynamic=False)",)
        if self.argument is None:
            return FileEdit(model=lines)
        budget = f"torch._functorch.config.activation_memory_budget = {self.argument / 100}"
        return FileEdit(imports=("import torch", "import torch._functorch.config"), model=(budget, *lines))
