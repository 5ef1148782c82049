"""A small GPT to prescribe for, and the command that does it, on a small card."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import torch
from running import run_here

import oomdoctor
from oomdoctor.remedies.catalogue import REMEDIES
from oomdoctor.results import PrescribeDocument
from oomdoctor.results.saved import from_json

SCHEMA = Path(oomdoctor.__file__).parent / "schemas" / "prescribe.schema.json"
CARD = ("--gpu", "rtx-4090", "--capacity", "1GiB", "--target-batch", "64")
HAS_PIECES = hasattr(torch.nn, "LinearCrossEntropyOptions")

MODEL = '''\
"""A small GPT."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.Linear(width, 3 * width)
        wide = (nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.layers = nn.Sequential(nn.LayerNorm(width), *wide)

    def forward(self, x):
        query, key, value = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.mix(x).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(2)
        return x + self.layers(x)


class Model(nn.Module):
    def __init__(self, layers, width, vocabulary):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.output = nn.Linear(width, vocabulary, bias=False)

    def hidden(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, tokens):
        return self.output(self.hidden(tokens))


def build_model(layers=6):
    return Model(layers, 256, 6000)


def make_batch(batch_size):
    return torch.randint(6000, (batch_size, 512))


def training_step(model, batch):
    return nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
'''

NEW_SERVERS = ("--without", "expandable-segments", "--without", "max-split-size")


def prescribed(
    folder: Path, *options: str, source: str = MODEL, target: str = "model.py", settings: tuple[str, ...] = NEW_SERVERS
) -> PrescribeDocument:
    """What the command says of a file on a small card; settings of the allocator, which cost a new process, are out."""
    (folder / "model.py").write_text(source)
    done = run_here(["prescribe", target, *CARD, *settings, *options, "--json", "-q"], folder)
    assert done.returncode in (0, 1), done.stderr
    jsonschema.validate(json.loads(done.stdout), json.loads(SCHEMA.read_text()))
    document = from_json(done.stdout, "stdout")
    assert isinstance(document, PrescribeDocument)
    assert document.exit_code == done.returncode
    return document


def without_all_but(*names: str) -> list[str]:
    """Options that leave these remedies."""
    left = {one.id for one in REMEDIES if not one.on_request} - {*names}
    return [word for name in sorted(left) for word in ("--without", name)]
