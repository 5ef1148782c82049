"""Training steps of many kinds, two optimizer steps each."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

Loss = Callable[[nn.Module, list[Tensor]], Tensor]
Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
MARKS: list[tuple[int, int, int]] = []


def mark() -> None:
    """Note the peak since the last mark, what is allocated now, and all that was asked for since, kernels' own too."""
    stats = torch.cuda.memory_stats()
    names = ("allocated_bytes.all.peak", "allocated_bytes.all.current", "requested_bytes.all.allocated")
    MARKS.append((stats[names[0]], stats[names[1]], stats[names[2]]))
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()


def mean_square(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """A loss of any output."""
    return model(*batch).float().square().mean()


def next_token(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """The loss of a language model."""
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[0].flatten())


def train(  # noqa: PLR0913 - the ways in which steps differ
    model: nn.Module,
    *batch: Tensor,
    loss: Loss = mean_square,
    optimizer: Make = torch.optim.AdamW,
    autocast: torch.dtype | None = None,
    micro_steps: int = 1,
    clips: bool = False,
    after: Callable[[nn.Module], None] | None = None,
) -> None:
    """Two optimizer steps on the device."""
    model.to("cuda").train()
    stepping = optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=1.0, enabled=autocast is torch.float16)
    for _ in range(2):
        for _ in range(micro_steps):
            placed = [tensor.to("cuda") for tensor in batch]
            with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
                value = loss(model, placed)
            scaler.scale(value / micro_steps).backward()
            mark()
        if clips:
            scaler.unscale_(stepping)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(stepping)
        scaler.update()
        stepping.zero_grad(set_to_none=True)
        if after:
            after(model)
        mark()


def layers(count: int = 3, width: int = 256) -> nn.Sequential:
    """Linear layers with activations between."""
    return nn.Sequential(*(layer for _ in range(count) for layer in (nn.Linear(width, width), nn.GELU())))


class Recomputed(nn.Module):
    """Blocks with dropout, each recomputed in backward."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(*layers(2), nn.Dropout(0.1)) for _ in range(3))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


class Attention(nn.Module):
    """One layer of self-attention."""

    def __init__(self, head: int = 64, heads: int = 4, **options: Any) -> None:
        super().__init__()
        self.heads = heads
        self.mask = options.pop("mask", None)
        self.options = options
        self.first = nn.Linear(heads * head, 3 * heads * head)
        self.last = nn.Linear(heads * head, heads * head)

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        parts = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.first(x).chunk(3, -1))
        mask = None
        if self.mask is not None:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=self.mask, device=x.device).tril()
        mixed = F.scaled_dot_product_attention(*parts, attn_mask=mask, **self.options)
        return self.last(mixed.transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    """A language model of two recurrent layers."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 64)
        self.layers = kind(64, 128, 2, batch_first=True, dropout=0.1, **options)
        self.output = nn.Linear(256 if options.get("bidirectional") else 128, 1000)

    def forward(self, tokens: Tensor) -> Tensor:
        """Run it."""
        return self.output(self.layers(self.words(tokens))[0])


class Residual(nn.Module):
    """Values used several times, so that their gradients are added up."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
        self.norm = nn.LayerNorm(256)

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        y = first = self.layers[0](x)
        for layer in self.layers[1:]:
            y = y + layer(self.norm(y)).relu() + first
        return y + first * 2


class Reused(nn.Module):
    """A value whose gradients are added up while little else is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2048, 2048))

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        y = self.weight + 1
        return y.flip(0) + y.roll(1, 0) + y.transpose(0, 1) * 2 + x.sum()


