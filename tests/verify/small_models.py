"""Small models for `verify`: each right or wrong in one way, with the verdict that it has to get."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody names it
import torch.utils.checkpoint
from torch import Tensor, nn

Batch = Any
FEATURES, CLASSES, WORDS, LENGTH = 16, 5, 50, 12
CLASS_WEIGHTS = torch.arange(1.0, CLASSES + 1)


@dataclass(frozen=True)
class Case:
    """A model, its batches and its step.

    Attributes:
        build: Builds the model.
        batch: Makes a batch of so many samples.
        step: Returns the loss.
        verdict: What has to be found.
        cause: Identifier of the cause that has to be found; empty where there is none.
        names: Text that a cause or a remedy has to hold.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    step: Callable[[Any, Any], Tensor]
    verdict: str
    cause: str = ""
    names: str = ""


# --- batches ---------------------------------------------------------------------------------------------------------


def labelled(samples: int) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, FEATURES), torch.randint(CLASSES, (samples,))


def images(samples: int) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, 3, 8, 8), torch.randint(CLASSES, (samples,))


def partly_labelled(samples: int) -> tuple[Tensor, Tensor]:
    inputs, labels = labelled(samples)
    return inputs, torch.where(torch.rand(samples) < 0.4, -100, labels)


def multi_label(samples: int) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, FEATURES), (torch.rand(samples, CLASSES) < 0.4).to(torch.get_default_dtype())


def text(samples: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(1, WORDS, (samples, LENGTH))
    return tokens, tokens.roll(-1, 1)


def padded_text(samples: int) -> tuple[Tensor, Tensor]:
    tokens, labels = text(samples)
    for row in labels:
        row[int(torch.randint(3, LENGTH, ())) :] = -100
    return tokens, labels


def boxes(samples: int) -> tuple[Tensor, Tensor, Tensor]:
    is_box = torch.arange(6) < torch.randint(1, 7, (samples, 1))
    return torch.randn(samples, FEATURES), torch.rand(samples, 6, 4), is_box


# --- models ----------------------------------------------------------------------------------------------------------


def plain(classes: int = CLASSES) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, classes))


def around(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 32), *middle, nn.ReLU(), nn.Linear(32, CLASSES))


def convolution(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, CLASSES))


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, FEATURES)
        self.recurrent = nn.GRU(FEATURES, 24, batch_first=True)
        self.output = nn.Linear(24, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.recurrent(self.words(tokens))[0])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, FEATURES)
        self.recurrent = nn.LSTM(FEATURES, FEATURES, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.recurrent(self.words(tokens))[0] @ self.words.weight.T


class OwnNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.std(0) + 1e-5)


class MinibatchDeviation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x.std(0).mean().expand(len(x), 1)


class DropPath(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.new_empty(len(x), 1).bernoulli_(0.8) / 0.8


class FrozenNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = around(nn.BatchNorm1d(32))

    def train(self, mode: bool = True) -> FrozenNorm:  # noqa: FBT002 - torch's own
        super().train(mode)
        self.layers[1].eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class MixtureOfExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(FEATURES, 4)
        self.experts = nn.ModuleList(nn.Linear(FEATURES, CLASSES) for _ in range(4))
        self.balance: Tensor

    def forward(self, x: Tensor) -> Tensor:
        share = self.gate(x).softmax(-1)
        chosen = F.one_hot(share.argmax(-1), 4).to(share)
        self.balance = 4 * (chosen.mean(0) * share.mean(0)).sum()
        return sum(share[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(FEATURES, 8), nn.Linear(12, 8)
        self.temperature = nn.Parameter(torch.tensor(-2.0))

    def forward(self, image: Tensor, text_: Tensor) -> Tensor:
        a, b = F.normalize(self.image(image), dim=-1), F.normalize(self.text(text_), dim=-1)
        logits, labels = a @ b.T * torch.exp(-self.temperature), torch.arange(len(a))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


class AveragedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("average", torch.zeros(CLASSES, FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.average.mul_(0.9).add_(self.layer.weight, alpha=0.1)
        return self.layer(x)


class CarriedState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.output = nn.GRUCell(FEATURES, 8), nn.Linear(8, CLASSES)
        self.hidden: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.zeros(1, 8) if self.hidden is None else self.hidden
        hidden = self.cell(x, hidden.expand(len(x), 8))
        self.hidden = hidden.mean(0, keepdim=True).detach()
        return self.output(hidden)


class Queue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 8)
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = F.normalize(self.layer(x), dim=1)
        negatives = torch.cat(self.kept) if self.kept else torch.zeros(1, 8)
        self.kept.append(z.detach())
        return z, negatives


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES)
        self.register_buffer("codes", torch.randn(6, 4))
        self.register_buffer("counts", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x)
        index = torch.cdist(z, self.codes).argmin(1)
        with torch.no_grad():
            self.counts.mul_(0.9).add_(torch.bincount(index, minlength=6).to(self.counts), alpha=0.1)
        return self.decoder(z + (self.codes[index] - z).detach())


class TimeMajor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.output = nn.GRU(FEATURES, 24), nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.recurrent(x[None].expand(7, -1, -1))[0][-1])


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).log_softmax(-1).transpose(0, 1)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES + 1, 32), nn.SiLU(), nn.Linear(32, FEATURES))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.layers(torch.cat([x, time[:, None]], 1))


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(FEATURES, 8), nn.Linear(4, FEATURES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * (log_variance / 2).exp()), mean, log_variance


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(FEATURES, 2, 32, dropout=0.1, batch_first=True)
        self.output = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.block(x).mean(1))


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = plain(FEATURES), plain()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=False))


