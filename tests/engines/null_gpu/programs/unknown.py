"""Call what the null GPU does not serve, the first of it twice, and tell the errors."""

# ruff: noqa: D103
from __future__ import annotations

import torch
from reporting import leave_with


def multiply_sparse() -> None:
    torch.eye(16).to_sparse_csr().cuda() @ torch.ones(16, 16, device="cuda")


def share() -> None:
    torch.ones(3, device="cuda").untyped_storage()._share_cuda_()


errors: dict[str, list[str]] = {}
for call in (multiply_sparse, multiply_sparse, share):
    try:
        call()
    except RuntimeError as error:
        errors.setdefault(call.__name__, []).append(str(error))
leave_with(errors=errors, still_works=torch.ones(4, device="cuda").add(1).shape[0])
