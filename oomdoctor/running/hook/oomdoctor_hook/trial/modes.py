"""`train()` and `eval()`: between them lies an evaluation. Lightning sets modes back without `train()`."""

# ruff: noqa: TID252 - where this folder lies is another program's business; the package has no other name
# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import functools
import sys
from typing import Any

from .. import imports
from ..guard import guarded
from . import batch
from .phases import PHASES

_LIGHTNING = ("lightning.pytorch.utilities.model_helpers", "pytorch_lightning.utilities.model_helpers")


def watch(torch: Any) -> None:
    """Tell the phases of each outermost call; a module calls those of its parts."""
    module = torch.nn.Module
    original = module.train
    depth = 0

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:  # noqa: FBT001, FBT002 - as it is without us
        nonlocal depth
        depth += 1
        try:
            return original(self, mode)
        finally:
            depth -= 1
            if depth == 0:
                _changed(self, is_training=bool(mode))

    module.train = train
    for name in _LIGHTNING:
        imports.when_imported(name, functools.partial(_watch_lightning, name))


@guarded
def _changed(module: Any, *, is_training: bool) -> None:
    PHASES.mode_changed(module, is_training=is_training)
    if is_training:
        batch.training_begins()


def _watch_lightning(name: str) -> None:
    lightning: Any = sys.modules[name]
    mode = lightning._ModuleMode  # noqa: SLF001
    original = mode.restore

    @functools.wraps(original)
    def restore(self: Any, module: Any) -> Any:
        result = original(self, module)
        _changed(module, is_training=module.training)
        return result

    mode.restore = restore
