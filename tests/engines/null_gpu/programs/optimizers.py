"""Take two steps with every optimizer of torch.optim in each of its implementations."""

# ruff: noqa: D103
from __future__ import annotations

import inspect

import torch
from reporting import leave_with
from torch import nn

SEPARATE = {
    "Optimizer",
    "SparseAdam",
    "LBFGS",
}  # the base class; one that takes sparse gradients; one that takes a closure


def take_steps(kind: type[torch.optim.Optimizer], options: dict[str, bool]) -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 8, bias=False)).cuda()
    optimizer = kind(model.parameters(), lr=0.1, **options)
    for _ in range(2):
        model(torch.randn(8, 64, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def take_steps_with_closure() -> None:
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 64, device="cuda")).mean()
        loss.backward()
        return loss

    optimizer.step(closure)


KINDS = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and name not in SEPARATE
}
taken: list[str] = ["LBFGS"]
errors: dict[str, str] = {}
take_steps_with_closure()
for name, kind in sorted(KINDS.items()):
    known = inspect.signature(kind).parameters
    for options in ({}, {"foreach": True}, {"foreach": False}, {"fused": True}):
        if not all(option in known for option in options):
            continue
        try:
            take_steps(kind, options)
            taken.append(f"{name} {options}")
        except Exception as error:  # noqa: BLE001 - every optimizer is to be told
            errors[f"{name} {options}"] = f"{type(error).__name__}: {error}"
leave_with(taken=taken, errors=errors)