# --- steps -----------------------------------------------------------------------------------------------------------


def classify(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def classify_summed(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def next_token(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def smoothed(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), label_smoothing=0.1)


def mean_of_samples(model: nn.Module, batch: Batch) -> Tensor:
    loss, counts = F.cross_entropy(model(batch[0]).transpose(1, 2), batch[1], reduction="none"), batch[1] != -100
    return ((loss * counts).sum(1) / counts.sum(1)).mean()


def class_weighted(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], weight=CLASS_WEIGHTS.to(torch.get_default_dtype()))


def focal(model: nn.Module, batch: Batch) -> Tensor:
    loss = F.binary_cross_entropy_with_logits(model(batch[0]), batch[1], reduction="none")
    return ((1 - torch.exp(-loss)) ** 2 * loss).sum() / batch[1].sum().clamp(min=1)


def detect(model: nn.Module, batch: Batch) -> Tensor:
    loss = F.smooth_l1_loss(model(batch[0]).view(-1, 6, 4), batch[1], reduction="none").sum(-1)
    return (loss * batch[2]).sum() / batch[2].sum()


def contrast(model: nn.Module, batch: Batch) -> Tensor:
    a, b = F.normalize(model(batch[0]), dim=1), F.normalize(model(batch[0] + 0.1), dim=1)
    return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))


def hardest_triplet(model: nn.Module, batch: Batch) -> Tensor:
    z = F.normalize(model(batch[0]), dim=1)
    distance, same = torch.cdist(z, z), batch[1][:, None] == batch[1][None]
    return F.relu((distance * same).max(1).values - (distance + 1e3 * same).min(1).values + 0.3).mean()


def supervised_contrast(model: nn.Module, batch: Batch) -> Tensor:
    z, own = F.normalize(model(batch[0]), dim=1), torch.eye(len(batch[0]))
    logits, positives = z @ z.T / 0.1 - 1e9 * own, (batch[1][:, None] == batch[1]).to(z) - own
    shares = logits - logits.logsumexp(1, keepdim=True)
    return -(positives * shares).sum(1).div(positives.sum(1).clamp(min=1)).mean()


def decorrelate(model: nn.Module, batch: Batch) -> Tensor:
    a, b = (((z - z.mean(0)) / z.std(0)) for z in (model(batch[0]), model(batch[0] + 0.1)))
    return ((a.T @ b / len(a) - torch.eye(CLASSES)) ** 2).sum()


def spread(model: nn.Module, batch: Batch) -> Tensor:
    return F.relu(1 - torch.sqrt(model(batch[0]).var(0) + 1e-4)).mean() + classify(model, batch)


def mix_up(model: nn.Module, batch: Batch) -> Tensor:
    order = torch.randperm(len(batch[0]))
    output = model(0.7 * batch[0] + 0.3 * batch[0][order])
    return 0.7 * F.cross_entropy(output, batch[1]) + 0.3 * F.cross_entropy(output, batch[1][order])


def root_mean_square(model: nn.Module, batch: Batch) -> Tensor:
    return torch.sqrt(F.mse_loss(model(batch[0]), batch[0][:, :CLASSES].flip(0)))


def dice(model: nn.Module, batch: Batch) -> Tensor:
    found = model(batch[0]).sigmoid()
    return 1 - 2 * (found * batch[1]).sum() / (found.sum() + batch[1].sum())


def normalised_advantage(model: nn.Module, batch: Batch) -> Tensor:
    advantage = batch[0][:, 0]
    return -((advantage - advantage.mean()) / (advantage.std() + 1e-8) * model(batch[0])[:, 0]).mean()


