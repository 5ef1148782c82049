"""The worker process, which holds torch, the device and the user's code; it answers one question at a time.

The questions and their order are those of `oomdoctor.trial.protocol`.

Usage: worker READ_FD WRITE_FD
"""

from __future__ import annotations

import gc
import os

# PyTorch takes large pages for the batches that it makes on the host, which halves a probe's system time.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
gc.disable()  # a seventh of the time that `import torch` takes: it makes a million objects and no garbage

import platform
import sys
import traceback
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never

import torch

from oomdoctor.agent import kernel_timing, null_gpu, unknown_reads
from oomdoctor.agent.allocator_blocks import first_steps, pack
from oomdoctor.agent.messages import has_kernels
from oomdoctor.engines.catalogue import emulated_card
from oomdoctor.engines.trace.compiler_stubs import defer_dynamo
from oomdoctor.errors import NoAnswerError, OomdoctorError
from oomdoctor.remedies.applied import Changes
from oomdoctor.results import Outcome
from oomdoctor.search.trial_source import TrialProblem
from oomdoctor.target.contract import describe, failure, raised_in_user_code
from oomdoctor.target.hubs import generate
from oomdoctor.target.importing import load_target
from oomdoctor.target.placement import storage_bytes
from oomdoctor.target.sizes import with_sizes
from oomdoctor.trial.dependencies import WatchedWorker
from oomdoctor.trial.device import (
    allocator_variables,
    assumptions,
    capacity_bytes,
    current_card,
    current_device,
    device_kind,
    emulated_device,
    fault_of,
    held_memory,
    memory_fraction,
    set_emulated_device,
    unknown_calls,
    zeros_read_count,
)
from oomdoctor.trial.loading import build_on_host, check_batches, place_model
from oomdoctor.trial.lone_rank import RankOfFile, check_ranks
from oomdoctor.trial.meters import WorkerMeter
from oomdoctor.trial.placement import Placement, Replicas
from oomdoctor.trial.process import ChannelClosedError, WorkerChannel, die_with_parent, offer_to_oom_killer
from oomdoctor.trial.process_state import ProcessState, gives_back_all
from oomdoctor.trial.profile.recorder import profile
from oomdoctor.trial.protocol import (
    AskDevice,
    CountCost,
    FitCard,
    LoadForCards,
    LoadTarget,
    ProfileTrial,
    ReleaseTarget,
    ReplayTrials,
    ReportDependencies,
    RunTrial,
    TimeStep,
    VerifyTarget,
    WriteTarget,
    receive_question,
    send,
)
from oomdoctor.trial.replay import largest_replayable
from oomdoctor.trial.sized_trials import trials_of
from oomdoctor.trial.step import TrialSetup
from oomdoctor.trial.target_state import TargetState
from oomdoctor.trial.trial import (
    Attempt,
    release_memory,
    run_trial,
    set_memory_limit,
)
from oomdoctor.trial.worker_answers import (
    Bug,
    CardFitted,
    CostCounted,
    DependenciesSeen,
    DeviceCard,
    Failed,
    HeldMemory,
    LoadedTarget,
    PredictedMax,
    ProfileDone,
    ProfileOutcome,
    SettingsChanged,
    StepTimed,
    TargetReleased,
    TargetWritten,
    TrialDone,
    Verified,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.multi_card.fitter import Fitter
    from oomdoctor.trial.protocol import AnyAnswer, AnyQuestion

gc.enable()


_LATEST: Final = 8


def main(arguments: list[str]) -> int:
    """Answer questions from the pipes until the parent closes them."""
    die_with_parent()
    gc.freeze()  # torch has a million objects, which each collection would go through
    serve(WorkerChannel(int(arguments[0]), int(arguments[1])))
    return 0


def serve(channel: WorkerChannel) -> None:
    """Answer questions until the parent closes the channel."""
    null_gpu.begin()
    kernel_timing.watch()
    worker = Worker()
    with _device_to_run_on(), suppress(ChannelClosedError):
        while True:
            send(channel, _answer(worker, receive_question(channel)))


@contextmanager
def _device_to_run_on() -> Iterator[None]:
    """Emulate a card where that is asked for; else there is a GPU, or a null GPU."""
    card = emulated_card(os.environ)
    if card is None:
        yield
        return
    from oomdoctor.engines.trace.emulation import emulated_cuda  # noqa: PLC0415 - only where something is emulated

    with emulated_cuda(card) as device:
        set_emulated_device(device)
        yield


def _answer(worker: Worker, question: AnyQuestion) -> AnyAnswer:
    read_before, mark = zeros_read_count(), unknown_reads.mark()
    try:
        return worker.answer(question)
    except OomdoctorError as error:
        return Failed(TrialProblem.of(fault_of(error, zeros_read_count() - read_before, unknown_reads.reads(mark))))
    except BaseException as error:  # noqa: BLE001 - a bug of ours must reach the parent as such
        if isinstance(error, Exception) and not raised_in_user_code(error, worker.own_roots):
            return Bug(f"{traceback.format_exc()}{worker.history}")
        return Failed(TrialProblem.of(failure(error, "the target's code", worker.own_roots)))


class Worker:
    """The state between questions."""

    _setup: TrialSetup
    _start_bytes: int
    _fitter: Fitter

    def __init__(self) -> None:
        self._recorder: WatchedWorker | None = None
        self._state: ProcessState | None = None
        self._asked: deque[str] = deque(maxlen=_LATEST)

    @property
    def history(self) -> str:
        """The kinds of the latest questions, for whoever looks into a bug."""
        return f"process {os.getpid()}, parent {os.getppid()}, was asked {', '.join(self._asked)}"

    def answer(self, question: AnyQuestion) -> AnyAnswer:  # noqa: C901, PLR0911, PLR0912 - one a kind of question
        """Answer one question."""
        self._asked.append(type(question).__name__)
        match question:
            case AskDevice():
                return DeviceCard(current_card(current_device()))
            case LoadTarget():
                return self.load(question)
            case ReleaseTarget():
                return self.release()
            case RunTrial():
                return self.run(question)
            case ReplayTrials():
                return self.replay(question)
            case ProfileTrial():
                return self.profile(question)
            case CountCost():
                return self.count_cost(question)
            case TimeStep():
                return self.time_step(question)
            case ReportDependencies():
                return self.report_dependencies()
            case LoadForCards():
                return self.load_for_cards(question)
            case FitCard():
                return self.fit(question)
            case VerifyTarget():
                return _verify(question)
            case WriteTarget():
                return TargetWritten(generate(question.reference).source)
            case _:
                assert_never(question)

    @property
    def own_roots(self) -> tuple[Path, ...]:
        """Directories or files of the user's code; none before it is loaded."""
        return self._setup.target.own_roots if hasattr(self, "_setup") else ()

    def load(self, question: LoadTarget) -> LoadedTarget | SettingsChanged:
        """Import the target, place its model on the device, and keep both for the trials."""
        self._recorder = WatchedWorker() if question.watched else None
        self._is_frozen = False
        self._memory_fraction = 1.0
        self._cap_bytes = question.memory_bytes
        self._reserve_bytes = question.reserve_bytes if device_kind() == "cuda" else 0
        device = current_device()
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        used_before_bytes = total_bytes - torch.cuda.mem_get_info(device)[0]
        if question.card_bytes is not None:
            self._cap_bytes = max(0, question.card_bytes - (used_before_bytes - question.others_bytes))
        variables = allocator_variables()
        plain = load_target(question.reference, is_imported=self._state is not None)
        self._state = ProcessState(plain.own_roots) if question.is_shared else None
        target = with_sizes(plain, question.variant.sizes_at(1))
        check_ranks(target, question.variant, question.world_size)
        changed = {name: value for name, value in allocator_variables().items() if value != variables[name]}
        if changed and not question.keeps_settings:
            return _settings_changed(changed)
        changes = Changes(question.variant.transformations)
        alone = question.variant.lone_rank
        placement = Placement() if question.variant.devices == 1 else Replicas()
        placement = placement if alone is None else RankOfFile.join(target, alone)
        model, placement = build_on_host(target, changes, placement)
        self._lower_cap(memory_fraction())
        shape = check_batches(target)
        meter = WorkerMeter()
        set_memory_limit(capacity_bytes(self._cap_bytes, self._reserve_bytes))
        model, error = place_model(target, model, device, meter, placement)
        release_memory(model)
        computes = device_kind() == "cuda"
        self._setup = TrialSetup(
            target,
            model,
            device,
            question.variant,
            computes=computes,
            shape=shape,
            changes=changes,
            placement=placement,
        )
        self._sized = trials_of(question.variant, plain, self._setup)
        self._start_bytes = torch.cuda.memory_allocated()
        self._at_start = TargetState(model, target.own_roots)
        defer_dynamo()
        capability = torch.cuda.get_device_capability(device)
        return LoadedTarget(
            name=torch.cuda.get_device_name(device),
            compute_capability=".".join(map(str, capability)),
            has_kernels=has_kernels(torch.cuda.get_arch_list(), capability),
            total_bytes=total_bytes,
            used_before_bytes=used_before_bytes,
            capacity_bytes=capacity_bytes(self._cap_bytes, self._reserve_bytes),
            weights_bytes=storage_bytes((*model.parameters(), *model.buffers())),
            placement_error=error,
            held=held_memory(),
            phases=meter.phases,
            found=describe(target) | placement.told,
            versions=_versions(),
            memory_fraction=self._memory_fraction,
            changes=changes.applied(),
        )

    def release(self) -> TargetReleased:
        """Let go of the target, and say whether another of its file finds what it would find in a new worker."""
        if self._state is None:
            raise RuntimeError("a target is released after it was loaded")
        sources = self._state.sources(self.own_roots)
        del self._setup, self._sized, self._at_start
        return TargetReleased(gives_back_all() and self._state.is_unchanged(), sources)

    def run(self, question: RunTrial) -> TrialDone:
        """Run one trial, and wait until its memory is given back."""
        attempt = run_trial(self._setup, question) if self._sized is None else self._sized.run(question)
        self._lower_cap(attempt.memory_fraction)
        holder = self._at_start.find_holder(self._is_own) if question.until_settled else None
        self._at_start.give_back()
        # Exempt the objects alive after the first clean trial from garbage collection, and from a search for holders.
        if not self._is_frozen and not self._at_start.has_kept_memory:
            gc.freeze()
            self._is_frozen = True
        return TrialDone(
            trial=attempt.trial,
            problem=_problem_of(attempt),
            # Those of more steps than other trials took are not alike, and would predict nothing.
            allocations="" if question.until_settled else pack(first_steps(attempt.allocations, question.iterations)),
            loss_is_finite=attempt.loss_is_finite,
            zeros_read=attempt.zeros_read,
            unknown_reads=attempt.unknown_reads,
            optimizer=attempt.optimizer_name,
            held=self._held(attempt.trial.outcome),
            capacity_bytes=capacity_bytes(self._cap_bytes, self._reserve_bytes),
            unknown_calls=unknown_calls(),
            assumptions=(*assumptions(), *(self._sized.assumptions if self._sized else ())),
            memory_fraction=self._memory_fraction,
            ends=attempt.ends,
            host_bytes=self._setup.changes.host_bytes,
            is_fresh=attempt.is_fresh,
            communicators=null_gpu.communicators(),
            builds_graph=attempt.builds_graph,
            generation=attempt.generation,
            holder=holder,
            keeps_memory=self._at_start.has_kept_memory,
        )

    def _held(self, outcome: Outcome) -> HeldMemory:
        """Return what is held after a trial, and whether another one can follow it."""
        is_spent = outcome is not Outcome.FITS and not self._setup.placement.outlives_failures
        return replace(held_memory(), is_spent=is_spent)

    def _is_own(self, file: str) -> bool:
        return any(Path(file).is_relative_to(root) for root in self.own_roots)

    def _lower_cap(self, fraction: float) -> None:
        """Keep to the part of the GPU's memory that the target's code allows PyTorch to take."""
        if fraction < self._memory_fraction:
            self._memory_fraction = fraction
            allowed_bytes = int(fraction * torch.cuda.get_device_properties(0).total_memory)
            self._cap_bytes = allowed_bytes if self._cap_bytes is None else min(self._cap_bytes, allowed_bytes)

    def replay(self, question: ReplayTrials) -> PredictedMax:
        """Replay other sizes' allocations; nothing of the user's runs."""
        set_memory_limit(question.allowed_bytes)
        return PredictedMax(largest_replayable(question, self._setup.model))

    def profile(self, question: ProfileTrial) -> ProfileDone:
        """Profile one trial; an error in it is a reason in the outcome."""
        try:
            found = profile(self._setup, question.trial, question.peak_allocated_bytes, self._at_start.give_back)
        except Exception as error:  # noqa: BLE001 - the answer is there already, and stays right without this
            found = ProfileOutcome(None, f"{type(error).__name__}: {error}", Outcome.FAILED)
        self._at_start.give_back()
        return ProfileDone(found, self._held(found.outcome))

    def count_cost(self, question: CountCost) -> CostCounted:
        """Count what a step computes and touches; an error in it is one of the target."""
        from oomdoctor.trial.cost import count_cost  # noqa: PLC0415 - only where something is counted

        set_memory_limit(question.allowed_bytes)
        cost = count_cost(self._setup, question.micro_batch)
        release_memory(self._setup.model)
        self._at_start.give_back()
        return CostCounted(cost, held_memory())

    def time_step(self, question: TimeStep) -> StepTimed:
        """Time an optimizer step; an error in it is one of the target."""
        from oomdoctor.trial.cost import time_step  # noqa: PLC0415 - only where something is timed

        seconds = time_step(self._setup, question)
        peak_bytes = torch.cuda.max_memory_reserved()
        self._at_start.give_back()
        return StepTimed(seconds, peak_bytes, self._held(Outcome.OOM if seconds is None else Outcome.FITS))

    def report_dependencies(self) -> DependenciesSeen:
        """Return what the target has used so far."""
        if self._recorder is None:
            raise RuntimeError("the target is not watched")
        return DependenciesSeen(self._recorder.dependencies())

    def load_for_cards(self, question: LoadForCards) -> LoadedTarget | SettingsChanged:
        """Load the target on the emulated device, and create the `Fitter`, which answers for each card."""
        from oomdoctor.multi_card.fitter import Fitter, begin_journal  # noqa: PLC0415 - only where something is emulated

        if question.is_expendable:
            offer_to_oom_killer()
        device = emulated_device()
        begin_journal(device, question.cards)
        loaded = self.load(question.load)
        if isinstance(loaded, SettingsChanged):
            return loaded
        self._fitter = Fitter(
            setup=self._setup,
            sized=self._sized,
            device=device,
            cards=question.cards,
            target_batch=question.target_batch,
            world_size=question.world_size,
            start_bytes=self._start_bytes,
            weights_bytes=loaded.weights_bytes or 0,
            memory_fraction=loaded.memory_fraction,
            explain=_problem_of,
        )
        return loaded

    def fit(self, question: FitCard) -> CardFitted:
        """Find one card's answer."""
        fit = self._fitter.fit(question.gpu, question.headroom, question.capacity_bytes)
        return CardFitted(fit, tuple(self._fitter.questions))


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    return {name: version for name, version in versions.items() if version}  # a CPU build has no CUDA


def _verify(question: VerifyTarget) -> Verified:
    """Compare accumulated micro-batches with the whole batch."""
    from oomdoctor.verification.target import verify_target  # noqa: PLC0415 - only where something is verified

    result = verify_target(
        question.reference,
        samples=question.samples,
        parts=question.parts,
        precision=question.precision,
        limit_seconds=question.limit_seconds,
    )
    return Verified(result, _versions())


def _problem_of(attempt: Attempt) -> TrialProblem | None:
    """Return the error of a trial that failed for another reason than memory."""
    if attempt.problem is None:
        return None
    return TrialProblem.of(fault_of(attempt.problem, attempt.zeros_read, attempt.unknown_reads))


def _settings_changed(variables: dict[str, str | None]) -> SettingsChanged:
    if device_kind() != "cuda" and any("cudaMallocAsync" in (value or "") for value in variables.values()):
        raise NoAnswerError(
            "the target's file asks for `backend:cudaMallocAsync`; without a GPU trials run PyTorch's own allocator",
            hint="take it out of the file, or probe on a machine with a CUDA GPU",
        )
    return SettingsChanged(variables)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
