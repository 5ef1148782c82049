"""Transform and decompose what audio, operators and second-order optimizers do; tell the peaks, or the errors."""

# ruff: noqa: D103
from __future__ import annotations

from collections.abc import Callable

import torch
from reporting import leave_with
from torch import linalg

from oomdoctor.agent.null_gpu import assumptions


def made(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


def trained(function: Callable[..., object], *given: torch.Tensor) -> None:
    found = function(*given)
    parts = found if isinstance(found, (tuple, list)) else [found]
    sum(part.abs().sum() for part in parts if part.requires_grad).backward()


def inverse_stft(wave: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(400, device="cuda")
    spectrum = torch.stft(wave, 400, 160, window=window, return_complex=True)
    return torch.istft(spectrum, 400, 160, window=window)


CASES: dict[str, Callable[[], object]] = {
    "istft": lambda: trained(inverse_stft, made(4, 16000)),
    "rfft2": lambda: trained(lambda x: torch.fft.irfft2(torch.fft.rfft2(x)), made(2, 3, 32, 30)),
    "four dimensions": lambda: trained(torch.fft.fftn, made(3, 4, 5, 6, dtype=torch.complex128)),
    "half": lambda: trained(torch.fft.rfft, made(4, 1024, dtype=torch.half)),
    "svd, batch": lambda: trained(lambda x: linalg.svd(x, full_matrices=False), made(8, 60, 40)),
    "svd of small ones": lambda: trained(lambda x: linalg.svd(x, full_matrices=False), made(8, 20, 20)),
    "svd by gesvd": lambda: linalg.svd(made(30, 20), driver="gesvd"),
    "svd by gesvda": lambda: linalg.svd(made(30, 20), full_matrices=False, driver="gesvda"),
    "eigh, batch": lambda: trained(linalg.eigh, made(8, 60, 60)),
    "eigh, complex": lambda: linalg.eigh(made(60, 60, dtype=torch.complex64)),
    "qr, wide": lambda: linalg.qr(made(20, 60)),
    "cholesky": lambda: trained(lambda x: torch.cholesky_solve(x, linalg.cholesky(x)), made(60, 60)),
    "cholesky, batch": lambda: trained(lambda x: torch.cholesky_inverse(linalg.cholesky(x)), made(8, 60, 60)),
    "solve": lambda: trained(linalg.solve, made(60, 60), made(60, 5)),
    "inverse, batch": lambda: trained(linalg.inv, made(8, 60, 60)),
    "least squares": lambda: linalg.lstsq(made(60, 30), made(60, 5)),
    "triangular": lambda: trained(lambda x: linalg.solve_triangular(x, x, upper=True), made(60, 60)),
    "ldl": lambda: linalg.ldl_factor(made(60, 60)),
    "low rank": lambda: torch.svd_lowrank(made(300, 100), q=6),
    "determinant": lambda: trained(linalg.slogdet, made(8, 60, 60)),
    "norm": lambda: trained(lambda x: linalg.matrix_norm(x, "nuc"), made(60, 40)),
}
for dtype in (torch.float64, torch.complex64, torch.complex128):
    CASES[f"qr, {dtype}"] = lambda dtype=dtype: trained(linalg.qr, made(60, 40, dtype=dtype))
    CASES[f"svdvals, {dtype}"] = lambda dtype=dtype: trained(linalg.svdvals, made(60, 40, dtype=dtype))


def peak_of(transform: Callable[[torch.Tensor], object], given: torch.Tensor) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    transform(given)
    return torch.cuda.max_memory_allocated() - before


real = torch.zeros(1024, 64, device="cuda")
whole = torch.zeros(1024, 64, device="cuda", dtype=torch.complex64)
peaks = {
    "fft": peak_of(torch.fft.fft, whole),
    "rfft": peak_of(torch.fft.rfft, real),
    "fft2": peak_of(torch.fft.fft2, whole),
}
errors: dict[str, str] = {}
at_first = assumptions()
for title, case in CASES.items():
    try:
        case()
    except Exception as error:  # noqa: BLE001 - every case is to be told
        errors[title] = f"{type(error).__name__}: {error}"
leave_with(cuda=torch.version.cuda, peaks=peaks, errors=errors, assumptions=[at_first, assumptions()])