def by_largest(model: nn.Module, batch: Batch) -> Tensor:
    output = model(batch[0])
    return F.cross_entropy(output / output.abs().max(), batch[1])


def list_wise(model: nn.Module, batch: Batch) -> Tensor:
    return -(model(batch[0])[:, 0].softmax(0) * batch[1]).sum()


def from_queue(model: nn.Module, batch: Batch) -> Tensor:
    z, negatives = model(batch[0])
    return (z @ negatives.T).logsumexp(1).mean() + ((z - 1) ** 2).mean()


def balanced(model: nn.Module, batch: Batch) -> Tensor:
    return classify(model, batch) + 0.01 * model.balance


def transcribe(model: nn.Module, batch: Batch) -> Tensor:
    return F.ctc_loss(model(batch[0]), batch[1], batch[2], batch[3])


def penalise_gradient(model: nn.Module, batch: Batch) -> Tensor:
    inputs = batch[0].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return ((gradient.norm(dim=1) - 1) ** 2).mean() + classify(model, batch)


def denoise(model: nn.Module, batch: Batch) -> Tensor:
    time = torch.randint(0, 1000, (len(batch),)) / 1000
    noise = torch.randn_like(batch)
    return F.mse_loss(model(batch * (1 - time[:, None]).sqrt() + noise * time[:, None].sqrt(), time), noise)


def evidence_bound(model: nn.Module, batch: Batch) -> Tensor:
    output, mean, log_variance = model(batch)
    return F.mse_loss(output, batch) - 0.5 * (1 + log_variance - mean**2 - log_variance.exp()).mean()


def decayed(model: nn.Module, batch: Batch) -> Tensor:
    return classify(model, batch) + 1e-2 * sum((parameter**2).sum() for parameter in model.parameters())


def distil(model: nn.Module, batch: Batch) -> Tensor:
    return F.kl_div(model(batch[0]).log_softmax(-1), batch[0][:, :CLASSES].softmax(-1), reduction="batchmean")


def noisy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0] + 0.1 * torch.randn_like(batch[0])), batch[1])


def hide_some(model: nn.Module, batch: Batch) -> Tensor:
    hidden = torch.rand(batch[0].shape) < 0.6
    return F.cross_entropy(model(batch[0].masked_fill(hidden, 0))[hidden], batch[0][hidden])


def foreign_noise(model: nn.Module, batch: Batch) -> Tensor:
    noise = torch.tensor([random.random() for _ in batch[0]]).to(batch[0])
    return F.cross_entropy(model(batch[0] + noise[:, None]), batch[1])


def triplets(model: nn.Module, batch: Batch) -> Tensor:
    return F.triplet_margin_loss(*map(model, batch))


def speech(samples: int) -> tuple[Tensor, ...]:
    lengths, words = torch.full((samples,), LENGTH), torch.randint(2, 5, (samples,))
    return torch.randn(samples, LENGTH, FEATURES), torch.randint(1, 6, (samples, 4)), lengths, words


def spectral() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(FEATURES, CLASSES)))


WRONG = {
    "batch norm": Case(lambda: around(nn.BatchNorm1d(32)), labelled, classify, "different", "batch_norm", "`1`"),
    "batch norm 2d": Case(lambda: convolution(nn.BatchNorm2d(8)), images, classify, "different", "batch_norm", "`1`"),
    "batch norm and dropout": Case(
        lambda: around(nn.BatchNorm1d(32), nn.Dropout(0.1)), labelled, classify, "different", "batch_norm", "`1`"
    ),
    "batch norm and padding": Case(
        lambda: around(nn.BatchNorm1d(32)), partly_labelled, classify, "different", "batch_norm", "!= -100"
    ),
    "own norm": Case(lambda: around(OwnNorm()), labelled, classify, "different", "module", "OwnNorm"),
    "minibatch deviation": Case(
        lambda: around(MinibatchDeviation()), labelled, classify, "different", "module", "MinibatchDeviation"
    ),
    "contrastive": Case(plain, labelled, contrast, "different", "pairs", "small_models.py"),
    "learned temperature": Case(
        TwoTowers,
        lambda samples: (torch.randn(samples, FEATURES), torch.randn(samples, 12)),
        lambda model, batch: model(*batch),
        "different",
        "pairs",
        "the model's own forward",
    ),
    "batch-hard triplets": Case(plain, labelled, hardest_triplet, "different", "pairs"),
    "supervised contrastive": Case(plain, labelled, supervised_contrast, "different", "pairs"),
    "decorrelation": Case(plain, labelled, decorrelate, "different", "loss"),
    "variance term": Case(plain, labelled, spread, "different", "loss"),
    "mixup": Case(plain, labelled, mix_up, "different", "loss", "index"),
    "root of the mean": Case(plain, labelled, root_mean_square, "different", "loss"),
    "dice of the batch": Case(plain, multi_label, dice, "different", "loss"),
    "normalised advantage": Case(plain, labelled, normalised_advantage, "different", "loss"),
    "division by the largest": Case(plain, labelled, by_largest, "different", "loss"),
    "softmax over the batch": Case(plain, labelled, list_wise, "different", "loss"),
    "balanced experts": Case(MixtureOfExperts, labelled, balanced, "different", "loss"),
    "averaged weights": Case(AveragedWeights, labelled, classify, "different", "buffers", "`average`"),
    "codebook counts": Case(Quantised, labelled, classify, "different", "buffers", "`counts`"),
    "carried state": Case(CarriedState, labelled, classify, "different", "state"),
    "queue": Case(Queue, labelled, from_queue, "different", "state"),
    "spectral norm": Case(spectral, labelled, classify, "different", "state"),
}
"""Models that accumulating does not train as the whole batch would."""

