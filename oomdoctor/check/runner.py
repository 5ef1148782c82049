"""The check of all entries.

Each entry's answer from the cache or a probe, judged, and written to the baseline on request.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from oomdoctor.check.baseline.figures import Baseline, figures_of
from oomdoctor.check.baseline.file import read_baseline, write_baseline
from oomdoctor.check.verdicts import BaselineState, VerifyAnswer, checked_entry
from oomdoctor.command.dependencies import found_program
from oomdoctor.engines.installed import find_torch
from oomdoctor.errors import OomdoctorError, UsageError
from oomdoctor.multi_card.buckets import prove_buckets
from oomdoctor.multi_card.frontier import searched_result
from oomdoctor.multi_card.pool import Answer, PooledProbe, probe_all
from oomdoctor.output import check_writable
from oomdoctor.progress import SilentProgress
from oomdoctor.report.verdicts import update_command
from oomdoctor.results import CheckResult
from oomdoctor.trial.answer import ProbeRun
from oomdoctor.verification.run import verify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Executor

    from oomdoctor.check.baseline.figures import Figures
    from oomdoctor.check.cache import Cache
    from oomdoctor.check.entries import Entry
    from oomdoctor.report.progress import Told
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import Buckets
    from oomdoctor.verification.run import VerifyRequest


def check_program(request: ProbeRequest) -> None:
    """See that what a command starts with can be started; a file has nothing to see.

    Raises:
        UsageError: There is no such program.
    """
    if request.command is None or found_program(request.command, request.directory, os.environ) is not None:
        return
    raise UsageError(f"command not found: `{request.command[0]}`", hint=_hint(request.command[0], request.directory))


def _hint(program: str, folder: Path) -> str:
    if program.endswith(".py"):
        return f'a script is run by its interpreter: `command = ["python", "{program}", ...]`'
    if "/" in program:
        return f"the command runs in `{folder}`, the folder of the configuration file"
    return "install it, or activate the environment that has it"


@dataclass(frozen=True, slots=True)
class Answerer:
    """Answers the questions of entries, from the cache or by probes side by side.

    Attributes:
        jobs: Most probes at once.
        progress: Told of each question.
        cache: Answers that are known; None to ask anew and to keep nothing.
        not_kept: Why an answer cannot be used again, by name, where its target is the reason.
        executor: Runs the probes elsewhere; None for this machine.
    """

    jobs: int
    progress: CheckProgress
    cache: Cache | None = None
    not_kept: dict[str, str] = field(default_factory=dict)
    executor: Executor | None = None

    def answers(self, requests: Mapping[str, ProbeRequest]) -> dict[str, Answer]:
        """Return the answers to questions by their names, in their order.

        Errors in one target leave the others alone; an interrupt ends all.
        """
        # To watch what a target uses costs a little, which only an answer that is kept is worth.
        requests = {name: replace(one, watched=self.cache is not None) for name, one in requests.items()}
        known = {name: found for name, request in requests.items() if (found := self._known(name, request))}
        cases = [PooledProbe(name, request) for name, request in requests.items() if name not in known]
        asked = probe_all(cases, self, jobs=self.jobs, executor=self.executor) if cases else []
        answers: dict[str, Answer] = known | {case.name: each for case, each in zip(cases, asked, strict=True)}
        return {name: answers[name] for name in requests}

    def started(self, case: PooledProbe) -> None:
        """Pass on that a probe began."""
        self.progress.started(case.name)

    def finished(self, case: PooledProbe, answer: Answer, *, seconds: float) -> None:
        """Keep an answer, and pass on that it is there."""
        if self.cache is not None and isinstance(answer, ProbeRun):
            reason = self.cache.keep(case.request, answer)
            if reason is not None:
                self.not_kept[case.name] = reason
        self.progress.finished(case.name, _told(case.request, answer), seconds=seconds, is_cached=False)

    def _known(self, name: str, request: ProbeRequest) -> Answer | None:
        """Return what the cache has, or that the program is missing; None where a probe has to tell."""
        started = time.monotonic()
        try:
            check_program(request)
        except UsageError as error:
            self.progress.started(name)
            self.progress.finished(name, error, seconds=time.monotonic() - started, is_cached=False)
            return error
        found = None if self.cache is None else self.cache.find(request)
        if found is not None:
            self.progress.finished(name, _told(request, found), seconds=time.monotonic() - started, is_cached=True)
        return found


def _told(request: ProbeRequest, answer: Answer) -> Told:
    """Return what a progress is told of an answer."""
    if not isinstance(answer, ProbeRun):
        return answer
    return answer.result if request.variant.searched is None else searched_result(request, answer)


def _joint_runs(entries: Sequence[Entry], progress: CheckProgress) -> dict[str, Buckets | OomdoctorError]:
    """Run the buckets of entries that have any, one entry after the other; an error in one leaves the others alone."""
    answers: dict[str, Buckets | OomdoctorError] = {}
    for entry in entries:
        progress.started(entry.name)
        started = time.monotonic()
        try:
            found: Buckets | OomdoctorError = prove_buckets(entry.request, entry.buckets, SilentProgress())
        except OomdoctorError as error:
            found = error
        progress.finished(entry.name, found, seconds=time.monotonic() - started, is_cached=False)
        answers[entry.name] = found
    return answers


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Plan of a check.

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


def check(
    plan: CheckPlan, progress: CheckProgress, *, jobs: int, cache: Cache | None = None, executor: Executor | None = None
) -> Check:
    """Run every entry, and hold it to what is asked for.

    Args:
        plan: What to check.
        progress: Told of each entry.
        jobs: Most probes at once.
        cache: Answers that are known; None to ask anew.
        executor: Runs the probes elsewhere; None for this machine.

    Raises:
        UsageError: The baseline cannot be read or written, or an update is asked for and no entry has one.
    """
    baseline = _baseline(plan)
    known = {} if baseline is None else baseline.entries
    plan = replace(
        plan,
        entries=tuple(
            replace(entry, request=replace(entry.request, profile_micro_batch=_profiled_size(plan, entry, known)))
            for entry in plan.entries
        ),
    )
    answerer = Answerer(jobs, progress, cache, executor=executor)
    probed = {entry.name: entry.request for entry in plan.entries if not entry.buckets}
    answers: dict[str, Answer | Buckets] = {**answerer.answers(probed)}
    answers |= _joint_runs([entry for entry in plan.entries if entry.buckets], progress)
    is_written = plan.update and not any(isinstance(answer, OomdoctorError) for answer in answers.values())
    standing = BaselineState(known, plan.update, is_written, update_command(plan.configuration))
    verified = _verified(plan.entries)
    checked = tuple(
        checked_entry(
            entry,
            answers[entry.name],
            standing,
            answerer.not_kept.get(entry.name),
            verified.get(entry.verification) if entry.verification else None,
        )
        for entry in plan.entries
    )
    if is_written:
        write_baseline(Path(plan.baseline), _updated(plan, known, answers))
    result = CheckResult(plan.configuration, None if baseline is None else plan.baseline, checked)
    return Check(result, _versions(answers))


def _verified(entries: Sequence[Entry]) -> dict[VerifyRequest, VerifyAnswer]:
    """Answer the verifications that entries ask for, each once; those of one target on several cards are one."""
    answers: dict[VerifyRequest, VerifyAnswer] = {}
    for request in {entry.verification: None for entry in entries if entry.verification is not None}:
        try:
            answers[request] = verify(request, SilentProgress())
        except OomdoctorError as error:
            answers[request] = error
    return answers


def _baseline(plan: CheckPlan) -> Baseline | None:
    """Return the baseline, read before anything runs; None where no entry asks for one.

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
        return read_baseline(path, update_command(plan.configuration)) if path.exists() else Baseline({})
    except UsageError:
        if plan.update and plan.is_whole and path.is_file():
            return Baseline({})  # it is written anew
        raise


