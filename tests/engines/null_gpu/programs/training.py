"""Train a little of everything for two steps and tell the peak of each, in MiB, or the error."""

# ruff: noqa: D101, D102, D103, N812
from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from reporting import leave_with
from torch import nn
from torch.utils.checkpoint import checkpoint

Make = Callable[[], torch.Tensor]


class Attention(nn.Module):
    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.project = nn.Linear(256, 768)
        self.norm = nn.LayerNorm(256)
        self.mlp = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256))
        self.checkpointed = checkpointed

    def body(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.project(self.norm(x)).view(batch, tokens, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        return x + y + self.mlp(x + y)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.body, x, use_reentrant=False) if self.checkpointed else self.body(x)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, [7, 5, 3, 2])
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0])[0]


class Classifier(nn.Module):
    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 32, sparse=sparse)
        self.head = None if sparse else nn.Linear(32, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return x if self.head is None else F.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten() % 100)


class Connectionist(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = [torch.full((4,), length, dtype=torch.int32) for length in (30, 5)]
        return F.ctc_loss(self.head(x).log_softmax(-1), torch.ones(4, 5, dtype=torch.int32), *lengths)


def images(*shape: int) -> Make:
    return lambda: torch.randn(*shape, device="cuda")


def stack(*, checkpointed: bool) -> nn.Module:
    return nn.Sequential(*[Attention(checkpointed=checkpointed) for _ in range(3)])


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(16, 16, 3, 1, 1, groups=4), nn.ConvTranspose2d(16, 8, 2, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip


def train(model: nn.Module, make: Make, precision: str = "fp32") -> float:
    model.cuda()
    sparse = any(isinstance(part, nn.Embedding) and part.sparse for part in model.modules())
    optimizer = (torch.optim.SparseAdam if sparse else torch.optim.AdamW)(list(model.parameters()))
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        with torch.autocast("cuda", dtype=dtype, enabled=precision != "fp32"):
            output = model(make())
            loss = (output[0] if isinstance(output, tuple) else output).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert sparse or all(optimizer.state[p]["step"] == 2 for p in model.parameters()), "a step was skipped"
    return torch.cuda.max_memory_allocated() / 2**20


CASES: dict[str, Callable[[], float]] = {
    "convolutions": lambda: train(convolutions(), images(4, 3, 64, 64)),
    "convolutions, channels last, bf16": lambda: train(
        convolutions().to(memory_format=torch.channels_last),
        lambda: torch.randn(4, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last),
        "bf16",
    ),
    "3-d convolution": lambda: train(nn.Sequential(nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8)), images(2, 3, 8, 16, 16)),
    "1-d convolution": lambda: train(nn.Sequential(nn.Conv1d(3, 8, 3), nn.GroupNorm(2, 8)), images(2, 3, 64)),
    "attention": lambda: train(Attention(), images(2, 64, 256)),
    "attention, bf16": lambda: train(Attention(), images(2, 64, 256), "bf16"),
    "attention, fp16 with a scaler": lambda: train(Attention(), images(2, 64, 256), "fp16"),
    "stack": lambda: train(stack(checkpointed=False), images(32, 64, 256)),
    "checkpointed stack": lambda: train(stack(checkpointed=True), images(32, 64, 256)),
    "encoder layer": lambda: train(nn.TransformerEncoderLayer(64, 4, batch_first=True), images(2, 16, 64)),
    "embedding and cross-entropy": lambda: train(
        Classifier(), lambda: torch.randint(0, 1000, (4, 2000), device="cuda")
    ),
    "sparse embedding and SparseAdam": lambda: train(
        Classifier(sparse=True), lambda: torch.randint(0, 1000, (4, 16), device="cuda")
    ),
    "CTC": lambda: train(Connectionist(), images(30, 4, 32)),
    "packed LSTM": lambda: train(Packed(), images(7, 4, 16)),
}
RECURRENT = {
    "plain": {},
    "2 layers, dropout": {"num_layers": 2, "dropout": 0.2},
    "bidirectional": {"num_layers": 2, "bidirectional": True},
    "no bias": {"bias": False},
}
for cell in (nn.LSTM, nn.GRU, nn.RNN):
    for title, options in (
        RECURRENT.items() if cell is not nn.LSTM else {**RECURRENT, "projected": {"proj_size": 8}}.items()
    ):
        for precision in ("fp32", "bf16", "fp16"):
            CASES[f"{cell.__name__}, {title}, {precision}"] = lambda cell=cell, options=options, precision=precision: (
                train(cell(16, 32, **options), images(7, 4, 16), precision)
            )

torch.backends.cudnn.benchmark = "benchmark" in sys.argv
peaks: dict[str, float] = {}
errors: dict[str, str] = {}
for title, case in CASES.items():
    try:
        peaks[title] = case()
    except Exception as error:  # noqa: BLE001 - every case is to be told
        errors[title] = f"{type(error).__name__}: {error}"
leave_with(peaks=peaks, errors=errors)
