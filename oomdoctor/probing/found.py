"""What a probe hands over when it is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oomdoctor.devices.choice import Engine
    from oomdoctor.probing.dependencies import Dependencies
    from oomdoctor.probing.supervisor import Loaded
    from oomdoctor.results import ProbeResult, Trial


@dataclass(frozen=True, slots=True)
class Probe:
    """A finished probe.

    Attributes:
        result: What it found.
        versions: Version by name, of what answered.
        dependencies: What the target used.
    """

    result: ProbeResult
    versions: dict[str, str]
    dependencies: Dependencies


@dataclass(frozen=True, slots=True)
class DryRun:
    """A target that was loaded and tried once.

    Attributes:
        engine: Where it ran, and why there.
        loaded: What the worker said when the model was on the device.
        trial: One trial at the smallest size; None where the model alone does not fit.
    """

    engine: Engine
    loaded: Loaded
    trial: Trial | None