def _profiled_size(plan: CheckPlan, entry: Entry, known: Mapping[str, Figures]) -> int | None:
    """Size at which memory is recorded: the one that is asked for, or that of the baseline that it is compared with."""
    figures = known.get(entry.name) if entry.baseline else None
    asked, before = (
        entry.micro_batch or entry.min_micro_batch,
        (None if figures is None else figures.profiled_micro_batch),
    )
    if entry.micro_batch or plan.update or entry.max_memory_bytes is not None:
        return asked or before
    return before or asked


def _updated(plan: CheckPlan, known: Mapping[str, Figures], answers: Mapping[str, Answer | Buckets]) -> Baseline:
    """Return the figures of the entries that ran; those of others stay, unless all ran."""
    entries = {} if plan.is_whole else dict(known)
    for entry in plan.entries:
        answer = answers[entry.name]
        if entry.baseline and isinstance(answer, ProbeRun):
            entries[entry.name] = figures_of(answer.result, answer.versions, entry.request.profile_micro_batch)
    return Baseline(entries)


def _versions(answers: Mapping[str, Answer | Buckets]) -> dict[str, str]:
    """Versions of what answered; where nothing did, of the torch that would have."""
    for answer in answers.values():
        if isinstance(answer, ProbeRun):
            return dict(answer.versions)
    found, build = {"python": platform.python_version()}, find_torch()
    if build is not None:
        found |= {"torch": build.version, "cuda": str(build.cuda)}
    return found


class CheckProgress(Protocol):
    """Told of each entry when it begins and when it ends, from several threads at once."""

    def started(self, name: str) -> None:
        """An entry began.

        Args:
            name: Its name.
        """

    def finished(self, name: str, answer: Told, *, seconds: float, is_cached: bool) -> None:
        """It ended.

        Args:
            name: Its name.
            answer: What was found, or why nothing could be.
            seconds: Since it began.
            is_cached: Whether the answer was known.
        """
