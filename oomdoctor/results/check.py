"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from oomdoctor.codec import ADDED_LATER
from oomdoctor.results.frontier import Buckets, FrontierResult
from oomdoctor.results.probe import ProbeResult


class Verdict(StrEnum):
    """Verdict on one entry of a check; the worst of all entries is the check's."""

    PASSED = "passed"
    FAILED = "failed"  # a limit is broken, or the baseline moved beyond its tolerance
    ERROR = "error"  # the target is at fault
    NO_ANSWER = "no_answer"  # no answer could be had


class LimitName(StrEnum):
    """Limit of an entry, by its key in the configuration."""

    FITS = "fits"  # asked by every entry: one micro-batch fits
    MIN_MICRO_BATCH = "min-micro-batch"
    MAX_ACCUMULATION_STEPS = "max-accumulation-steps"
    MAX_MEMORY = "max-memory"
    HEADROOM = "headroom"
    AT_LEAST = "at-least"
    BUCKETS = "buckets"
    MIN_SAMPLES_PER_SECOND = "min-samples-per-second"
    VERIFY = "verify"
    BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class Limit:
    """One thing that an entry asks for, and what was found.

    Attributes:
        name: Which, as the configuration names it; `fits`, that one micro-batch fits, is asked by every entry.
        asked: What was asked for: samples, steps, bytes, samples in a second, a value of the searched size, a share
            between 0 and 1, or percent of the buckets' samples; None for the baseline and for `verify`.
        found: What was found, in the same unit; None where nothing could be.
        holds: Whether it is kept.
        text: One sentence with both.
    """

    name: LimitName
    asked: float | int | None
    found: float | int | None
    holds: bool
    text: str


class FigureKind(StrEnum):
    """Kind of a figure of the baseline."""

    MICRO_BATCH = "micro_batch"  # samples
    PEAK = "peak"  # bytes
    PHASE = "phase"
    CATEGORY = "category"
    MODULE = "module"


@dataclass(frozen=True, slots=True)
class Movement:
    """A figure that is not what the baseline has.

    Attributes:
        kind: What the figure counts: `micro_batch` samples; `peak`, `phase`, `category` and `module` bytes.
        name: The figure, such as `activations`, `iteration 2 backward` or `encoder.layers.* activations`.
        before: In the baseline; None where it has none.
        after: Now; None where there is none.
        is_beyond: Whether it fails the check: it is worse by more than the tolerance.
        text: What moved, in one line such as "activations +412.0 MiB at micro-batch 8, +61 % in `encoder.layers.*`".
    """

    kind: FigureKind
    name: str
    before: int | None
    after: int | None
    is_beyond: bool
    text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an entry has no answer.

    Attributes:
        message: What was wrong and where.
        hint: What to do about it.
        details: Material such as a traceback of the user's code.
        exit_code: What a command that did only this would exit with.
    """

    message: str
    hint: str | None
    details: str | None
    exit_code: int


@dataclass(frozen=True, slots=True)
class CheckedEntry:
    """One `[[check]]` of the configuration on one card.

    Attributes:
        name: Its name; with the card behind it, as `pretrain on rtx-4090`, where the entry names several.
        target: The reference as it was given.
        gpu: The card as it was given; None for the local GPU.
        verdict: How it ended: `passed`, `failed` (a limit is broken, or the baseline moved beyond its tolerance),
            `error` (the target is at fault) or `no_answer` (no answer could be had).
        limits: What was asked for, broken ones first.
        movements: What differs from the baseline, worst first.
        baseline: `none` (not asked for), `missing` (asked for, and the file does not have the entry), `compared` or
            `updated` (written now).
        tolerance: Share by which a figure may be worse than the baseline.
        profiled_micro_batch: Size at which memory was recorded and compared, by category and module or, of a command,
            by phase.
        probe: What the probe found; None where there is a problem other than that no GPU has a clock, where another
            size than the micro-batch was searched, and for buckets.
        problem: Why there is no answer; else None.
        warnings: What the reader should know, beyond the probe's own warnings.
        not_kept: Why the next check has to ask anew, where its target is the reason; else None.
        searched: The largest value of another size than the micro-batch, a frontier of one cell; None where none was
            asked for.
        buckets: How buckets took turns; None where they were not asked about.
    """

    name: str
    target: str
    gpu: str | None
    verdict: Verdict
    limits: tuple[Limit, ...]
    movements: tuple[Movement, ...]
    baseline: Literal["none", "missing", "compared", "updated"]
    tolerance: float
    profiled_micro_batch: int | None
    probe: ProbeResult | None
    problem: Problem | None
    warnings: tuple[str, ...] = ()
    not_kept: str | None = field(default=None, metadata=ADDED_LATER)
    searched: FrontierResult | None = field(default=None, metadata=ADDED_LATER)
    buckets: Buckets | None = field(default=None, metadata=ADDED_LATER)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Everything that a check found.

    Attributes:
        configuration: The configuration file, relative to the working directory where it lies at or above it.
        baseline: The baseline file, in the same way; None where no entry asks for one.
        entries: Every entry, in the order of the configuration.
    """

    configuration: str
    baseline: str | None
    entries: tuple[CheckedEntry, ...]
