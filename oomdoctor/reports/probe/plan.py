"""The accumulation plan in words that a person can type into a trainer, the same in every report."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from oomdoctor.reports.wording import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import Accumulation, ProbeResult


def title(plan: Accumulation) -> str:
    """What the plan is for, such as `To reach a target batch of 256 on 8 devices, 32 on each`."""
    text = f"To reach a target batch of {plan.target_batch}"
    if plan.world_size > 1:
        text += f" on {plan.world_size} devices, {sum(plan.micro_batches)} on each"
    return text


def rows(plan: Accumulation) -> list[tuple[str, str, str]]:
    """Ways to reach the target, best first: (name, what to type, what it does)."""
    found = [("exact", f"accumulation_steps={plan.steps}", _sizes(plan.micro_batches))]
    if len(set(plan.micro_batches)) <= 1:
        return found
    if plan.uniform is not None:
        typed = f"accumulation_steps={plan.uniform.steps}"
        found.append(("one size", typed, f"{_count(plan.uniform.steps)} of {plan.uniform.micro_batch}"))
    fixed = plan.fixed_size
    excess = fixed.effective_batch - plan.target_batch
    effect = f"{fixed.effective_batch} samples, {excess} more than asked for" if excess else "exactly the target"
    found.append((f"fixed at {fixed.micro_batch}", f"accumulation_steps={fixed.steps}", effect))
    return found


def notes(result: ProbeResult) -> list[str]:
    """What to know about the plan before typing it."""
    plan, answer = result.accumulation, result.micro_batch
    if plan is None or not plan.micro_batches:
        return []
    found = []
    if plan.uniform is None:
        found.append("no single size reaches the target exactly without more than a quarter more steps")
    largest = max(plan.micro_batches)
    if largest > answer.recommended:
        better = f"above the recommended {answer.recommended}" if answer.recommended else "above every recommended size"
        spare = percent(result.headroom)
        found.append(f"{largest} is {better}: it fits, but not with {spare} to spare and no retry of the allocator")
    return found


def _sizes(micro_batches: Sequence[int]) -> str:
    runs = [(size, len(list(run))) for size, run in groupby(micro_batches)]
    if len(runs) == 1:
        size, count = runs[0]
        return f"{_count(count)} of {size}"
    return f"{_count(len(micro_batches))}: " + ", ".join(f"{count} of {size}" for size, count in runs)


def _count(steps: int) -> str:
    return "one micro-batch" if steps == 1 else f"{steps} micro-batches"