class Exponential(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Keep the result."""
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Use it."""
        return gradient * ctx.saved_tensors[0]


class Own(nn.Module):
    """A layer and the function above."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        return Exponential.apply(self.layer(x)) + self.layer(x)


class Tied(nn.Module):
    """An embedding that is the output layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, 128)
        self.output = nn.Linear(128, 5000, bias=False)
        self.output.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Run it."""
        return self.output(self.words(tokens))


def pictures() -> nn.Sequential:
    """A net of convolutions, norms and pools."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 3, stride=2, bias=False), nn.GroupNorm(8, 64), nn.SiLU(), nn.MaxPool2d(2),
        nn.ConvTranspose2d(64, 32, 2, stride=2), nn.Conv2d(32, 32, 3, groups=32), nn.Upsample(scale_factor=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def classes(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """The loss of a classifier."""
    return F.cross_entropy(model(batch[0]), batch[1])


def picture_batch(**layout: Any) -> tuple[Tensor, Tensor]:
    """Pictures and their labels."""
    return torch.zeros(8, 3, 64, 64).contiguous(**layout), torch.zeros(8, dtype=torch.long)


def averages() -> Callable[[nn.Module], None]:
    """What keeps moving averages of all parameters."""
    kept: list[Tensor] = []

    def update(model: nn.Module) -> None:
        if not kept:
            kept.extend(parameter.detach().clone() for parameter in model.parameters())
        torch._foreach_lerp_(kept, [parameter.detach() for parameter in model.parameters()], 0.1)

    return update


def math_attention(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """A loss with attention taken apart."""
    with sdpa_kernel(SDPBackend.MATH):
        return mean_square(model, batch)


def reading(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """A loss that is looked at."""
    value = mean_square(model, batch)
    assert value.item() == 0.0
    assert not bool(value > 1)
    return value


def critic() -> nn.Sequential:
    """Convolutions of every kind."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(64, 128, 4, 2, 1, groups=4), nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(128, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 1, 3),
    )  # fmt: skip


def penalty(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """A loss on the gradient of the input."""
    x = batch[0].detach().requires_grad_()
    output = model(x)
    gradient = torch.autograd.grad(output.sum(), x, create_graph=True)[0]
    return output.mean() + gradient.flatten(1).norm(2, 1).sub(1).pow(2).mean()


X, LONG = torch.zeros(64, 256), torch.zeros(2, 200, 256)
MANY = torch.zeros(8192, 256)  # so that activations outweigh weights and workspaces
TOKENS = torch.zeros(8, 50, dtype=torch.long)
LAST = {"memory_format": torch.channels_last}
CASES: dict[str, Callable[[], None]] = {
    "accumulated and clipped": lambda: train(layers(), X, micro_steps=2, clips=True),
    "bf16": lambda: train(layers(), MANY, autocast=torch.bfloat16),
    "fp16, scaled and clipped": lambda: train(layers(), X, autocast=torch.float16, clips=True),
    "checkpoint": lambda: train(Recomputed(reentrant=False), MANY),
    "reentrant checkpoint": lambda: train(Recomputed(reentrant=True), X.clone().requires_grad_()),
    "convolutions": lambda: train(pictures(), *picture_batch(), loss=classes),
    "convolutions, channels last": lambda: train(
        pictures().to(**LAST), *picture_batch(**LAST), loss=classes, autocast=torch.bfloat16
    ),
    "gradient penalty": lambda: train(critic(), torch.zeros(32, 3, 32, 32), loss=penalty),
    "gradient penalty, bf16": lambda: train(layers(), MANY, loss=penalty, autocast=torch.bfloat16),
    "lstm": lambda: train(Recurrent(nn.LSTM), TOKENS, loss=next_token),
    "gru": lambda: train(Recurrent(nn.GRU), TOKENS, loss=next_token),
    "causal attention": lambda: train(Attention(is_causal=True), LONG),
    "causal attention, bf16": lambda: train(Attention(is_causal=True), LONG, autocast=torch.bfloat16),
    "attention of few blocks": lambda: train(Attention(160, 1), torch.zeros(2, 200, 160), autocast=torch.bfloat16),
    "attention with a mask": lambda: train(Attention(mask=torch.bool), LONG, autocast=torch.float16),
    "attention with dropout": lambda: train(Attention(dropout_p=0.1), LONG),
    "attention by hand": lambda: train(Attention(is_causal=True), LONG, loss=math_attention),
    "odd heads": lambda: train(Attention(20, 2), torch.zeros(2, 200, 40), autocast=torch.bfloat16),
    "transformer": lambda: train(nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), LONG),
    "residual": lambda: train(Residual(), MANY),
    "reused": lambda: train(Reused(), X),
    "own function": lambda: train(Own(), MANY),
    "tied": lambda: train(Tied(), TOKENS, loss=next_token),
    "averaged": lambda: train(layers(), X, after=averages()),
    "dropout": lambda: train(nn.Sequential(nn.Linear(256, 256), nn.Dropout(0.1), nn.Linear(256, 256)), MANY),
    "read back": lambda: train(layers(), X, loss=reading),
}


def optimizers() -> Iterator[tuple[str, Make]]:
    """Every optimizer by default, and the common ones in each of their forms."""
    plain = ("Adagrad", "Adafactor", "RMSprop")
    for name in plain:
        yield name, getattr(torch.optim, name)
    for name, options in (("SGD", {"momentum": 0.9}), ("Adam", {}), ("AdamW", {"amsgrad": True})):
        for form in ({}, {"foreach": False}, {"fused": True}):
            made = getattr(torch.optim, name)
            yield f"{name} {form}", lambda parameters, made=made, all_={**options, **form}: made(parameters, **all_)


for title, chosen in optimizers():
    CASES[title] = lambda chosen=chosen: train(layers(2, 128), X[:, :128], optimizer=chosen)


def measure(case: Callable[[], None]) -> list[tuple[int, int, int]]:
    """Marks of a case, from what was allocated before it."""
    MARKS.clear()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    case()
    return [(peak - before, end - before, asked) for peak, end, asked in MARKS]


def answers() -> dict[str, list[tuple[int, int, int]]]:
    """What memory each kind took, by step and phase."""
    return {title: measure(case) for title, case in CASES.items()}
