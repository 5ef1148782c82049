"""How big a batch fits, why it ran out, and what to change.

    from oomdoctor import accumulate, frontier, load_result, plan_accumulation, prescribe, probe, verify

Each is imported when it is first used: `import oomdoctor` loads nothing, and only `accumulate` needs torch.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.api.accumulate import accumulate
    from oomdoctor.api.prescribe import prescribe
    from oomdoctor.api.probe import frontier, probe
    from oomdoctor.api.verify import verify
    from oomdoctor.results.saved import load_result
    from oomdoctor.search.probe_search import plan_accumulation

__version__ = "0.1.0"
__all__ = ["accumulate", "frontier", "load_result", "plan_accumulation", "prescribe", "probe", "verify"]

_HOMES: Mapping[str, str] = MappingProxyType(
    {
        "accumulate": "oomdoctor.api.accumulate",
        "frontier": "oomdoctor.api.probe",
        "load_result": "oomdoctor.results.saved",
        "plan_accumulation": "oomdoctor.search.probe_search",
        "prescribe": "oomdoctor.api.prescribe",
        "probe": "oomdoctor.api.probe",
        "verify": "oomdoctor.api.verify",
    }
)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'oomdoctor' has no attribute '{name}'")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next look-up is plain
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
