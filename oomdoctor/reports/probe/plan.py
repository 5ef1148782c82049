"""The accumulation plan in words that a person can type into a trainer, the same in every report."""

from __future__ import annotations

import shlex
from itertools import groupby
from typing import TYPE_CHECKING, Final

from oomdoctor.reports.wording import clean, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import Accumulation, CommandPlan, ProbeResult, UniformPlan


_CONTINUED: Final = " \\"
_INDENT: Final = "  "


def title(plan: Accumulation) -> str:
    """What the plan is for, such as `To reach a target batch of 256 on 8 devices, 32 on each`."""
    text = f"To reach a target batch of {plan.target_batch}"
    if plan.world_size > 1:
        text += f" on {plan.world_size} devices, {sum(plan.micro_batches)} on each"
    return text


def rows(result: ProbeResult) -> list[tuple[str, str, str]]:
    """Ways to reach the target, best first: (name, what to type, what it does)."""
    plan, command = result.accumulation, result.command_plan
    if plan is None:
        return []
    if command is not None:
        return _command_rows(command, plan)
    found = [("exact", f"accumulation_steps={plan.steps}", _sizes(plan.micro_batches))]
    if len(set(plan.micro_batches)) <= 1:
        return found
    if plan.uniform is not None:
        typed = f"accumulation_steps={plan.uniform.steps}"
        found.append(("one size", typed, f"{_count(plan.uniform.steps)} of {plan.uniform.micro_batch}"))
    fixed = plan.fixed_size
    found.append((f"fixed at {fixed.micro_batch}", f"accumulation_steps={fixed.steps}", _excess(fixed, plan)))
    return found


def notes(result: ProbeResult) -> list[str]:
    """What to know about the plan before typing it."""
    plan, answer = result.accumulation, result.micro_batch
    if plan is None or not plan.micro_batches:
        return []
    found = []
    if plan.uniform is None:
        found.append("no single size reaches the target exactly without more than a quarter more steps")
    sizes = result.command_plan.sizes if result.command_plan else None
    largest = sizes.micro_batch if sizes else max(plan.micro_batches)
    if largest > answer.recommended:
        better = f"above the recommended {answer.recommended}" if answer.recommended else "above every recommended size"
        spare = percent(result.headroom)
        found.append(f"{largest} is {better}: it fits, but not with {spare} to spare and no retry of the allocator")
    return found


def _command_rows(command: CommandPlan, plan: Accumulation) -> list[tuple[str, str, str]]:
    """A command takes one size, so that there is one way."""
    if command.run is None or command.sizes is None:
        return []
    sizes = command.sizes
    effect = f"{_count(sizes.steps)} of {sizes.micro_batch}, {_excess(sizes, plan)}"
    line = shlex.join(command.run)
    return [("run", line if line.isprintable() else clean(line), effect)]


def typed_lines(command: CommandPlan, width: int) -> list[str]:
    """The command to run in lines of about `width`, which a shell takes as one command; empty where nothing fits."""
    lines: list[str] = []
    for word in command.run or ():
        quoted = shlex.quote(word) if word.isprintable() else clean(shlex.quote(word))
        if lines and len(lines[-1]) + len(quoted) + len(_CONTINUED) < width:
            lines[-1] += f" {quoted}"
        else:
            lines.append(f"{_INDENT if lines else ''}{quoted}")
    return [f"{line}{_CONTINUED}" for line in lines[:-1]] + lines[-1:]


def _excess(sizes: UniformPlan, plan: Accumulation) -> str:
    excess = sizes.effective_batch - plan.target_batch
    return f"{sizes.effective_batch} samples, {excess} more than asked for" if excess else "exactly the target"


def _sizes(micro_batches: Sequence[int]) -> str:
    runs = [(size, len(list(run))) for size, run in groupby(micro_batches)]
    if len(runs) == 1:
        size, count = runs[0]
        return f"{_count(count)} of {size}"
    return f"{_count(len(micro_batches))}: " + ", ".join(f"{count} of {size}" for size, count in runs)


def _count(steps: int) -> str:
    return "one micro-batch" if steps == 1 else f"{steps} micro-batches"
