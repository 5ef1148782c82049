"""What `oomdoctor probe --dry-run` says: what was found in the file, and how one trial went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.units import format_size

if TYPE_CHECKING:
    from oomdoctor.probing.found import DryRun
    from oomdoctor.probing.supervisor import Loaded
    from oomdoctor.results import Trial


def render(target: str, tried: DryRun) -> str:
    """Text without a final newline."""
    width = max(map(len, tried.loaded.found))
    return "\n".join(
        [
            target,
            *(f"  {role:{width}}  {where}" for role, where in tried.loaded.found.items()),
            "",
            *_device_lines(tried.loaded),
            *(f"  {reason.subject}: {reason.text}" for reason in tried.engine.reasons),
            "",
            _trial_line(tried.trial, tried.loaded),
        ]
    )


def _device_lines(loaded: Loaded) -> list[str]:
    weights = loaded.weights_bytes
    return [
        f"{loaded.name}, compute capability {loaded.compute_capability}",
        f"  PyTorch may take {format_size(loaded.capacity_bytes)}",
        *([] if weights is None else [f"  the weights take {format_size(weights)}"]),
    ]


def _trial_line(trial: Trial | None, loaded: Loaded) -> str:
    if trial is None:
        return f"The weights alone do not fit: {loaded.placement_error}"
    peak = "" if trial.peak_allocated_bytes is None else f", peak {format_size(trial.peak_allocated_bytes)}"
    line = f"One trial at micro-batch {trial.micro_batch}: {trial.outcome}{peak}"
    return line if trial.error is None else f"{line}\n  {trial.error}"
