"""The verdict on one entry: its answer held to its limits and to the baseline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from oomdoctor.check.baseline.comparison import common_trials, compare, differences, not_compared
from oomdoctor.check.baseline.figures import figures_of
from oomdoctor.check.baseline.file import UPDATE
from oomdoctor.errors import EXIT_NO_ANSWER, EXIT_OK, OomdoctorError
from oomdoctor.multi_card.frontier import searched_result
from oomdoctor.report.buckets import turns
from oomdoctor.report.frontier import headline, warnings
from oomdoctor.report.plain_text import count, percent
from oomdoctor.report.probe.throughput import answer as fastest_answer
from oomdoctor.report.verify import summary
from oomdoctor.results import Buckets, CheckedEntry, Limit, LimitName, Outcome, Problem, Verdict
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from oomdoctor.check.baseline.figures import Figures
    from oomdoctor.check.entries import Entry
    from oomdoctor.multi_card.pool import Answer
    from oomdoctor.results import FrontierResult, Movement, ProbeResult, Trial, VerifyDocument
    from oomdoctor.results.throughput import Throughput
    from oomdoctor.trial.answer import ProbeRun


def judge(entry: Entry, result: ProbeResult) -> tuple[Limit, ...]:
    """Everything that an entry asks for except the baseline, broken ones first."""
    return broken_first(_limits(entry, result))


def broken_first(limits: Iterator[Limit] | Sequence[Limit]) -> tuple[Limit, ...]:
    """Limits with the broken ones first, else in their order."""
    return tuple(sorted(limits, key=lambda limit: limit.holds))


def baseline_limit(
    movements: Sequence[Movement] | None,
    tolerance: float,
    *,
    updated: bool = False,
    left_out: str | None = None,
    update: str = UPDATE,
) -> Limit:
    """Return the limit that the baseline is: every figure within its tolerance.

    Args:
        movements: What differs; None where the baseline does not have the entry.
        tolerance: Share by which a figure may be worse.
        updated: Whether the baseline was written just now, so that nothing can be worse.
        update: The command that writes the baseline.
        left_out: Why memory that the baseline has was not compared; a check that does not look cannot pass.
    """
    if updated:
        return Limit(LimitName.BASELINE, None, None, holds=True, text="the baseline was written")
    if movements is None:
        text = f"there is no baseline to compare with; `{update}` writes it"
        return Limit(LimitName.BASELINE, None, None, holds=False, text=text)
    if left_out is not None:
        text = f"{left_out}; `{update}` writes it anew"
        return Limit(LimitName.BASELINE, None, None, holds=False, text=text)
    beyond = sum(movement.is_beyond for movement in movements)
    figures = f"{count(beyond, 'figure is', 'figures are')}" if beyond else "no figure is"
    text = f"{figures} worse than the baseline by more than {percent(tolerance)}"
    return Limit(LimitName.BASELINE, None, None, holds=not beyond, text=text)


def searched_limits(entry: Entry, result: FrontierResult) -> tuple[Limit, ...]:
    """Return what an entry asks of the largest value of a size, broken limits first."""
    return broken_first(_searched_limits(entry, result))


def _searched_limits(entry: Entry, result: FrontierResult) -> Iterator[Limit]:
    (cell,), searched = result.cells, result.searched_size
    found, name = cell.maximum, "" if searched is None else searched.name
    answer = headline(result)
    yield Limit(LimitName.FITS, 1, found, holds=found > 0, text=answer)
    if entry.at_least is not None:
        text = f"{answer}; at least {entry.at_least} is asked for"
        yield Limit(LimitName.AT_LEAST, entry.at_least, found, holds=found >= entry.at_least, text=text)
    if entry.headroom is not None:
        least, size = entry.at_least or 1, cell.recommended
        largest = f"{name} {size} is recommended" if size else f"no {name} can be recommended"
        text = f"with {percent(entry.headroom)} of memory left free {largest}, and at least {least} is asked for"
        yield Limit(LimitName.HEADROOM, entry.headroom, None, holds=size >= least, text=text)


def buckets_limit(found: Buckets, headroom: float) -> Limit:
    """Return the limit that one process trains on buckets in turn, with so much memory left free."""
    whole = 100
    text = f"with {percent(headroom)} of memory left free {turns(found)}"
    return Limit(LimitName.BUCKETS, whole, found.percent, holds=found.percent == whole, text=text)


def _min_samples_per_second(asked: float, found: Throughput) -> Limit:
    fastest = next((size for size in found.sizes if size.micro_batch == found.fastest), None)
    rate = None if fastest is None else fastest.samples_per_second
    what = f"{fastest_answer(found)}, and at least {asked:g} samples/s are asked for"
    name = LimitName.MIN_SAMPLES_PER_SECOND
    return Limit(name, asked, rate, holds=rate is not None and rate >= asked, text=what)


def _limits(entry: Entry, result: ProbeResult) -> Iterator[Limit]:
    maximum = result.micro_batch.maximum
    text = f"micro-batch {maximum} is the largest that fits" if maximum else "nothing fits, not even the smallest size"
    yield Limit(LimitName.FITS, 1, maximum, holds=maximum > 0, text=text)
    if entry.min_micro_batch is not None:
        yield _min_micro_batch(entry.min_micro_batch, result)
    if entry.max_accumulation_steps is not None:
        yield _max_accumulation_steps(entry.max_accumulation_steps, result)
    if entry.max_memory_bytes is not None:
        yield _max_memory(entry.max_memory_bytes, entry.micro_batch or entry.min_micro_batch or 1, result)
    if entry.min_samples_per_second is not None and result.throughput is not None and result.throughput.fastest:
        yield _min_samples_per_second(entry.min_samples_per_second, result.throughput)
    if entry.headroom is not None:
        yield _headroom(entry.headroom, entry.min_micro_batch or 1, result)


def _min_micro_batch(asked: int, result: ProbeResult) -> Limit:
    found = result.micro_batch.maximum
    fits = f"micro-batch {found} is the largest that fits" if found else "nothing fits"
    text = f"{fits}, and at least {asked} is asked for"
    return Limit(LimitName.MIN_MICRO_BATCH, asked, found, holds=found >= asked, text=text)


def _max_accumulation_steps(asked: int, result: ProbeResult) -> Limit:
    plan = result.accumulation
    if plan is None:
        why = "the command accumulates by itself" if result.micro_batch.maximum else "nothing fits"
        text = f"there is no plan, since {why}, and at most {count(asked, 'accumulation step')} may be taken"
        return Limit(LimitName.MAX_ACCUMULATION_STEPS, asked, None, holds=False, text=text)
    if plan.effective_batch < plan.target_batch:
        text = f"the command takes one micro-batch in each step, and a target batch of {plan.target_batch} needs more"
        return Limit(LimitName.MAX_ACCUMULATION_STEPS, asked, None, holds=False, text=text)
    text = f"the plan takes {count(plan.steps, 'accumulation step')}, and at most {asked} may be taken"
    return Limit(LimitName.MAX_ACCUMULATION_STEPS, asked, plan.steps, holds=plan.steps <= asked, text=text)


def _max_memory(asked: int, size: int, result: ProbeResult) -> Limit:
    found, allowed = _reserved_at(size, result), f"and at most {format_size(asked)} may be held"
    if found is None:
        # What cannot be seen is not taken to be well.
        why = "does not fit" if size > result.micro_batch.maximum else "fits, but its memory could not be measured"
        text = f"micro-batch {size} {why}, {allowed}"
        return Limit(LimitName.MAX_MEMORY, asked, None, holds=False, text=text)
    text = f"PyTorch holds {format_size(found)} at micro-batch {size}{_optional_at(size, result)}, {allowed}"
    return Limit(LimitName.MAX_MEMORY, asked, found, holds=found <= asked, text=text)


def _reserved_at(size: int, result: ProbeResult) -> int | None:
    """Return most bytes held from the driver at a size, as recorded or else as the fullest trial had them."""
    if result.memory is not None and result.memory.micro_batch == size:
        return result.memory.peak_reserved_bytes
    return max((trial.peak_reserved_bytes or 0 for trial in _fitting(size, result)), default=None)


def _optional_at(size: int, result: ProbeResult) -> str:
    """Return what of that is optional, which the limit holds as well; empty where nothing is, or nothing tells."""
    least = result.least_memory
    if least is not None and least.micro_batch == size:
        return f" with cuDNN's optional workspaces ({format_size(least.least_bytes)} is enough to run)"
    taken = max((trial.workspace_bytes for trial in _fitting(size, result)), default=0)
    return " with cuDNN's optional workspaces" if taken else ""


def _headroom(asked: float, size: int, result: ProbeResult) -> Limit:
    """Return the limit on the recommended size, which was found with that headroom withheld."""
    recommended = result.micro_batch.recommended
    largest = f"micro-batch {recommended} is recommended" if recommended else "no micro-batch can be recommended"
    text = f"with {percent(asked)} of memory left free {largest}, and at least {size} is asked for"
    holds = recommended >= size
    return Limit(LimitName.HEADROOM, asked, _free_share(asked, size, result, holds=holds), holds=holds, text=text)


def _free_share(asked: float, size: int, result: ProbeResult, *, holds: bool) -> float | None:
    """Share of the capacity that is free where the limit is judged; None where no trial there tells."""
    trials = _fitting(result.micro_batch.recommended if holds else size, result)
    held = [trial.peak_reserved_bytes for trial in trials if trial.peak_reserved_bytes is not None]
    if not held or not result.capacity_bytes:
        return None
    is_left = min(held) <= int(result.capacity_bytes * (1 - asked))  # as the search for the recommended size has it
    return round(max(0.0, 1 - min(held) / result.capacity_bytes), 6) if is_left == holds else None


def _fitting(size: int, result: ProbeResult) -> list[Trial]:
    return [trial for trial in result.trials if trial.micro_batch == size and trial.outcome is Outcome.FITS]


_ComparisonState: TypeAlias = Literal["none", "missing", "compared", "updated"]

_NOT_WRITTEN = "the baseline was not written, since not every entry has an answer"


@dataclass(frozen=True, slots=True)
class BaselineState:
    """State of the baseline.

    Attributes:
        figures: What it had before this check, by entry.
        update: Whether it is to be written.
        is_written: Whether it is, since every entry has an answer.
        update_command: The command that writes it.
    """

    figures: Mapping[str, Figures]
    update: bool = False
    is_written: bool = False
    update_command: str = UPDATE


VerifyAnswer: TypeAlias = "VerifyDocument | OomdoctorError"
"""Verdict on a target's accumulation, or why there is none."""


