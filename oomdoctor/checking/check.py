"""The check: every entry's answer, held to its limits and to the baseline."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.checking.answers import Answerer
from oomdoctor.checking.baseline.figures import Baseline, figures_of
from oomdoctor.checking.baseline.files import read_baseline, write_baseline
from oomdoctor.checking.verdicts import Standing, checked_entry
from oomdoctor.devices.torch_build import find_torch
from oomdoctor.errors import OomdoctorError, UsageError
from oomdoctor.output import check_writable
from oomdoctor.results import CheckResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.checking.answers import Answer
    from oomdoctor.checking.baseline.figures import Figures
    from oomdoctor.checking.cache.store import Cache
    from oomdoctor.checking.entry import Entry
    from oomdoctor.checking.progress import CheckProgress


@dataclass(frozen=True, slots=True)
class Plan:
    """What to check.

    Attributes:
        configuration: The configuration file as messages call it.
        entries: The entries to run.
        baseline: The baseline file as messages call it, relative to the working directory.
        update: Whether to write the baseline.
        is_whole: Whether all entries run, so that an update drops the figures of entries that are gone.
    """

    configuration: str
    entries: tuple[Entry, ...]
    baseline: str
    update: bool = False
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Check:
    """A finished check.

    Attributes:
        result: What it found.
        versions: Version by name, of what answered.
    """

    result: CheckResult
    versions: dict[str, str]


def check(plan: Plan, progress: CheckProgress, *, jobs: int, cache: Cache | None = None) -> Check:
    """Run every entry, and hold it to what is asked for.

    Args:
        plan: What to check.
        progress: Told of each entry.
        jobs: Most probes at once.
        cache: Answers that are known; None to ask anew.

    Raises:
        UsageError: The baseline cannot be read or written, or an update is asked for and no entry has one.
    """
    baseline = _baseline(plan)
    known = {} if baseline is None else baseline.entries
    plan = replace(plan, entries=tuple(_settled(plan, entry, known) for entry in plan.entries))
    answerer = Answerer(jobs, progress, cache)
    answers = answerer.answers({entry.name: entry.request for entry in plan.entries})
    is_written = plan.update and not any(isinstance(answer, OomdoctorError) for answer in answers.values())
    standing = Standing(known, plan.update, is_written)
    checked = tuple(
        checked_entry(entry, answers[entry.name], standing, answerer.not_kept.get(entry.name)) for entry in plan.entries
    )
    if is_written:
        write_baseline(Path(plan.baseline), _updated(plan, known, answers))
    result = CheckResult(plan.configuration, None if baseline is None else plan.baseline, checked)
    return Check(result, _versions(answers))


def _baseline(plan: Plan) -> Baseline | None:
    """What the baseline file has, before anything runs; None where no entry asks.

    Raises:
        UsageError: It cannot be read, or could not be written.
    """
    path = Path(plan.baseline)
    if not any(entry.baseline for entry in plan.entries):
        if plan.update:
            raise UsageError(
                "`--update` has nothing to write: no entry asks for a baseline",
                hint=f"add `baseline = true` to `{plan.configuration}`, at its top or in an entry",
            )
        return None
    if plan.update:
        check_writable(path)
    try:
        return read_baseline(path) if path.exists() else Baseline({})
    except UsageError:
        if plan.update and plan.is_whole and path.is_file():
            return Baseline({})  # it is written anew
        raise


def _settled(plan: Plan, entry: Entry, known: Mapping[str, Figures]) -> Entry:
    """The entry with the size at which memory is recorded in its question."""
    return replace(entry, request=replace(entry.request, profile_micro_batch=_profiled_size(plan, entry, known)))


def _profiled_size(plan: Plan, entry: Entry, known: Mapping[str, Figures]) -> int | None:
    """Size at which memory is recorded: the one that is asked for, or that of the baseline that it is compared with."""
    asked, before = entry.micro_batch or entry.min_micro_batch, _size_before(entry, known)
    if entry.micro_batch or plan.update or entry.max_memory_bytes is not None:
        return asked or before
    return before or asked


def _size_before(entry: Entry, known: Mapping[str, Figures]) -> int | None:
    figures = known.get(entry.name) if entry.baseline else None
    return None if figures is None else figures.profiled_micro_batch


def _updated(plan: Plan, known: Mapping[str, Figures], answers: Mapping[str, Answer]) -> Baseline:
    """The figures of the entries that ran; those of others stay, unless all ran."""
    entries = {} if plan.is_whole else dict(known)
    for entry in plan.entries:
        answer = answers[entry.name]
        if entry.baseline and not isinstance(answer, OomdoctorError):
            entries[entry.name] = figures_of(answer.result, answer.versions, entry.request.profile_micro_batch)
    return Baseline(entries)


def _versions(answers: Mapping[str, Answer]) -> dict[str, str]:
    """Versions of what answered; where nothing did, of the torch that would have."""
    for answer in answers.values():
        if not isinstance(answer, OomdoctorError):
            return dict(answer.versions)
    found, build = {"python": platform.python_version()}, find_torch()
    if build is not None:
        found |= {"torch": build.version, "cuda": str(build.cuda)}
    return found
