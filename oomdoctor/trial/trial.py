"""Run one trial: two optimizer steps at one micro-batch size, as a training run would take them. Runs in the worker.

Two optimizer steps, because the first creates the optimizer's state and only the second has the peak that training
has. Two micro-steps in each where gradients will be accumulated, because accumulated gradients are alive during the
next forward, which a plain step never shows.
"""

from __future__ import annotations

import gc
import itertools
import time
import traceback
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import torch

from oomdoctor.agent import kernel_timing, unknown_reads
from oomdoctor.agent.memory_stats import kept_bytes
from oomdoctor.agent.oom_errors import walk_chain
from oomdoctor.errors import NoAnswerError, TargetError
from oomdoctor.oom.classifier import Evidence, classify
from oomdoctor.results import Outcome, Phase, PhaseName, Trial
from oomdoctor.search.growth import ANSWER_ITERATIONS, MOST_ITERATIONS, PLAIN_ITERATIONS, is_settled
from oomdoctor.target.contract import step_failure
from oomdoctor.target.placement import place, tensors_in
from oomdoctor.trial.device import (
    begin_trial,
    has_makeshift_plans,
    memory_fraction,
    workspace_bytes,
    workspace_retries,
    workspaces_given_up,
)
from oomdoctor.trial.inference import Evaluator, GenerationLoop, evaluating
from oomdoctor.trial.meters import TrialMeter
from oomdoctor.trial.step import checked_batch, loss_of
from oomdoctor.trial.variants import gradient_scaler, make_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oomdoctor.agent.allocator_blocks import AllocationTrace
    from oomdoctor.agent.messages import UnknownRead
    from oomdoctor.results import GenerationMemory
    from oomdoctor.results.variant import Mode
    from oomdoctor.trial.protocol import RunTrial
    from oomdoctor.trial.step import TrialSetup


_LONGEST_WATCH_SECONDS = 30.0
_LONGER_WATCH_SECONDS = 3.0
"""After `MOST_ITERATIONS` most growth is a leak, which need not be watched for longer."""
_LONGEST_RELEASE_SECONDS = 0.5
_PAUSE_SECONDS = 0.005


@dataclass(slots=True)
class _Training:
    """Two iterations as they run, besides their memory."""

    ooms_before: int
    retries_before: int
    workspace_retries_before: int
    meter: TrialMeter
    step: int = 1
    first_steps: int = 0  # those before the one that the first evaluation follows
    fixed_bytes: int | None = None
    loss_is_finite: bool = True
    optimizer_name: str = ""
    ends: list[int] = field(default_factory=list)
    builds_graph: bool = False
    generation: GenerationMemory | None = None
    retries_of_training: int | None = None  # those before the first evaluation

    @property
    def ooms(self) -> int:
        """Times that memory ran out so far, caught by the user's code or not, but for workspaces that are optional."""
        return _ooms() - self.ooms_before

    @property
    def alloc_retries(self) -> int:
        """Times the allocator had to give back its cache so far, but for workspaces that are optional."""
        return self._all_retries - self.workspace_retries

    @property
    def workspace_retries(self) -> int:
        """Times that it did so for workspaces that are optional."""
        # No more than there were: where the step itself gives back the cache, that looks like one of them.
        return min(workspace_retries() - self.workspace_retries_before, self._all_retries)

    @property
    def evaluation_retries(self) -> int:
        """Of `alloc_retries`, those since the first evaluation between training steps began."""
        return 0 if self.retries_of_training is None else self.alloc_retries - self.retries_of_training

    @property
    def iteration(self) -> int:
        """As which iteration the step is told: all from the second to an evaluation, and all after it, are one."""
        is_after = self.first_steps > 0 and self.step > self.first_steps + 1
        return PLAIN_ITERATIONS + 1 if is_after else min(self.step, PLAIN_ITERATIONS)

    @property
    def _all_retries(self) -> int:
        return _stat("num_alloc_retries") - self.retries_before

    def phases(self, *, has_failed: bool) -> tuple[Phase, ...]:
        """Return the memory of all phases; the one that failed, the last, with the step that it failed in."""
        phases = self.meter.phases
        if not has_failed or self.iteration == self.step or not phases:
            return phases
        return (*phases[:-1], replace(phases[-1], iteration=self.step))

    def is_over(self, question: RunTrial) -> bool:
        """Return whether no step has to follow those that have ended."""
        step = len(self.ends)
        if question.until_settled and is_settled(self.ends):
            return True
        # What is left for blocks in each other's way differs from step to step; the fourth may fail where two fitted.
        return step >= question.iterations and not (self.is_tight(question) and step < ANSWER_ITERATIONS)

    def is_tight(self, question: RunTrial) -> bool:
        """Return whether one trial takes more steps, as the allocator gave back its cache."""
        return not question.leaks and self._all_retries > 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """Result of one trial, with what only the worker sees of it.

    Attributes:
        trial: What the result will hold.
        problem: What a trial that failed for another reason than memory failed with; else None.
        allocations: The allocator's events, where the trial fits; see `oomdoctor.agent.allocator_blocks`.
        loss_is_finite: False where a loss was NaN or infinite.
        zeros_read: Times that the step read data back from a null GPU.
        unknown_reads: The target's lines that did so.
        optimizer_name: Class name of the optimizer, empty when it was never built.
        memory_fraction: Part of the GPU's memory that the target's code set while the trial ran; 1 where it set none.
        ends: Bytes that live tensors asked for at the end of each optimizer step.
        is_fresh: Whether a process that had run no trial would have done the same, as far as that is known.
        builds_graph: Whether an evaluation built a graph, for a backward that never comes.
        generation: What generating took besides the model; None in the other modes.
    """

    trial: Trial
    problem: TargetError | None
    allocations: AllocationTrace
    loss_is_finite: bool
    zeros_read: int
    unknown_reads: tuple[UnknownRead, ...]
    optimizer_name: str
    memory_fraction: float
    ends: tuple[int, ...]
    is_fresh: bool
    builds_graph: bool = False
    generation: GenerationMemory | None = None