WEIGHTED = {
    "sum": Case(plain, labelled, classify_summed, "equal_if_weighted", names='reduction="sum"'),
    "padded tokens": Case(LanguageModel, padded_text, next_token, "equal_if_weighted", names="(part[1] != -100).sum()"),
    "label smoothing": Case(LanguageModel, padded_text, smoothed, "equal_if_weighted", names="(part[1] != -100).sum()"),
    "focal by positives": Case(plain, multi_label, focal, "equal_if_weighted", names="part[1].sum()"),
    "boxes": Case(lambda: plain(24), boxes, detect, "equal_if_weighted", names="part[2].sum()"),
    "class weights": Case(plain, labelled, class_weighted, "equal_if_weighted", names="class_weights[part[1]"),
}
"""Models whose micro-batches have to be weighted."""

UNKNOWN = {
    "a random mask that decides what counts": Case(
        LanguageModel, text, hide_some, "cannot_tell", "random_draws", "a mean"
    ),
    "draws of another generator": Case(plain, labelled, foreign_noise, "cannot_tell", "random_draws", "`random`"),
}
"""Models whose draws no expected values replace."""

RIGHT = {
    "plain": Case(plain, labelled, classify, "equal"),
    "group norm": Case(lambda: convolution(nn.GroupNorm(2, 8)), images, classify, "equal"),
    "instance norm": Case(lambda: convolution(nn.InstanceNorm2d(8)), images, classify, "equal"),
    "frozen batch norm": Case(FrozenNorm, labelled, classify, "equal"),
    "speech": Case(Recogniser, speech, transcribe, "equal"),
    "gradient penalty": Case(plain, labelled, penalise_gradient, "equal"),
    "tied heads": Case(Tied, text, next_token, "equal", names="let `make_batch` pad"),
    "regression": Case(plain, multi_label, lambda model, batch: F.mse_loss(model(batch[0]), batch[1]), "equal"),
    "time-major": Case(TimeMajor, labelled, classify, "equal"),
    "mean of samples": Case(LanguageModel, padded_text, mean_of_samples, "equal"),
    "given triplets": Case(
        plain, lambda samples: tuple(torch.randn(samples, FEATURES) for _ in range(3)), triplets, "equal"
    ),
    "weight decay in the loss": Case(plain, labelled, decayed, "equal"),
    "checkpointing": Case(Recomputed, labelled, classify, "equal"),
    "distillation": Case(plain, labelled, distil, "equal"),
    "dropout": Case(lambda: around(nn.Dropout(0.2)), labelled, classify, "random_only"),
    "drop path": Case(lambda: around(DropPath()), labelled, classify, "random_only"),
    "diffusion": Case(Denoiser, lambda samples: torch.randn(samples, FEATURES), denoise, "random_only"),
    "autoencoder": Case(Autoencoder, lambda samples: torch.randn(samples, FEATURES), evidence_bound, "random_only"),
    "transformer": Case(
        Encoder,
        lambda samples: (torch.randn(samples, 6, FEATURES), torch.randint(CLASSES, (samples,))),
        classify,
        "random_only",
    ),
    "noise on inputs": Case(plain, labelled, noisy, "random_only"),
}
"""Models that accumulating trains as the whole batch would, but for random draws."""

CASES = {**WRONG, **WEIGHTED, **UNKNOWN, **RIGHT}
