"""`oomdoctor prescribe` of models and steps that are built in other ways than a small GPT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prescribing import HAS_PIECES, prescribed, without_all_but
from running import run_here

pytestmark = [pytest.mark.null_gpu, pytest.mark.usefixtures("forked_workers")]

WIDE = """\
import torch
from torch import nn


def build_model():
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))


def make_batch(batch_size):
    return torch.randn(batch_size, 1024)


def training_step(model, batch):
    return model(batch).square().mean()
"""


def test_a_step_in_the_backward_where_nothing_accumulates(tmp_path: Path) -> None:
    """Without a target batch no gradient has to be kept; the class that is pasted for it does the same."""
    (tmp_path / "model.py").write_text(WIDE)
    options = ("--gpu", "rtx-4090", "--capacity", "150MiB", *without_all_but("optimizer-in-backward"))
    done = run_here(["prescribe", "model.py", *options, "--json", "-q"], tmp_path)
    result: dict[str, Any] = json.loads(done.stdout)["result"]
    (row,) = result["alone"]
    assert row["outcome"] == "measured", row["problem"]
    assert row["maximum"] > result["plain"]["maximum"]
    assert "class OptimizerInBackward" in result["patch"]["diff"]
    assert result["patch"]["maximum"] == row["maximum"]


CONVOLUTIONS = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())

    def forward(self, x):
        return x + self.layers(x)


def build_model():
    return nn.Sequential(nn.Conv2d(3, 64, 1), *(Block() for _ in range(2)), nn.Conv2d(64, 1, 1))


def make_batch(batch_size):
    return torch.randn(batch_size, 3, 128, 128)


def training_step(model, batch):
    return model(batch).square().mean()
"""


def test_checkpointed_convolutions_ask_for_their_plans_in_the_backward_as_well(tmp_path: Path) -> None:
    """PyTorch keeps cuDNN's plans for each thread: one that is asked for again was not given up for want of memory."""
    options = ("--target-batch", "24", "--capacity", "512MiB", *without_all_but("checkpoint"))
    result = prescribed(tmp_path, *options, source=CONVOLUTIONS).result
    (row,) = result.alone
    assert row.outcome == "measured", row.problem
    assert row.maximum > result.plain.maximum
    assert row.notes == ("batch norms in the blocks update their running statistics twice a step",)


TAGGER = """
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.tags = nn.Embedding(20000, 64), nn.Linear(64, 5000)

    def forward(self, words):
        return self.tags(self.words(words))


def build_model():
    return Tagger()


def make_batch(batch_size):
    return torch.randint(20000, (batch_size, 64)), torch.randint(5000, (batch_size, 64))


def training_step(model, batch):
    words, tags = batch
    return nn.functional.cross_entropy(model(words).flatten(0, 1), tags.flatten())
"""


@pytest.mark.skipif(not HAS_PIECES, reason="needs a PyTorch with `LinearCrossEntropyOptions`")
def test_logits_are_found_where_fewer_words_go_out_than_come_in(tmp_path: Path) -> None:
    """The widest matrix is the embedding of the input, and the loss on the last layer's output is fused."""
    options = ("--target-batch", "2048", "--capacity", "512MiB", *without_all_but("fused-cross-entropy"))
    result = prescribed(tmp_path, *options, source=TAGGER).result
    (row,) = result.alone
    assert row.outcome == "measured", row.problem
    assert row.maximum > 4 * result.plain.maximum
    assert result.patch is not None
    assert "outputs=(20000, 5000)" in result.patch.diff


NUMBERED = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))

    def forward(self, x):
        return x + self.inner(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleDict({str(number): Block() for number in range(4)})

    def forward(self, x):
        for block in self.blocks.values():
            x = block(x)
        return x


def build_model():
    return Model()


def make_batch(batch_size):
    return torch.randn(batch_size, 64, 256)


def training_step(model, batch):
    return model(batch).square().mean()
"""


def test_blocks_in_a_dictionary_with_numbers_for_names_are_patched(tmp_path: Path) -> None:
    """They are no list, although their names are numbers: the patch is proven."""
    options = ("--target-batch", "4096", "--capacity", "512MiB", *without_all_but("checkpoint"))
    result = prescribed(tmp_path, *options, source=NUMBERED).result
    assert result.patch is not None, result.patch_problem
    assert result.patch.maximum > result.plain.maximum