def run_trial(setup: TrialSetup, question: RunTrial, meter: TrialMeter | None = None) -> Attempt:
    """Train two iterations at one size, and leave memory as it was.

    Args:
        setup: The model and how it trains.
        question: The size, and the memory that is allowed.
        meter: Measures it; None for a plain one.

    Raises:
        TargetError: The user's file does not keep the contract.
    """
    begin_trial()
    kernel_timing.begin_trial()
    set_memory_limit(question.allowed_bytes)
    setup.placement.begin_trial(question.allowed_bytes)
    limit = memory_fraction()
    training = _Training(_ooms(), _stat("num_alloc_retries"), workspace_retries(), meter or TrialMeter())
    reads_before, started = unknown_reads.mark(), time.monotonic()
    try:
        end = _train_to_end(setup, training, question)
    finally:
        setup.end_trial()
    own_limit = memory_fraction()
    if own_limit > limit and training.meter.peak_reserved_bytes > question.allowed_bytes:
        end = _TrialEnd(Outcome.OOM, _LIFTED)
    swallowed = training.ooms if end.outcome is Outcome.FITS else 0
    trial = Trial(
        micro_batch=question.micro_batch,
        outcome=Outcome.OOM if swallowed else end.outcome,
        allowed_bytes=question.allowed_bytes,
        peak_allocated_bytes=training.meter.peak_allocated_bytes,
        peak_reserved_bytes=training.meter.peak_reserved_bytes,
        fixed_bytes=training.fixed_bytes,
        alloc_retries=training.alloc_retries,
        evaluation_retries=training.evaluation_retries,
        workspace_retries=training.workspace_retries,
        workspace_bytes=workspace_bytes(),
        swallowed_ooms=swallowed,
        phases=training.phases(has_failed=end.outcome is not Outcome.FITS),
        error=_SWALLOWED if swallowed else end.text,
        seconds=time.monotonic() - started,
        other_devices=setup.placement.device_peaks(),
        timing_bytes=kernel_timing.limiting_bytes(
            training.meter.peak_allocated_bytes, ran_out=end.outcome is Outcome.OOM
        ),
    )
    release_memory(setup.model)
    return Attempt(
        trial,
        end.problem,
        training.meter.trace,
        training.loss_is_finite,
        training.meter.zeros_read,
        unknown_reads.reads(reads_before),
        training.optimizer_name,
        1.0 if own_limit == limit else own_limit,
        tuple(training.ends),
        not has_makeshift_plans(),
        training.builds_graph,
        training.generation,
    )


_LIFTED = "the step set another memory fraction, and took more than this trial allowed"
_SWALLOWED = "the step ran out of memory, and its own code caught the error and went on"


def _ooms() -> int:
    return _stat("num_ooms") - workspaces_given_up()


