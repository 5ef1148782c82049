"""What memory is made of at its peak, in the words and rows that a terminal and a comment share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.reports.charts.modules import rows
from oomdoctor.reports.probe.wording import PHASE_WORDS
from oomdoctor.reports.visible import visible
from oomdoctor.reports.wording import CATEGORY_WORDS
from oomdoctor.results import PhaseName
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from oomdoctor.reports.charts.modules import ModuleRow
    from oomdoctor.results import StepMemory

MOST_MODULES: Final = 5
"""Modules that are shown; the HTML page has more, the JSON all."""

_LONGEST_NAME: Final = 120


def title(found: StepMemory) -> str:
    """What it is of, such as `Memory at micro-batch 19`."""
    return f"Memory at micro-batch {found.micro_batch}"


def peak(found: StepMemory) -> str:
    """When it peaks and how high, such as `22.62 GiB at the peak, in backward, iteration 2; 22.83 GiB reserved`."""
    phase = "the optimizer step" if found.peak_phase is PhaseName.OPTIMIZER else PHASE_WORDS[found.peak_phase]
    allocated, reserved = format_size(found.peak_allocated_bytes), format_size(found.peak_reserved_bytes)
    return f"{allocated} at the peak, in {phase}, iteration {found.peak_iteration}; {reserved} reserved"


def categories(found: StepMemory) -> list[tuple[str, int]]:
    """Categories that hold anything at the peak, and their bytes, largest first."""
    held = [(CATEGORY_WORDS[part.category], part.allocated_bytes) for part in found.categories if part.allocated_bytes]
    return sorted(held, key=lambda part: -part[1])


def modules(found: StepMemory) -> list[tuple[ModuleRow, str]]:
    """The largest modules at the peak, and what each holds most."""
    return [(row, _mostly(row)) for row in rows(found.modules)[:MOST_MODULES] if not row.others]


def module_name(row: ModuleRow) -> str:
    """A module's path, or words for the model itself, for the smaller ones and for what no module accounts for."""
    if row.others:
        return f"{row.others} smaller modules"
    if row.module is None:
        return "outside the modules"
    return visible(row.module, _LONGEST_NAME) or "the model itself"


def _mostly(row: ModuleRow) -> str:
    """The category that most of a module's memory is of; empty where it holds none."""
    largest = max(row.parts, key=lambda part: part[1], default=None)
    return "" if largest is None else CATEGORY_WORDS[largest[0]]
