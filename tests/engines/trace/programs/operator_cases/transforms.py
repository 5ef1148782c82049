"""Fourier transforms, short ones and long ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fft

from operator_cases.making import Case, case, leaf

_COMPLEX = torch.complex64


def _spectrum(length: int, *, back: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
    def transformed(wave: torch.Tensor) -> torch.Tensor:
        window = torch.hann_window(length, device=wave.device)
        spectrum = torch.stft(wave, length, length // 4, window=window, return_complex=True)
        return torch.istft(spectrum, length, length // 4, window=window) if back else spectrum.abs()

    return transformed


def _of_length(length: int) -> dict[str, Case]:
    return {
        f"rfft of {length}": case(lambda x: fft.rfft(x).abs(), leaf(6, length)),
        f"rfft along 0 of {length}": case(lambda x: fft.rfft(x, dim=0).abs(), leaf(length, 6)),
        f"irfft of {length}": case(fft.irfft, leaf(6, length // 2 + 1, dtype=_COMPLEX)),
        f"fft of {length}": case(fft.fft, leaf(6, length, dtype=_COMPLEX)),
        f"fft of real {length}": case(lambda x: fft.fft(x).abs(), leaf(6, length)),
        f"ifft of {length}": case(fft.ifft, leaf(6, length, dtype=_COMPLEX)),
        f"rfft2 of {length}": case(lambda x: fft.rfft2(x).abs(), leaf(2, 3, 64, length)),
        f"irfft2 of {length}": case(fft.irfft2, leaf(2, 3, 64, length // 2 + 1, dtype=_COMPLEX)),
        f"fft2 of {length}": case(fft.fft2, leaf(2, 3, 64, length, dtype=_COMPLEX)),
        f"round trip of {length}": case(lambda x: fft.irfft2(fft.rfft2(x)), leaf(2, 3, 130, length)),
        f"stft of {length}": case(_spectrum(length), leaf(4, 8 * length)),
        f"istft of {length}": case(_spectrum(length, back=True), leaf(4, 8 * length)),
    }


CASES = {
    "no dimension": case(lambda x: fft.fftn(x, dim=()), leaf(3, 4, dtype=_COMPLEX)),
    **{name: made for length in (400, 1024) for name, made in _of_length(length).items()},
}
