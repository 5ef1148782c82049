"""Observers and rounding of quantization-aware training."""

from __future__ import annotations

from functools import partial

import torch

from operator_cases.making import case, channels_last, leaf, ones, zeros


def observed(x: torch.Tensor, *, axis: int | None = None, rounds: bool = True) -> torch.Tensor:
    """Rounded by an observer that sees its first tensor, of the whole or of each channel."""
    on, number = ones(1, dtype=torch.int64), zeros(1 if axis is None else 0)
    return torch.fused_moving_avg_obs_fake_quant(
        x, on, on if rounds else zeros(1, dtype=torch.int64), number, number.clone(), ones(1),
        zeros(1, dtype=torch.int32), 0.01, -128, 127, axis or 0, per_row_fake_quant=axis is not None,
    )  # fmt: skip


def learned(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor) -> torch.Tensor:
    """Rounded with a scale that is trained, of the whole or of each channel."""
    if len(scale) == 1:
        return torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero_point, -128, 127, 1.0)
    return torch._fake_quantize_learnable_per_channel_affine(x, scale, zero_point, 1, -128, 127, 1.0)


CASES = {
    "observed": case(observed, leaf(8, 16, 32, 32)),
    "observed channels last": case(lambda x: observed(channels_last(x)), leaf(8, 16, 32, 32)),
    "observed channels": case(partial(observed, axis=0), leaf(640, 32, 3, 3)),
    "observed channels, channels last": case(lambda x: observed(channels_last(x), axis=0), leaf(64, 32, 3, 3)),
    "observed columns": case(partial(observed, axis=0), leaf(10, 128)),
    "observed and not rounded": case(partial(observed, axis=0, rounds=False), leaf(64, 32, 3, 3)),
    "rounded": case(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127), leaf(100, 300)),
    "rounded by tensors": case(
        lambda x: torch.fake_quantize_per_tensor_affine(x, ones(1), zeros(1, dtype=torch.int32), -128, 127),
        leaf(100, 300),
    ),
    "rounded channels": case(
        lambda x: torch.fake_quantize_per_channel_affine(x, ones(30), zeros(30, dtype=torch.int32), 1, -128, 127),
        leaf(8, 30, 50),
    ),
    "rounded channels by numbers": case(
        lambda x: torch.fake_quantize_per_channel_affine(x, ones(30), zeros(30), 1, -128, 127), leaf(8, 30, 50)
    ),
    "learned": case(learned, leaf(100, 300), leaf(1), leaf(1)),
    "learned channels": case(learned, leaf(8, 30, 50), leaf(30), leaf(30)),
}
