"""The result of `oomdoctor prescribe`: what each remedy gains, and what reaches the size that is needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from oomdoctor.codec import ADDED_LATER
from oomdoctor.results.plan import Accumulation
from oomdoctor.results.probe import Device, Reason
from oomdoctor.results.variant import Precision

PrescribeStatus: TypeAlias = Literal["measured", "reached", "not_reached", "nothing_fits", "not_written", "interrupted"]
RemedyOutcome: TypeAlias = Literal["measured", "not_applicable", "raises", "not_measured"]


@dataclass(frozen=True, slots=True)
class StepCost:
    """Cost of one forward and backward, from the operators that PyTorch dispatched.

    Attributes:
        micro_batch: The size at which it was counted.
        flops: Floating-point operations of its products; None where an operator has no known count.
        touched_bytes: Bytes of each operator's inputs and outputs; None likewise.
        score_bytes: Bytes of the largest matrix of attention scores that exists as a whole; 0 where none does.
        unknown: Operators without a known count.
        seconds: Time that it took, in seconds, after a warm-up; None where no real GPU ran it.
        flops_by_type: The floating-point operations by the type of the numbers that are multiplied, such as `float32`.
    """

    micro_batch: int
    flops: int | None
    touched_bytes: int | None
    score_bytes: int = 0
    unknown: tuple[str, ...] = ()
    seconds: float | None = None
    flops_by_type: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MeasuredRemedies:
    """One row: a remedy, or several at once, and the probe of the target with them.

    Attributes:
        remedies: Their ids, in the order in which they are applied; empty for the target as it is.
        title: What it is.
        exactness: `same` (the same numbers), `rounding` or `other` (training differs).
        outcome: `measured`, `not_applicable` (the problem says why), `raises` (so does it) or `not_measured` (the
            budget was spent, somebody interrupted, or there was no answer in time).
        maximum: Largest micro-batch that fits; 0 where none does or nothing was measured.
        recommended: Largest that was tried and leaves the headroom free; 0 where none does.
        limited_by: What keeps it from being larger: `memory`, `target` or `limit`; None where nothing was measured.
        peak_bytes: Peak of live tensors at the maximum.
        compared_peak_bytes: Peak at the maximum of the target as it is; None where that does not fit or is 0.
        bytes_per_sample: What a sample more takes; None where fewer than two sizes fit.
        fixed_bytes: What stays from step to step whatever the size, such as weights and optimizer state; where no two
            sizes tell, what stays at the maximum.
        host_bytes: Bytes that a forward at the maximum moves to the host, and the backward moves back.
        acts_on: What each acts on.
        cost: What each costs, in words.
        problem: Why it was not measured; None where it was.
        notes: What to know besides.
        on_front: Whether nothing that costs less was measured to reach as much.
        recomputed_flops_percent: Floating-point operations of a step more than as it is, at that maximum, in percent;
            0 where they are not more, None where that is not known.
        extra_bytes_percent: Bytes that a step's operators touch more than as it is, likewise.
        step_seconds: Seconds of a forward and backward there; None where no real GPU ran it.
        unknown_operators: Operators without a known count, or other code that no count sees, for which the two are not
            known.
        step_flops: Floating-point operations of a forward and backward there, by the type of the numbers that are
            multiplied, such as `float32`; empty where they are not known.
        step_touched_bytes: Bytes that its operators touch; None where that is not known.
    """

    remedies: tuple[str, ...]
    title: str
    exactness: Literal["same", "rounding", "other"]
    outcome: RemedyOutcome
    maximum: int = 0
    recommended: int = 0
    limited_by: Literal["memory", "target", "limit"] | None = None
    peak_bytes: int | None = None
    compared_peak_bytes: int | None = None
    bytes_per_sample: int | None = None
    fixed_bytes: int | None = None
    host_bytes: int = 0
    acts_on: tuple[str, ...] = ()
    cost: tuple[str, ...] = ()
    problem: str | None = None
    notes: tuple[str, ...] = ()
    on_front: bool = False
    recomputed_flops_percent: float | None = field(default=None, metadata=ADDED_LATER)
    extra_bytes_percent: float | None = field(default=None, metadata=ADDED_LATER)
    step_seconds: float | None = field(default=None, metadata=ADDED_LATER)
    unknown_operators: tuple[str, ...] = field(default=(), metadata=ADDED_LATER)
    step_flops: dict[str, int] = field(default_factory=dict, metadata=ADDED_LATER)
    step_touched_bytes: int | None = field(default=None, metadata=ADDED_LATER)


@dataclass(frozen=True, slots=True)
class PrescribedCode:
    """Code for one place of the user's program.

    Attributes:
        place: Where it goes, in words.
        lines: The code.
    """

    place: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Patch:
    """The user's file, edited.

    Attributes:
        path: The file.
        diff: A unified diff.
        maximum: The maximum of a probe of the edited file.
        written: Where the edited file was written; None where it was not.
    """

    path: str
    diff: str
    maximum: int
    written: str | None = None


@dataclass(frozen=True, slots=True)
class PrescribeResult:
    """Everything that was measured, and what is prescribed.

    Attributes:
        target: The reference to the user's file or example as it was given.
        target_batch: Samples per optimizer step over all devices; None for plain steps.
        world_size: Devices that share the target batch.
        precision: Precision of the target as it is: `fp32`, or under autocast as `bf16` or `fp16`.
        need: The micro-batch that is needed; None where as much as possible is.
        keep: What combinations have to leave the same: `same`, `rounding` or `any`.
        without: Remedies that were left out.
        capacity_bytes: Bytes that PyTorch may take.
        headroom: Part of the capacity that the recommended size leaves free.
        device: Where the probes ran.
        plain: The target as it is.
        alone: Each remedy by itself, the best first; what saves nothing and what was not measured comes last.
        combined: Sets of remedies, in the order in which they were measured.
        prescribed: The row that is prescribed; None where nothing helps or is needed.
        accumulation: How the prescribed row reaches the target batch with the fewest steps, which may have
            micro-batches up to the maximum; None where there is none.
        code: The prescribed remedies as code.
        patch: The same as a patch of the user's file, proven by a probe; None where there is none.
        patch_problem: Why there is no patch; None where there is one or nothing is prescribed.
        probes: Probes that were run.
        reasons: Where the numbers were had from.
        warnings: What to know before relying on them.
        advice: What can only be advised, since it is no change that a worker makes, a sentence each.
        interrupted: How much was done when somebody interrupted, and what was being measured; None where nobody did.
        recommended_accumulation: How the prescribed row reaches it with micro-batches up to the recommended size; None
            where none is recommended or there is no target batch.
    """

    target: str
    target_batch: int | None
    world_size: int
    precision: Precision
    need: int | None
    keep: Literal["same", "rounding", "any"]
    without: tuple[str, ...]
    capacity_bytes: int
    headroom: float
    device: Device
    plain: MeasuredRemedies
    alone: tuple[MeasuredRemedies, ...]
    combined: tuple[MeasuredRemedies, ...]
    prescribed: MeasuredRemedies | None
    accumulation: Accumulation | None
    code: tuple[PrescribedCode, ...]
    patch: Patch | None
    patch_problem: str | None
    probes: int
    reasons: tuple[Reason, ...]
    warnings: tuple[str, ...]
    advice: tuple[str, ...] = field(default=(), metadata=ADDED_LATER)
    interrupted: str | None = field(default=None, metadata=ADDED_LATER)
    recommended_accumulation: Accumulation | None = field(default=None, metadata=ADDED_LATER)
