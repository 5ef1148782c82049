"""Published peaks of GPUs: floating-point operations and bytes a second, from `peaks.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FILE: Final = Path(__file__).with_name("peaks.toml")


@dataclass(frozen=True, slots=True)
class Peaks:
    """A card's highest rates, as its maker publishes them.

    Attributes:
        flops: Floating-point operations a second, by the type of the numbers; without structured sparsity.
        bytes_per_second: Bytes a second between the card and its memory.
        source: Where they were had from.
    """

    flops: dict[str, float]
    bytes_per_second: float
    source: str


def peaks_of(name: str) -> Peaks | None:
    """Return the peaks of a card by the name that `torch.cuda.get_device_name` prints; None where none are known."""
    import tomllib  # noqa: PLC0415 - only where a roofline is asked for

    found = tomllib.loads(_FILE.read_text(encoding="utf-8"))["peaks"].get(name)
    if found is None:
        return None
    flops = {kind: found[kind] * 1e12 for kind in ("float32", "float16", "bfloat16") if kind in found}
    return Peaks(flops, found["gb_per_second"] * 1e9, found["source"])
