"""Operations in place on views, whose gradients autograd then finds another way."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody has it

from operator_cases.making import HALF, Case, case, channels_last, given, leaf, places

_View = Callable[[torch.Tensor], torch.Tensor]
_VIEWS: dict[str, _View] = {
    "view": lambda x: x.view(8, -1),
    "flat": lambda x: x.flatten(1),
    "with a dimension more": lambda x: x.unsqueeze(1),
    "with a dimension less": lambda x: x.view(8, 1, 6, -1).squeeze(1),
    "transposed": lambda x: x.transpose(2, 3),
    "permuted": lambda x: x.permute(0, 2, 3, 1),
    "moved": lambda x: x.movedim(1, 3),
    "transposed twice": lambda x: x.transpose(1, 2).transpose(2, 3),
    "slice": lambda x: x[:, 1:4],
    "item": lambda x: x[2],
    "every second": lambda x: x[:, :, ::2],
    "slice seen flat": lambda x: x[2:6].view(4, -1),
    "half": lambda x: x.view(2, 4, -1)[0],
    "slice of a slice": lambda x: x[:, 2:6][:, 1:3],
    "item of an item": lambda x: x[0, 0],
    "row of a transposed slice": lambda x: x[1:5].transpose(1, 2)[:, 3],
    "diagonal": lambda x: x[0, 0].diagonal(),
    "windows": lambda x: x.unfold(2, 4, 4),
}
_CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "relu": F.relu_,
    "sum": lambda x: x.add_(1),
    "masked": lambda x: x.masked_fill_(x > 0, 0.0),
    "rows": lambda x: x.index_fill_(0, places(2), 1.0),
    "copied": lambda x: x.copy_(x.detach().exp()),
    "dropout": lambda x: F.dropout(x, 0.5, inplace=True),
}


def _changed(view: _View, change: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        seen = view(x * 2)
        change(seen)
        return seen.exp() * 1

    return run


def _copied_into(x: torch.Tensor) -> torch.Tensor:
    seen = x.new_zeros(16, *x.shape[1:])[:8].view(8, -1)
    seen.copy_(x.view(8, -1))
    return seen.exp()


def _base_and_view(x: torch.Tensor) -> torch.Tensor:
    base = x * 2
    base.view(8, -1).sigmoid_()
    return base.exp()


def _assigned(x: torch.Tensor) -> torch.Tensor:
    base = x * 2
    base[:, :3] = x[:, 3:].exp()
    return base.exp()


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.conv2d(F.relu_(F.instance_norm(x)), weight)


_PICTURES = (8, 6, 40, 40)
CASES: dict[str, Case] = {
    **{
        f"{name} {what} {dtype}".removesuffix(" torch.float32"): case(
            _changed(view, change), leaf(*_PICTURES, dtype=dtype)
        )
        for name, view in _VIEWS.items()
        for what, change in _CHANGES.items()
        for dtype in (torch.float32, HALF)
    },
    **{f"{name} untouched": case(_changed(view, lambda _: None), leaf(*_PICTURES)) for name, view in _VIEWS.items()},
    "changed twice": case(_changed(_VIEWS["view"], lambda x: x.sigmoid_().mul_(2)), leaf(*_PICTURES)),
    "copied into": case(_copied_into, leaf(*_PICTURES)),
    "base after its view": case(_base_and_view, leaf(*_PICTURES)),
    "assigned": case(_assigned, leaf(*_PICTURES)),
    "without gradient": case(
        lambda x, y: (y.view(8, -1).mul_(2) * x.view(8, -1)).exp(), leaf(*_PICTURES), given(*_PICTURES)
    ),
    "instance norm": case(_normed, leaf(*_PICTURES), leaf(8, 6, 3, 3)),
    "instance norm channels last": case(
        lambda x, weight: _normed(channels_last(x), weight), leaf(*_PICTURES), leaf(8, 6, 3, 3)
    ),
}
