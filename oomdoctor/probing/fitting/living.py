"""How many bytes a step keeps alive at most, were nothing lost to packing; `oomdoctor.probing.replay` has it too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.tracing.journal import Cleared, Ended, Section
from oomdoctor.tracing.taking import Workspace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.probing.fitting.lowering import Program, Run, Scripts

_GRANULARITY: Final = 512
"""What is there before the trial is known as the allocator counts it, in whole blocks."""


def live_peak(program: Program, scripts: Scripts) -> int:
    """The bytes of what was loaded, and the most that the trial keeps alive besides."""
    living = _Living(scripts)
    living.go_through(program.loading, _GRANULARITY)
    living.peak = living.now
    living.go_through(program.trial, 1)
    return living.peak


class _Living:
    """What is alive, as a program goes on; `lowering.Player` does the same with an allocator.

    Attributes:
        now: Bytes that are alive.
        peak: The most that were.
    """

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._sizes: list[int] = []
        self._held: list[int] = []
        self._workspaces: dict[object, int] = {}
        self.now = self.peak = 0

    def go_through(self, runs: Sequence[Run], unit: int) -> None:
        """Count what runs allocate and give back, in whole units."""
        sizes, now, peak = self._sizes, self.now, self.peak
        for numbers, marker in runs:
            for number in numbers:
                if number > 0:
                    size = -(-number // unit) * unit
                    sizes.append(size)
                    now += size
                    if now > peak:  # noqa: PLR1730 - quicker than a call, and this is done for millions
                        peak = now
                elif number < 0:
                    now -= sizes[-1 - number]
            self.now, self.peak = now, peak
            self._mark(marker)
            now, peak = self.now, self.peak

    def _mark(self, marker: object) -> None:
        if isinstance(marker, Section):
            self._take(marker)
        elif isinstance(marker, Ended):
            self.now -= sum(self._held)
            self._held = []
        elif isinstance(marker, Cleared):
            self.now -= sum(self._workspaces.values())
            self._workspaces.clear()

    def _take(self, section: Section) -> None:
        for step in self._scripts[section.call][section.is_after]:
            if isinstance(step, Workspace):
                key = (step.library, section.in_backward)
                self.now += 0 if key in self._workspaces else self._workspaces.setdefault(key, step.nbytes)
            elif step < 0:
                self.now -= self._held[-1 - step]
                self._held[-1 - step] = 0
            else:
                self._held.append(step)
                self.now += step
            self.peak = max(self.peak, self.now)
