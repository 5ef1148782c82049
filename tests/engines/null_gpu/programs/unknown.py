"""Call what the null GPU does not serve, twice each, and tell the errors."""

# ruff: noqa: D103
from __future__ import annotations

import torch
from reporting import leave_with


def capture() -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(3, device="cuda")


def transform() -> None:
    torch.fft.fft(torch.ones(16, device="cuda"))


errors: dict[str, list[str]] = {}
for call in (transform, transform, capture):
    try:
        call()
    except RuntimeError as error:
        errors.setdefault(call.__name__, []).append(str(error))
leave_with(errors=errors, still_works=torch.ones(4, device="cuda").add(1).shape[0])
