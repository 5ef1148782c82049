"""The sentences of a plan: what to set or to type so that training takes the micro-batches that were found."""

from __future__ import annotations

import shlex
from itertools import groupby
from typing import TYPE_CHECKING, Final

from oomdoctor.report.plain_text import clean, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import Accumulation, CommandPlan, ProbeResult, UniformPlan


_CONTINUED: Final = " \\"
_INDENT: Final = "  "


def plan_title(plan: Accumulation) -> str:
    """Return the title of a plan, such as `To reach a target batch of 256 on 8 devices, 32 on each`."""
    if plan.effective_batch < plan.target_batch:
        each = "one device" if plan.world_size == 1 else f"{plan.world_size} devices"
        return f"The target batch of {plan.target_batch} is out of reach in one micro-batch on {each}"
    text = f"To reach a target batch of {plan.target_batch}"
    if plan.world_size > 1:
        text += f" on {plan.world_size} devices, {sum(plan.micro_batches)} on each"
    return text


def plan_heading(result: ProbeResult) -> str | None:
    """Return the title over what to set or to type; None where nothing is."""
    if result.accumulation is not None:
        return plan_title(result.accumulation)
    sizes = result.command_plan.sizes if result.command_plan else None
    return None if sizes is None else f"To train at micro-batch {sizes.micro_batch}"


def plan_rows(result: ProbeResult) -> list[tuple[str, str, str]]:
    """Return ways to reach the target, best first: (name, what to type, what it does).

    A command has one way: the words to run and, of each literal of its files that was set, the line to edit.
    """
    plan, command = result.accumulation, result.command_plan
    if command is not None:
        return _command_rows(command, plan)
    if plan is None:
        return []
    careful = first_plan(result)
    if careful is None or careful.micro_batches == plan.micro_batches:
        return _ways(plan, "exact")
    return [*_ways(careful, "recommended"), _exact(plan, "maximum")]


def first_plan(result: ProbeResult) -> Accumulation | None:
    """Return the plan that is told first: that of the recommended size where there is one, else that of the maximum."""
    return result.recommended_accumulation or result.accumulation


def _exact(plan: Accumulation, name: str) -> tuple[str, str, str]:
    return name, f"accumulation_steps={plan.steps}", _sizes(plan.micro_batches)


def _ways(plan: Accumulation, name: str) -> list[tuple[str, str, str]]:
    """Return a plan, and where its sizes differ what a trainer with one fixed size would do instead."""
    found = [_exact(plan, name)]
    if len(set(plan.micro_batches)) <= 1:
        return found
    if plan.uniform is not None:
        typed = f"accumulation_steps={plan.uniform.steps}"
        found.append(("one size", typed, f"{_count(plan.uniform.steps)} of {plan.uniform.micro_batch}"))
    fixed = plan.fixed_size
    found.append((f"fixed at {fixed.micro_batch}", f"accumulation_steps={fixed.steps}", _excess(fixed, plan)))
    return found


def plan_notes(result: ProbeResult) -> list[str]:
    """Return the notes about a plan."""
    plan, answer = result.accumulation, result.micro_batch
    sizes = result.command_plan.sizes if result.command_plan else None
    found = []
    if plan is not None and plan.effective_batch < plan.target_batch:
        found.append("to reach the target, let the command accumulate: `{accumulation_steps}` stands for its steps")
    elif plan is not None and plan.micro_batches and (first_plan(result) or plan).uniform is None:
        found.append("no single size reaches the target exactly with at most 25% more steps")
    largest = sizes.micro_batch if sizes else max(plan.micro_batches if plan else (), default=0)
    if largest > answer.recommended:
        better = f"above the recommended {answer.recommended}" if answer.recommended else "above every recommended size"
        free = f"less than {percent(result.headroom)} of the capacity free"
        found.append(f"{largest} is {better}: it fits, but leaves {free}, or the allocator has to retry")
    return found


def _command_rows(command: CommandPlan, plan: Accumulation | None) -> list[tuple[str, str, str]]:
    """Return the one row of a command, which takes one size, and those of the lines to edit."""
    if command.run is None or command.sizes is None:
        return []
    sizes = command.sizes
    effect = f"{_count(sizes.steps)} of {sizes.micro_batch}"
    if plan is None and sizes.steps > 1:
        effect = f"{_count(sizes.steps)} of at most {sizes.micro_batch}, as the command accumulates by itself"
    line = shlex.join(command.run)
    edits = [
        (
            "edit",
            clean(f"{each.name} = {each.new}"),
            clean(f"in line {each.line} of {each.file}, instead of {each.text}"),
        )
        for each in command.literals
    ]
    whole = effect if plan is None else f"{effect}, {_excess(sizes, plan)}"
    return [("run", line if line.isprintable() else clean(line), whole), *edits]


def typed_lines(command: CommandPlan, width: int) -> list[str]:
    """Return the command to run in lines of about `width`, which a shell takes as one; empty where nothing fits."""
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
    if excess < 0:
        return f"{sizes.effective_batch} samples in each optimizer step, {-excess} fewer than asked for"
    return f"{sizes.effective_batch} samples, {excess} more than asked for" if excess else "exactly the target"


def _sizes(micro_batches: Sequence[int]) -> str:
    runs = [(size, len(list(run))) for size, run in groupby(micro_batches)]
    if len(runs) == 1:
        size, count = runs[0]
        return f"{_count(count)} of {size}"
    return f"{_count(len(micro_batches))}: " + ", ".join(f"{count} of {size}" for size, count in runs)


def _count(steps: int) -> str:
    return "one micro-batch" if steps == 1 else f"{steps} micro-batches"