def set_memory_limit(allowed_bytes: int) -> None:
    """Let the allocator hold at most `allowed_bytes`, to the byte, whatever the float between does to it."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (allowed_bytes + 0.5) / total))


def release_memory(model: torch.nn.Module) -> None:
    """Give back everything but the model's parameters and buffers."""
    model.zero_grad(set_to_none=True)
    torch.clear_autocast_cache()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - no public way; else they stay for the process
    torch.cuda.empty_cache()


def await_release(model: torch.nn.Module, start_bytes: int) -> None:
    """Clean until no more than `start_bytes` is allocated: autograd's threads let go of a failed backward a bit later.

    What is still there after half a second was kept by the target, not by a thread that waits for a processor.
    """
    deadline = time.monotonic() + _LONGEST_RELEASE_SECONDS
    while torch.cuda.memory_allocated() > start_bytes and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
        release_memory(model)


@dataclass(frozen=True, slots=True)
class _TrialEnd:
    outcome: Outcome
    text: str | None = None
    problem: TargetError | None = None


def _train_to_end(setup: TrialSetup, training: _Training, question: RunTrial) -> _TrialEnd:
    """Train and return how it ended; the frames of a failed step, and with them its tensors, are gone by then."""
    try:
        with training.meter.whole():
            _RUNS[setup.variant.mode](setup, training, question)
    except (TargetError, NoAnswerError):  # the latter from an emulated device, of an operator that it cannot trace
        raise
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is an outcome, `exit()` too
        free = min(torch.cuda.mem_get_info()[0], question.allowed_bytes - torch.cuda.memory_reserved())
        end = _classified(
            setup,
            error,
            Evidence(free_bytes=max(0, free), capacity_bytes=question.allowed_bytes, allocator_ooms=training.ooms),
        )
        for link in walk_chain(error):
            traceback.clear_frames(link.__traceback__)
        return end
    return _TrialEnd(Outcome.FITS)


def _classified(setup: TrialSetup, error: BaseException, evidence: Evidence) -> _TrialEnd:
    outcome = classify(error, evidence).outcome
    if outcome is Outcome.FAILED:
        problem = step_failure(setup.target, error, _part_that_raised(error))
        return _TrialEnd(outcome, problem.message, problem)
    return _TrialEnd(outcome, str(error).strip())


_PARTS: Final = {
    checked_batch.__code__: "`make_batch`",
    Evaluator.run.__code__: "the evaluation",
    GenerationLoop.prefill.__code__: "the prefill",
    GenerationLoop.decode.__code__: "the decoding",
}


def _part_that_raised(error: BaseException) -> str:
    """Return which part of a trial called the user's code that raised."""
    running = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((_PARTS[code] for code in reversed(running) if code in _PARTS), "the training step")


def _train(setup: TrialSetup, training: _Training, question: RunTrial) -> None:
    if setup.places_model:
        setup.placement.place(setup.model, setup.device)
    optimizer = make_optimizer(setup.target, setup.model, setup.variant.optimizer)
    optimizer = setup.changes.optimizer(optimizer)
    training.optimizer_name = type(optimizer).__name__
    scaler = gradient_scaler(setup.variant)
    meter, batch, loss = training.meter, None, None
    between = None if setup.variant.evaluation is None or question.without_evaluation else _Between(setup, question)
    # An evaluation comes after the steps of a plain trial: before, it may give back the cache for which they ran out.
    training.first_steps = 0 if between is None else PLAIN_ITERATIONS - 1
    started, seeds = time.monotonic(), itertools.count(_first_seed(question))
    for step in itertools.count(1):
        training.step = step
        for micro_step in range(1, question.micro_steps + 1):
            training.fixed_bytes = _fixed_bytes((batch, loss))
            with meter.micro_phase(training.iteration, micro_step, PhaseName.FORWARD):
                if setup.changes.drops_leftovers:
                    batch = loss = None
                batch = place(checked_batch(setup, question.micro_batch, next(seeds)), setup.device)
                meter.placed(batch)
                loss = loss_of(setup, batch)
                meter.computed(loss)
            with meter.micro_phase(training.iteration, micro_step, PhaseName.BACKWARD):
                scaler.scale(loss / question.micro_steps).backward()  # type: ignore[no-untyped-call]
        with meter.micro_phase(training.iteration, question.micro_steps, PhaseName.OPTIMIZER):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        if between is not None and not training.ends and training.is_tight(question):
            training.first_steps = ANSWER_ITERATIONS - 1
        if step <= training.first_steps:  # growth counts from the step before the first evaluation on
            continue
        if _was_last(training, question, started):
            break
        if between is not None:
            between.evaluate(training)
    if setup.computes and loss is not None:
        training.loss_is_finite = bool(torch.isfinite(loss).item())