def verify_limit(answer: VerifyAnswer) -> Limit:
    """Return the limit that accumulating trains what the whole batch would; what cannot be told does not hold."""
    if isinstance(answer, OomdoctorError):
        return Limit(LimitName.VERIFY, None, None, holds=False, text=f"cannot verify: {answer.message}")
    return Limit(LimitName.VERIFY, None, None, holds=answer.exit_code == EXIT_OK, text=summary(answer.result))


def checked_entry(
    entry: Entry,
    answer: Answer | Buckets,
    standing: BaselineState,
    not_kept: str | None = None,
    verified: VerifyAnswer | None = None,
) -> CheckedEntry:
    """Judge one entry.

    Args:
        entry: What was asked.
        answer: What was found, or why nothing was.
        standing: What is known of the baseline.
        not_kept: Why the answer cannot be used again, where its target is the reason.
        verified: Verdict on its accumulation; None where the entry does not ask.
    """
    asked = () if verified is None else (verify_limit(verified),)
    if isinstance(answer, OomdoctorError):
        problem = Problem(answer.message, answer.hint, answer.details, answer.exit_code)
        return replace(_judged(entry, ()), verdict=_verdict(problem, ()), problem=problem)
    if isinstance(answer, Buckets):
        limits = (buckets_limit(answer, entry.request.headroom), *asked)
        return replace(_judged(entry, limits), buckets=answer)
    if entry.request.variant.searched is not None:
        searched = searched_result(entry.request, answer)
        limits = (*searched_limits(entry, searched), *asked)
        return replace(_judged(entry, limits), searched=searched, not_kept=not_kept, warnings=tuple(warnings(searched)))
    return _checked_probe(entry, answer, standing, not_kept, asked)


