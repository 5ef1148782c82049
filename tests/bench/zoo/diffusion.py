"""Denoisers of latent images of 4 x 64 x 64 beside 77 vectors of text: a U-Net with attention, and a transformer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

CHANNELS, SIDE = 4, 64
TOKENS, TEXT = 77, 768
STEPS = 1000
PATCH = 2


def of_time(times: Tensor, width: int) -> Tensor:
    """Return the sines and cosines of the step, (batch, width)."""
    frequencies = torch.exp(-math.log(10_000) * torch.arange(width // 2, device=times.device) / (width // 2))
    angles = times[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Residual(nn.Module):
    """Two convolutions with group norm, between which the time is added."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, outputs))
        self.second = nn.Sequential(
            nn.GroupNorm(32, outputs), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Map (batch, inputs, height, width) to (batch, outputs, height, width)."""
        hidden = self.first(x) + self.time(time)[:, :, None, None]
        mixed: Tensor = self.shortcut(x) + self.second(hidden)
        return mixed


class Attending(nn.Module):
    """Attention of each pixel to all pixels and to the text, then a gated feed-forward layer."""

    def __init__(self, channels: int, heads: int = 8) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.own = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.text = nn.MultiheadAttention(channels, heads, kdim=TEXT, vdim=TEXT, batch_first=True)
        self.widen = nn.Linear(channels, 8 * channels)
        self.narrow = nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """Keep the shape (batch, channels, height, width)."""
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        normed = self.norms[0](pixels)
        pixels = pixels + self.own(normed, normed, normed, need_weights=False)[0]
        pixels = pixels + self.text(self.norms[1](pixels), text, text, need_weights=False)[0]
        value, gate = self.widen(self.norms[2](pixels)).chunk(2, dim=-1)
        pixels = pixels + self.narrow(value * nn.functional.gelu(gate))
        return x + pixels.transpose(1, 2).unflatten(2, x.shape[2:])


class Denoiser(nn.Module):
    """A U-Net of three levels, as latent diffusion is trained with."""

    def __init__(self, width: int, *, checkpoint: bool) -> None:
        super().__init__()
        time, widths = 4 * width, (width, 2 * width, 4 * width)
        self.width, self.checkpoint = width, checkpoint
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(CHANNELS, width, 3, padding=1)
        self.down = nn.ModuleList(
            nn.ModuleList([Residual(inputs, outputs, time), Attending(outputs)])
            for inputs, outputs in zip((width, *widths), widths, strict=False)
        )
        self.shrink = nn.ModuleList(nn.Conv2d(channels, channels, 3, 2, padding=1) for channels in widths[:-1])
        self.middle = Residual(widths[-1], widths[-1], time)
        self.up = nn.ModuleList(
            nn.ModuleList([Residual(below + channels, channels, time), Attending(channels)])
            for below, channels in zip((widths[-1], *widths[:0:-1]), widths[::-1], strict=False)
        )
        self.leave = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, CHANNELS, 3, padding=1))

    def forward(self, x: Tensor, times: Tensor, text: Tensor) -> Tensor:
        """Map noised latents (batch, channels, side, side) to the noise in them."""
        time, x, bridges = self.time(of_time(times, self.width)), self.enter(x), []
        for level, (residual, attending) in enumerate(self.down):
            x = self._both(residual, attending, x, time, text)
            bridges.append(x)
            x = self.shrink[level](x) if level < len(self.shrink) else x
        x = self.middle(x, time)
        for residual, attending in self.up:
            bridge = bridges.pop()
            x = nn.functional.interpolate(x, size=bridge.shape[2:], mode="nearest")
            x = self._both(residual, attending, torch.cat([x, bridge], dim=1), time, text)
        noise: Tensor = self.leave(x)
        return noise

    def _both(self, residual: nn.Module, attending: nn.Module, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        x = residual(x, time)
        attended: Tensor = recompute(attending, x, text, use_reentrant=False) if self.checkpoint else attending(x, text)
        return attended


class Modulated(nn.Module):
    """A transformer's block whose norms are scaled and shifted by the time, as DiT has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.query_key_value, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.heads = heads

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Keep the shape (batch, patches, width)."""
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(time)[:, None].chunk(6, dim=-1)
        normed = self.norms[0](x) * (1 + scale) + shift
        parts = self.query_key_value(normed).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts.unbind())
        x = x + gate * self.output(mixed.transpose(1, 2).flatten(2))
        return x + gate2 * self.feed_forward(self.norms[1](x) * (1 + scale2) + shift2)


class Transformer(nn.Module):
    """A transformer over patches of the latents; the text is the mean of its vectors, added to the time."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.width = width
        self.enter = nn.Conv2d(CHANNELS, width, PATCH, PATCH)
        self.time, self.text = nn.Linear(width, width), nn.Linear(TEXT, width)
        self.blocks = nn.ModuleList(Modulated(width, width // 64) for _ in range(layers))
        self.leave = nn.ConvTranspose2d(width, CHANNELS, PATCH, PATCH)

    def forward(self, x: Tensor, times: Tensor, text: Tensor) -> Tensor:
        """Map noised latents (batch, channels, side, side) to the noise in them."""
        patches = self.enter(x)
        time = self.time(of_time(times, self.width)) + self.text(text.mean(1))
        hidden = patches.flatten(2).transpose(1, 2)
        for block in self.blocks:
            hidden = block(hidden, time)
        noise: Tensor = self.leave(hidden.transpose(1, 2).unflatten(2, patches.shape[2:]))
        return noise


def build_unet(*, width: int = 160, checkpoint: bool = False) -> nn.Module:
    """Build the U-Net; `checkpoint` recomputes its attention."""
    return Denoiser(width, checkpoint=checkpoint)


def build_transformer(*, width: int = 768, layers: int = 12) -> nn.Module:
    """Build the transformer, of the size of DiT-B/2."""
    return Transformer(width, layers)


def make_batch(batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return latents (batch, channels, side, side), steps (batch) and text (batch, tokens, width)."""
    latents = torch.randn(CHANNELS, SIDE, SIDE).repeat(batch_size, 1, 1, 1)
    return latents, torch.randint(STEPS, (batch_size,)), torch.randn(TOKENS, TEXT).repeat(batch_size, 1, 1)


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return the mean squared error of the noise, which is drawn on the device."""
    latents, times, text = batch
    noise = torch.randn_like(latents)
    kept = torch.cos(times / STEPS * math.pi / 2)[:, None, None, None]
    noised = kept * latents + (1 - kept**2).sqrt() * noise
    return nn.functional.mse_loss(model(noised, times, text).float(), noise)
