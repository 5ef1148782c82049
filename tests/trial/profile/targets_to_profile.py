"""Small targets whose memory can be counted by hand, by name."""

from __future__ import annotations

PLAIN = """
import torch
from torch import nn


def build_model():
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))


def make_batch(batch_size):
    return torch.randn(batch_size, 256)


def training_step(model, batch):
    return model(batch).square().mean()
"""

ADAM = (
    PLAIN
    + """

def build_optimizer(model):
    return torch.optim.Adam(model.parameters(), foreach=True)
"""
)

NOT_FOREACH = ADAM.replace("foreach=True", "foreach=False")

NESTED = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(256, 256)

    def forward(self, x):
        return self.inner(x) * 2.0


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, x):
        return x + self.attention(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.exp()


def build_model():
    return Model()


def make_batch(batch_size):
    return torch.randn(batch_size, 256)


def training_step(model, batch):
    return model(batch).sum()


def build_optimizer(model):
    return torch.optim.SGD(model.parameters())
"""

CHECKPOINTED = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(2)
        )

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=REENTRANT)
        return x


def build_model():
    return Model()


def make_batch(batch_size):
    return torch.randn(batch_size, 256).requires_grad_()


def training_step(model, batch):
    return model(batch).sum()


def build_optimizer(model):
    return torch.optim.SGD(model.parameters())
"""

TIED = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.norm = nn.BatchNorm1d(64)
        self.output = nn.Linear(64, 1000, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x):
        return self.output(self.norm(self.embedding(x)))


def build_model():
    return Model()


def make_batch(batch_size):
    return torch.zeros(batch_size, dtype=torch.int64)


def training_step(model, batch):
    return model(batch).logsumexp(1).mean()


def build_optimizer(model):
    return torch.optim.SGD(model.parameters(), momentum=0.9)
"""

NO_GRAD = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 256), nn.Sigmoid(), nn.Linear(256, 256), nn.Sigmoid())
        self.head = nn.Linear(256, 16)

    def forward(self, x):
        with torch.set_grad_enabled(GRAD):
            x = self.body(x)
        return self.head(x)


def build_model():
    return Model()


def make_batch(batch_size):
    return torch.randn(batch_size, 256)


def training_step(model, batch):
    return model(batch).sum()


def build_optimizer(model):
    return torch.optim.SGD(model.parameters())
"""

OPTIMIZER_IN_BACKWARD = """
import torch
from torch import nn


class Nothing(torch.optim.SGD):
    def step(self, closure=None):
        pass


def build_model():
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))
    for parameter in model.parameters():
        optimizer = torch.optim.Adam([parameter])

        def step(owner, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    return model


def make_batch(batch_size):
    return torch.randn(batch_size, 256)


def training_step(model, batch):
    return model(batch).sum()


def build_optimizer(model):
    return Nothing(model.parameters())
"""

ODD = """
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Output:
    hidden: torch.Tensor
    loss: torch.Tensor


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(128, 128)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x, *, scale=1.0):
        return {"a": self.act(self.linear(x) * scale), "b": (self.linear(x), None)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.twice = Twice()
        self.also = self.twice

    def forward(self, x):
        first = self.twice(x)
        second = self.also(first["a"] + first["b"][0], scale=2.0)
        return Output(second["a"], second["b"][0].sum() + second["a"].sum())


def build_model():
    return WRAPPED


def make_batch(batch_size):
    return {"x": torch.randn(batch_size, 128)}


def training_step(model, batch):
    return model(batch["x"]).loss
"""

NO_HOOKS = PLAIN.replace(
    "    return model(batch)",
    "    if any(module._forward_hooks for module in model.modules()):\n"
    '        raise RuntimeError("I take no hooks")\n'
    "    return model(batch)",
)

NEVER_AGAIN = PLAIN.replace(
    "    return model(batch)",
    "    extra = torch.empty(1024 * 1024 * len(CALLS), device=batch.device)\n"
    "    CALLS.append(len(extra))\n"
    "    return model(batch)",
).replace("def build_model", "CALLS = []\n\n\ndef build_model")

SPARSE = """
import torch
from torch import nn


def build_model():
    return nn.Embedding(1000, 64, sparse=True)


def make_batch(batch_size):
    return torch.zeros(batch_size, dtype=torch.int64)


def training_step(model, batch):
    return model(batch).sum()


def build_optimizer(model):
    return torch.optim.SparseAdam(model.parameters())
"""

TARGETS = {
    "plain": PLAIN,
    "adam": ADAM,
    "not_foreach": NOT_FOREACH,
    "nested": NESTED,
    "reentrant": CHECKPOINTED.replace("REENTRANT", "True"),
    "not_reentrant": CHECKPOINTED.replace("REENTRANT", "False"),
    "tied": TIED,
    "grad": NO_GRAD.replace("GRAD", "True"),
    "no_grad": NO_GRAD.replace("GRAD", "False"),
    "optimizer_in_backward": OPTIMIZER_IN_BACKWARD,
    "odd": ODD.replace("WRAPPED", "Model()"),
    "data_parallel": ODD.replace("WRAPPED", "nn.DataParallel(Model())"),
    "compiled": ODD.replace("WRAPPED", 'torch.compile(Model(), backend="aot_eager")'),
    "compiled_part": NESTED.replace(
        "    return Model()", "    model = Model()\n    model.layers[1].compile(backend='eager')\n    return model"
    ),
    "scripted_part": NESTED.replace(
        "    return Model()",
        "    model = Model()\n    model.layers[1] = torch.jit.script(model.layers[1])\n    return model",
    ),
    "no_hooks": NO_HOOKS,
    "never_again": NEVER_AGAIN,
    "sparse": SPARSE,
}