def _first_seed(question: RunTrial) -> int:
    """Return the seed of a trial's first batch, from which those of the others count on."""
    return question.draw << 20  # more batches than a trial has; NumPy takes seeds below 2**32


class _Between:
    """Evaluates between training steps, whose last batch and loss stay alive as a loop's variables do."""

    def __init__(self, setup: TrialSetup, question: RunTrial) -> None:
        self._setup = setup
        self._micro_batch = (setup.variant.evaluation and setup.variant.evaluation.micro_batch) or question.micro_batch
        self._evaluation = Evaluator(setup, without_graph=question.without_graph)
        self._first_seed = _first_seed(question)

    def evaluate(self, training: _Training) -> None:
        """Evaluate two batches, the second while the output of the first is alive."""
        if training.retries_of_training is None:
            training.retries_of_training = training.alloc_retries
        batch = output = None
        phase = training.meter.micro_phase(training.iteration, 1, PhaseName.EVALUATION)
        with evaluating(self._setup.model), phase:
            for seed in range(self._first_seed, self._first_seed + 2):
                batch = place(checked_batch(self._setup, self._micro_batch, seed), self._setup.device)
                training.meter.placed(batch)
                output = self._evaluation.run(batch)
            del batch, output
        training.builds_graph = self._evaluation.builds_graph


def _evaluate(setup: TrialSetup, training: _Training, question: RunTrial) -> None:
    """Evaluate batch after batch; as in a loop, the last one's output is alive while the next is evaluated."""
    if setup.places_model:
        setup.placement.place(setup.model, setup.device)
    evaluation = Evaluator(setup, without_graph=question.without_graph)
    meter, batch, output = training.meter, None, None
    started = time.monotonic()
    with evaluating(setup.model):
        for step in itertools.count(1):
            training.step, training.fixed_bytes = step, _fixed_bytes((batch, output))
            with meter.micro_phase(training.iteration, 1, PhaseName.FORWARD):
                batch = place(checked_batch(setup, question.micro_batch, _first_seed(question) + step), setup.device)
                meter.placed(batch)
                output = evaluation.run(batch)
            training.builds_graph = evaluation.builds_graph
            if _was_last(training, question, started):
                break


def _generate(setup: TrialSetup, training: _Training, question: RunTrial) -> None:
    """Generate for batch after batch, each with a cache of its own."""
    generation = setup.variant.generation
    if generation is None:
        raise RuntimeError("a variant that generates says how many tokens")
    if setup.places_model:
        setup.placement.place(setup.model, setup.device)
    loop = GenerationLoop(setup, generation, all_logits=question.all_logits)
    started = time.monotonic()
    with evaluating(setup.model), torch.no_grad():
        for step in itertools.count(1):
            training.step, training.fixed_bytes = step, _fixed_bytes(())
            with training.meter.micro_phase(training.iteration, 1, PhaseName.PREFILL):
                tokens = loop.prefill(question.micro_batch)
            with training.meter.micro_phase(training.iteration, 1, PhaseName.DECODE):
                loop.decode(tokens)
            training.generation = loop.end_batch(question.micro_batch)
            del tokens
            if _was_last(training, question, started):
                break


_RUNS: Final[Mapping[Mode, Callable[[TrialSetup, _Training, RunTrial], None]]] = {
    "train": _train,
    "eval": _evaluate,
    "generate": _generate,
}


def _fixed_bytes(temporary: object) -> int:
    """Return the bytes in tensors besides those of a nest."""
    held = (tensor.nbytes for tensor in tensors_in(temporary) if tensor.is_cuda)
    return torch.cuda.memory_allocated() - sum(held)


def _was_last(training: _Training, question: RunTrial, started: float) -> bool:
    """Note what a step has left behind, and return whether none has to follow it."""
    training.ends.append(kept_bytes(torch.cuda.memory_stats_as_nested_dict()))
    training.meter.step_ended()
    step = len(training.ends)
    seconds = _LONGEST_WATCH_SECONDS if step < MOST_ITERATIONS else _LONGER_WATCH_SECONDS
    is_long = step >= ANSWER_ITERATIONS and time.monotonic() - started > seconds
    return training.is_over(question) or (question.until_settled and is_long)


def _stat(name: str) -> int:
    return int(torch.cuda.memory_stats_as_nested_dict().get(name, 0))
