"""Starts torchtitan's own `train.py` on random tokens: its checkout comes first, and then the options of `train.py`.

What it needs for data and logs alone is replaced, so that none of it has to be installed.
"""

# mypy: ignore-errors

from __future__ import annotations

import runpy
import sys
import types
from collections.abc import Iterator

import torch

VOCABULARY = 128256


class Nothing:
    """Stands for a class that is made and not used."""

    def __init__(self, *_: object, **__: object) -> None:
        pass


class RandomTokens:
    """Batches without end."""

    def __init__(self, batch: int, length: int) -> None:
        self.shape = (batch, length + 1)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            tokens = torch.randint(VOCABULARY, self.shape)
            yield tokens[:, :-1], tokens[:, 1:]


def stand_in(name: str, **attributes: object) -> None:
    """Let a module be imported that is not installed."""
    module = types.ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module


def main() -> None:
    """Replace the data, and train."""
    checkout = sys.argv.pop(1)
    stand_in("datasets", Dataset=Nothing, load_dataset=Nothing)
    stand_in("datasets.distributed", split_dataset_by_node=Nothing)
    stand_in("torchdata")
    stand_in("torchdata.stateful_dataloader", StatefulDataLoader=Nothing)
    stand_in("tiktoken")
    stand_in("tiktoken.load", load_tiktoken_bpe=Nothing)
    stand_in("torch.utils.tensorboard", SummaryWriter=Nothing)
    if "--float8.enable_float8_linear" in sys.argv:
        from torchao.float8 import ScalingType

        if not hasattr(ScalingType, "DELAYED"):
            ScalingType.DELAYED = None  # which later releases do not have
    sys.path.insert(0, checkout)
    import torchtitan.datasets as data

    data.build_tokenizer = lambda *_: types.SimpleNamespace(n_words=VOCABULARY)
    data.build_hf_data_loader = lambda _name, _path, _tokenizer, batch, length, *_: RandomTokens(batch, length)
    sys.argv[0] = f"{checkout}/train.py"
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
