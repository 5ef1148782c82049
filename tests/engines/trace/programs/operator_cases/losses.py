"""Losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody has it

from operator_cases.making import case, leaf, ones, places, zeros

CASES = {
    "cross entropy": case(lambda x: F.cross_entropy(x, places(100)), leaf(100, 50)),
    "cross entropy 2d": case(lambda x: F.cross_entropy(x, places(4, 50, 70)), leaf(4, 6, 50, 70)),
    "cross entropy 2d sliced": case(
        lambda x: F.cross_entropy(x[..., :40], places(4, 50, 70)[..., :40]), leaf(4, 6, 50, 70)
    ),
    "cross entropy smoothing": case(lambda x: F.cross_entropy(x, places(100), label_smoothing=0.1), leaf(100, 50)),
    "cross entropy weights": case(lambda x: F.cross_entropy(x, places(4, 50, 70), weight=ones(6)), leaf(4, 6, 50, 70)),
    "cross entropy none": case(lambda x: F.cross_entropy(x, places(4, 50, 70), reduction="none"), leaf(4, 6, 50, 70)),
    "cross entropy probs": case(lambda x: F.cross_entropy(x, zeros(4, 6, 50, 70)), leaf(4, 6, 50, 70)),
    "bce logits": case(lambda x: F.binary_cross_entropy_with_logits(x, zeros(1000, 100)), leaf(1000, 100)),
    "bce logits pw": case(
        lambda x: F.binary_cross_entropy_with_logits(x, zeros(1000, 100), pos_weight=ones(100)), leaf(1000, 100)
    ),
    "bce": case(lambda x: F.binary_cross_entropy(x, zeros(1000, 100)), leaf(1000, 100)),
    "mse": case(lambda x: F.mse_loss(x, zeros(1000, 100)), leaf(1000, 100)),
    "smooth l1": case(lambda x: F.smooth_l1_loss(x, zeros(1000, 100)), leaf(1000, 100)),
    "huber": case(lambda x: F.huber_loss(x, zeros(1000, 100)), leaf(1000, 100)),
    "kl": case(lambda x: F.kl_div(x, zeros(1000, 100), reduction="batchmean"), leaf(1000, 100)),
    "ctc": case(
        lambda x: F.ctc_loss(x, ones(4, 10, dtype=torch.int64), torch.full((4,), 50), torch.full((4,), 10)),
        leaf(50, 4, 20),
    ),
    "cosine emb": case(lambda x: F.cosine_similarity(x, zeros(1000, 100), dim=-1), leaf(1000, 100)),
    "triplet": case(F.triplet_margin_loss, *(leaf(1000, 100) for _ in "abc")),
    "nll weight": case(lambda x: F.nll_loss(x, places(100), weight=ones(50)), leaf(100, 50)),
}