def _verdict(problem: Problem | None, limits: Sequence[Limit]) -> Verdict:
    if problem is not None:
        return Verdict.NO_ANSWER if problem.exit_code == EXIT_NO_ANSWER else Verdict.ERROR
    return Verdict.PASSED if all(limit.holds for limit in limits) else Verdict.FAILED


def _judged(entry: Entry, limits: Sequence[Limit]) -> CheckedEntry:
    """Return an entry that has limits and nothing else."""
    return CheckedEntry(
        name=entry.name,
        target=entry.request.target,
        gpu=entry.request.gpu,
        verdict=_verdict(None, limits),
        limits=broken_first(limits),
        movements=(),
        baseline="none",
        tolerance=entry.tolerance,
        profiled_micro_batch=None,
        probe=None,
        problem=None,
    )


def _no_clock(result: ProbeResult) -> Problem | None:
    """Return why steps that were to be timed were not; None where they were, or where that was not asked."""
    if result.throughput is None or result.throughput.fastest is not None:
        return None
    hint = "run the check on a machine with the GPU, or drop `fastest` and `min-samples-per-second`"
    return Problem(f"the fastest micro-batch was {fastest_answer(result.throughput)}", hint, None, EXIT_NO_ANSWER)


def _checked_probe(
    entry: Entry, answer: ProbeRun, standing: BaselineState, not_kept: str | None, asked: tuple[Limit, ...]
) -> CheckedEntry:
    result, against = answer.result, _Comparison.of(entry, answer, standing)
    limits = broken_first((*judge(entry, result), *asked, *against.limits))
    problem = _no_clock(result)
    return CheckedEntry(
        name=entry.name,
        target=entry.request.target,
        gpu=entry.request.gpu,
        verdict=_verdict(problem, limits),
        limits=limits,
        movements=against.movements,
        baseline=against.state,
        tolerance=entry.tolerance,
        profiled_micro_batch=result.memory.micro_batch if result.memory else against.size,
        probe=result,
        problem=problem,
        warnings=against.warnings,
        not_kept=not_kept,
    )


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Result of the comparison with the baseline."""

    state: _ComparisonState = "none"
    limits: tuple[Limit, ...] = ()
    movements: tuple[Movement, ...] = ()
    warnings: tuple[str, ...] = ()
    size: int | None = None

    @classmethod
    def of(cls, entry: Entry, answer: ProbeRun, standing: BaselineState) -> _Comparison:
        if not entry.baseline:
            return cls()
        warnings = (_NOT_WRITTEN,) if standing.update and not standing.is_written else ()
        before = standing.figures.get(entry.name)
        after = figures_of(answer.result, answer.versions, entry.request.profile_micro_batch)
        if before is None:
            movements: tuple[Movement, ...] = ()
        else:
            movements = compare(before, after, tolerance=entry.tolerance)
            warnings = (*warnings, *differences(before, after))
        if standing.is_written:
            # What moved is worth seeing once more, and no longer fails anything.
            movements = tuple(replace(movement, is_beyond=False) for movement in movements)
        limit = baseline_limit(
            None if before is None else movements,
            entry.tolerance,
            updated=standing.is_written,
            left_out=None if before is None else not_compared(before, after),
            update=standing.update_command,
        )
        state: _ComparisonState = "updated" if standing.is_written else "missing" if before is None else "compared"
        trials = None if before is None else common_trials(before, after)
        return cls(
            state,
            (limit,),
            movements,
            warnings,
            after.profiled_micro_batch if trials is None else trials[0].micro_batch,
        )
