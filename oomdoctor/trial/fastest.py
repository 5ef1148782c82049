"""Find the micro-batch that trains fastest, once it is known which ones fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import OomdoctorError
from oomdoctor.results.throughput import SizeThroughput, Throughput
from oomdoctor.search.probe_search import plan_accumulation
from oomdoctor.search.throughput import TIMED_STEPS, MicroBatches, ThroughputSearch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results.plan import Accumulation
    from oomdoctor.search.probe_search import ProbeSearch
    from oomdoctor.trial.client import WorkerTrialSource

_COUNTED_SIZES: Final = 4
"""Sizes whose operations are counted where no clock runs: the largest, its half, its quarter and its eighth."""


@dataclass(slots=True)
class ThroughputRunner:
    """Times optimizer steps on the card of a probe, or counts what they compute where no clock runs.

    Attributes:
        request: The probe's question.
        source: What ran its trials.
        probe_search: What its trials were run for.
        is_real: Whether the device does arithmetic.
        progress: Told of each step that is timed.
    """

    request: ProbeRequest
    source: WorkerTrialSource
    probe_search: ProbeSearch
    is_real: bool
    progress: Progress
    _peaks: dict[int, int] = field(default_factory=dict)
    _operations: dict[int, tuple[int | None, int | None]] = field(default_factory=dict)

    def run(self, maximum: int, recommended: int) -> Throughput:
        """Compare sizes up to the maximum.

        Args:
            maximum: Largest micro-batch that fits.
            recommended: Largest that fits with the headroom withheld; 0 for none.

        Raises:
            KeyboardInterrupt: The stop was set.
        """
        if not self.is_real:
            return self._untimed(maximum, "no GPU of this machine runs the steps, and a null GPU has no clock")
        search = ThroughputSearch(self.limited(maximum), self.limited, self._time)
        try:
            fastest = search.find([recommended] if recommended else [])
        except OomdoctorError as error:
            return self._untimed(maximum, error.message)
        if fastest is None:
            return self._untimed(maximum, "memory ran out while the steps were timed")
        sizes = [self._timed(search, step) for step in search.timed] + [self._ran_out(step) for step in search.ran_out]
        return Throughput(
            fastest=fastest[0],
            accumulation=self._plan(fastest[0]),
            sizes=tuple(sorted(sizes, key=lambda size: -size.micro_batch)),
            timed_steps=TIMED_STEPS * sum(map(search.visits, search.timed)),
            is_settled=search.is_settled,
        )

    def limited(self, size: int) -> MicroBatches:
        """Return the micro-batches of one optimizer step on one device, with sizes of at most so many samples."""
        if self.request.target_batch is None:
            return (size,)
        return plan_accumulation(self.request.target_batch, size, self.request.world_size).micro_batches

    def _plan(self, size: int) -> Accumulation | None:
        if self.request.target_batch is None:
            return None
        return plan_accumulation(self.request.target_batch, size, self.request.world_size)

    def _time(self, step: MicroBatches) -> float | None:
        self.progress.stage(f"timing {len(step)} \u00d7 {step[0]}")
        found = self.source.time_step(step)
        self._peaks[step[0]] = max(self._peaks.get(step[0], 0), found.peak_reserved_bytes)
        return found.seconds

    def _timed(self, search: ThroughputSearch, step: MicroBatches) -> SizeThroughput:
        found = search.samples_per_second(step)
        ends = (math.exp(found.middle - found.half_width), math.exp(found.middle + found.half_width))
        return SizeThroughput(
            micro_batch=step[0],
            steps=len(step),
            samples_per_second=math.exp(found.middle),
            interval=None if math.isinf(found.half_width) else ends,
            timed_steps=TIMED_STEPS * search.visits(step),
            peak_reserved_bytes=self._peaks[step[0]],
        )

    def _ran_out(self, step: MicroBatches) -> SizeThroughput:
        return SizeThroughput(step[0], len(step), None, None, 0, ran_out=True)

    def _untimed(self, maximum: int, problem: str) -> Throughput:
        steps = dict.fromkeys(self.limited(max(1, maximum >> half)) for half in range(_COUNTED_SIZES))
        return Throughput(None, None, tuple(map(self._counted, steps)), 0, is_settled=False, problem=problem)

    def _counted(self, step: MicroBatches) -> SizeThroughput:
        counts = [self._operations_of(size) for size in step]
        flops, touched = (_sum([count[place] for count in counts]) for place in (0, 1))
        peak = self.probe_search.tried(step[0], self.probe_search.micro_steps(step[0])).peak_reserved_bytes
        return SizeThroughput(step[0], len(step), None, None, 0, peak, flops=flops, touched_bytes=touched)

    def _operations_of(self, size: int) -> tuple[int | None, int | None]:
        """Return the operations of one forward and backward, and the bytes that they touch."""
        if size not in self._operations:
            self.progress.stage(f"counting the operations of micro-batch {size}")
            cost = self.source.count_cost(size)
            self._operations[size] = (None, None) if cost is None else (cost.flops, cost.touched_bytes)
        return self._operations[size]


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
