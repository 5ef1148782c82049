"""Trials of one probe of a command, in the form that the search asks for them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final, Self

from oomdoctor.agent.messages import LEAST_GROWTH_BYTES
from oomdoctor.command.dependencies import CommandDependencies
from oomdoctor.command.fork_server import ForkServer, KeptForkServer
from oomdoctor.command.lone_rank import lone_words, share_of_command, sizes_of, steps_of
from oomdoctor.command.notes import Observations
from oomdoctor.command.outcome import BatchSizeCheck, ClassifiedTrial, classify_trial, one_step_error, unset_error
from oomdoctor.command.prediction import SimulatedCard, largest_simulated, read_allocations
from oomdoctor.command.remedies import applied_changes, remedy_settings
from oomdoctor.command.template import accumulates, edits_of, explained, fill_command
from oomdoctor.command.trial import EndedTrial, SocketDirectory, SpeculativeTrial, TrialStart, run_trial
from oomdoctor.command.trial_events import TrialEvents
from oomdoctor.engines.allocator.settings import rules_of, settings_from_environment
from oomdoctor.errors import OomdoctorError
from oomdoctor.progress import Progress, SilentProgress
from oomdoctor.results import Outcome
from oomdoctor.run.environment import with_agent
from oomdoctor.search.allocation_lines import TrialPlacement
from oomdoctor.search.growth import ANSWER_ITERATIONS, MOST_ITERATIONS, PLAIN_ITERATIONS, growth_of, outlasted
from oomdoctor.search.trial_source import TrialNotes, TrialProblem, TrialSource
from oomdoctor.target.literals import find_literals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.agent.allocator_blocks import AllocationTrace
    from oomdoctor.agent.messages import DeviceInfo, Measurements
    from oomdoctor.engines.choice import Engine
    from oomdoctor.remedies.file_edit import AppliedChange
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import Trial
    from oomdoctor.trial.process import CancelToken


_DROPPED: Final = ("OOMDOCTOR_RUN_", "OOMDOCTOR_TRIAL_", "OOMDOCTOR_FORK_")
_CORES: Final = os.cpu_count() or 1
_CORES_FOR_TWO: Final = 2


class CommandSupervisor(TrialSource):
    """One probe's trials of a command; use it as a context manager.

    Args:
        request: The question, with the command.
        engine: The engine that the trials run on.
        stop: Ends a wait from another thread.
        progress: Told of a trial that takes long; None for nobody.
        kept: A fork server that outlasts this probe, for those after it in the same environment; None for none.

    Attributes:
        observations: Observations of the trials besides their outcomes.
        literals: Literals that each trial sets in the command's files.
        uses: Dependencies of the command, where that was asked for.
        device: The device that CUDA showed the first trial.
        versions: Versions of Python, torch and CUDA in it, by name; `changes`: remedies that were applied in it.
        fork_reason: Reason why trials are not forked, or the proof that they may be; None before that was tried.
        capacity_bytes: Bytes that PyTorch may take; see `oomdoctor.search.probe_search` for this and the notes.
        notes: Notes of the trials for the result; nobody looks at a command's loss.
    """

    def __init__(
        self,
        request: ProbeRequest,
        engine: Engine,
        stop: CancelToken | None = None,
        progress: Progress | None = None,
        kept: KeptForkServer | None = None,
    ) -> None:
        self._request = request
        self._progress = SilentProgress() if progress is None else progress
        self._engine = engine
        self._stops = () if stop is None else (stop,)
        self._sockets = SocketDirectory()
        own = {name: value for name, value in engine.environment.items() if not name.startswith(_DROPPED)}
        self._environment = with_agent(own) | {"OOMDOCTOR_TRIAL_COUNT_STEPS": request.count_steps}
        self._words, variables = lone_words(request)
        self._environment |= variables | remedy_settings(request.variant)
        self.uses = CommandDependencies(self._sockets.path) if request.watched else None
        if self.uses is not None:
            self._environment |= self.uses.environment
        self.literals = find_literals(request.literals, request.directory)
        self._forks: ForkServer | None = None
        self._has_port = False
        self._speculative = SpeculativeTrial()
        self._batch_size_check = BatchSizeCheck(request.variant.searched)
        self._allocations: dict[int, AllocationTrace] = {}
        self._has_workspaces = False
        self._environment_at_torch: Mapping[str, str] = engine.environment
        self._count = 0
        self.observations = Observations()
        self.device: DeviceInfo | None = None
        self._starts_anew = False
        self.versions: dict[str, str] = {}
        self.changes: tuple[AppliedChange, ...] = ()
        self.fork_reason: str | None = None
        self.capacity_bytes = engine.card.capacity_bytes if engine.card else request.memory_bytes or 0
        self.notes = TrialNotes()
        self._kept = kept
        self._use_kept(own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def first(self, micro_batch: int, micro_steps: int) -> Trial:
        """Run the first trial, which shows the device and what a later one can be forked with.

        Raises:
            TargetError: The command cannot be probed.
            NoAnswerError: It took too long.
            KeyboardInterrupt: The stop was set.
        """
        may_fork = not self._request.fresh and self._forks is None
        start = self._start(micro_batch, micro_steps, 0, describe=may_fork)
        ended = self._end(start)
        self._learn(ended)
        self.changes = applied_changes(self._request.variant, ended.events)
        first = classify_trial(ended, micro_batch, self._lower_capacity(ended), self._steps(micro_steps)).trial
        if may_fork and first.outcome is not Outcome.FAILED:
            self._fork_from(ended, first, micro_steps)
        ended = self._grown(ended, micro_batch, micro_steps, self.capacity_bytes)
        classified = self._classified(ended, micro_batch, self.capacity_bytes)
        self._starts_anew = classified.problem is not None  # what is searched may be too large for the script
        if classified.problem is not None:
            if self._request.variant.searched is None:
                raise explained(classified.problem, self._request.command or ())
            self.notes.problem = TrialProblem.of(classified.problem)
        return classified.trial

    def run(self, micro_batch: int, *, micro_steps: int, allowed_bytes: int) -> Trial:
        """Run one trial, or take the speculative one.

        Raises:
            TargetError: The command does not heed the size that is searched.
            KeyboardInterrupt: The stop was set.
        """
        if self._starts_anew:
            return self.first(micro_batch, micro_steps)
        ended = self._speculative.take((micro_batch, micro_steps, allowed_bytes))
        if ended is None:
            self._begin_speculative(micro_batch, micro_steps, allowed_bytes)
            ended = self._end(self._start(micro_batch, micro_steps, allowed_bytes))
        ended = self._grown(ended, micro_batch, micro_steps, allowed_bytes)
        classified = self._classified(ended, micro_batch, allowed_bytes)
        if classified.problem is not None:
            self.notes.problem = TrialProblem.of(classified.problem)
        return classified.trial

    def run_within(self, micro_batch: int, *, micro_steps: int, allowed_bytes: int) -> Trial:
        """Run a size that fits with less memory; how that ends says nothing of the command.

        Raises:
            KeyboardInterrupt: The stop was set.
        """
        ended = self._end(self._start(micro_batch, micro_steps, allowed_bytes))
        return classify_trial(ended, micro_batch, allowed_bytes, self._request.steps).trial

    def outlast(self, micro_batch: int, *, micro_steps: int) -> None:
        """Note in which step a size runs out of memory, where memory goes on growing."""
        growth = self.notes.growth
        if growth is None or not growth.goes_on:
            return
        start = self._start(micro_batch, micro_steps, self.capacity_bytes, steps=ANSWER_ITERATIONS)
        most = _most_needy(ended := self._end(start))
        room = self.capacity_bytes - ((most.peak_allocated_bytes or 0) if most else 0)
        ends = most.step_ends if most else ()
        self.notes.growth = outlasted(growth, ends, micro_batch, room, ran_out=bool(ended.events.ooms))

    def predict_max(self, low: int, high: int, *, allowed_bytes: int, retries: bool) -> int | None:
        """Predict by a replay of earlier trials' allocations; None where no two of them are alike."""
        if self.device is None or len(self._allocations) < 2:  # noqa: PLR2004 - a line needs two points
            return None
        rules = rules_of(self.versions.get("torch", ""))
        try:
            settings = settings_from_environment(self._environment_at_torch, rules)
        except OomdoctorError:  # an allocator that is not simulated
            return None
        total, used = self.device.total_bytes, self.device.total_bytes - self.device.free_bytes
        card = SimulatedCard(total, used, min(allowed_bytes, self.capacity_bytes), settings, rules)
        placement = TrialPlacement.of(self._allocations, retries=retries, has_workspaces=self._has_workspaces)
        return None if placement is None else largest_simulated(placement, low, high, card)

    def forget(self) -> None:
        """Predict nothing more from the trials so far."""
        self._allocations.clear()

    def settle(self) -> None:
        """End a trial that nobody will ask for; all that was run is known then."""
        self._speculative.drop()

    def close(self) -> None:
        """End what still runs, and remove what is ours."""
        self._speculative.close()
        if self._forks is not None and (self._kept is None or self._kept.server is not self._forks):
            self._forks.close()
        self._sockets.close()

    # --- one trial ---------------------------------------------------------------------------------------------------

    def _steps(self, micro_steps: int, steps: int | None = None) -> int:
        """Return the steps of a trial as its processes count them."""
        is_by_backward = self._request.count_steps == "backward" and accumulates(self._request.templates)
        return (steps or self._request.steps) * (micro_steps if is_by_backward else 1)

    def _step_limits(self, micro_steps: int, steps: int | None) -> dict[str, str]:
        """Return the steps that a trial takes, and those that it takes at most, as the agent's settings.

        As long as nobody has seen memory grow, a trial in which it does goes on until that ends. Growth that has ended
        is waited for in each trial; a leak is not, since it would make of each size one that runs out.
        """
        growth, least = self.notes.growth, self._steps(micro_steps, steps)
        if growth is None:
            most = MOST_ITERATIONS
        elif growth.goes_on:
            most = least
        else:
            least = max(least, growth.iterations)
            most = max(least, ANSWER_ITERATIONS)
        return {"OOMDOCTOR_TRIAL_STEPS": str(least), "OOMDOCTOR_TRIAL_MOST_STEPS": str(most)}

    def _start(
        self,
        micro_batch: int,
        micro_steps: int,
        allowed_bytes: int,
        *,
        describe: bool = False,
        steps: int | None = None,
    ) -> TrialStart:
        self._count += 1
        request = self._request
        environment = {**self._environment, "OOMDOCTOR_RUN_MEMORY_BYTES": str(self._cap(allowed_bytes))}
        environment |= self._step_limits(micro_steps, steps)
        if self._engine.kind == "cuda":
            environment["OOMDOCTOR_RUN_CARD_BYTES"] = str(self._request.card_bytes or 0)
            environment["OOMDOCTOR_RUN_RESERVE_BYTES"] = str(self._request.reserve_bytes)
        if describe:
            environment["OOMDOCTOR_TRIAL_DESCRIBE"] = "1"
        if self._forks is not None:
            environment["OOMDOCTOR_FORK_SOCKET"] = str(self._forks.path)
        sizes = sizes_of(request, micro_batch, micro_steps)
        if self.literals:
            environment["OOMDOCTOR_TRIAL_LITERALS"] = json.dumps(edits_of(self.literals, sizes))
        return TrialStart(
            command=fill_command(self._words, sizes),
            directory=request.directory,
            environment=environment,
            sockets=self._sockets.path,
            name=f"trial-{self._count}",
            timeout_seconds=request.trial_timeout_seconds,
        )

    def _end(self, start: TrialStart, *stops: CancelToken) -> EndedTrial:
        events = TrialEvents()

        def tell(seconds: float) -> None:
            done = f"{events.done_steps} of {start.environment['OOMDOCTOR_TRIAL_STEPS']} steps"
            self._progress.stage(f"the trial has run for {seconds:.0f} s: {events.stages[-1][0]}, {done}")

        try:
            # One that runs beside the trial that was asked for has a stop of its own, and nobody waits for it.
            ended = run_trial(start, events, (*self._stops, *stops), None if stops else tell)
        finally:
            self.observations.written.update(events.written)  # also of a trial that nobody asks for, or that is stopped
        if self._forks is not None and self._engine.kind == "cuda":
            self._forks.wait_until_idle()  # on a real GPU the next trial would find its memory
        return ended

    def _cap(self, allowed_bytes: int) -> int:
        """Return the bytes that PyTorch has to be kept to; 0 where the device itself is asked about."""
        if 0 < allowed_bytes < self.capacity_bytes:
            return allowed_bytes
        cap = None if self._engine.kind == "null" else self._request.memory_bytes
        return cap - self._request.reserve_bytes if cap else 0

    def _grown(self, ended: EndedTrial, micro_batch: int, micro_steps: int, allowed_bytes: int) -> EndedTrial:
        """Judge how memory grew in a trial that went on for it; return the trial, or another where it ran out by that.

        What a leak needs in the end says nothing of the size: all trials take the plain steps then.
        """
        most = _most_needy(ended)
        if self.notes.growth is not None or most is None or len(most.step_ends) <= self._steps(micro_steps):
            return ended
        ran_out = bool(ended.events.ooms)
        growth = growth_of(most.step_ends, micro_batch, most.holder, ran_out=ran_out)
        is_leak = growth.goes_on and growth.bytes_a_step * len(most.step_ends) >= LEAST_GROWTH_BYTES
        if not is_leak and growth.iterations == PLAIN_ITERATIONS:
            return ended
        self.notes.growth = growth
        self._speculative.drop()
        self._allocations.clear()
        return self._end(self._start(micro_batch, micro_steps, allowed_bytes)) if is_leak else ended

    def _lower_capacity(self, ended: EndedTrial) -> int:
        """Keep to the part of the GPU's memory that the command itself allows PyTorch; return what may be taken."""
        for measured in ended.events.trainers():
            if self.device is not None and measured.memory_fraction < self.notes.memory_fraction:
                self.notes.memory_fraction = measured.memory_fraction
                own = int(measured.memory_fraction * self.device.total_bytes)
                self.capacity_bytes = min(self.capacity_bytes, own)
        return self.capacity_bytes

    def _classified(self, ended: EndedTrial, micro_batch: int, allowed_bytes: int) -> ClassifiedTrial:
        allowed_bytes = min(allowed_bytes, self._lower_capacity(ended))
        classified = classify_trial(ended, micro_batch, allowed_bytes, self._request.steps)
        if classified.trial.outcome is Outcome.FITS:
            problem = unset_error(self.literals, ended.events) or self._batch_size_check.problem_of(
                micro_batch, ended.events, classified.trial.peak_allocated_bytes
            )
            if problem is not None and self._request.variant.searched is not None:
                raise problem  # else it would pass for a limit of the command's own
            if problem is not None:
                classified = classified.with_problem(problem)
            if problem is None and self._request.variant.lone_rank is not None:
                problem = one_step_error(ended, self._request.steps)
                classified = classified if problem is None else classified.with_problem(problem)
            self._keep_allocations(ended, micro_batch)
        elif classified.trial.outcome is Outcome.OOM:
            peak_bytes = classified.trial.peak_allocated_bytes
            if ignored := self._batch_size_check.problem_out_of_memory(micro_batch, ended.events, peak_bytes):
                raise ignored
        for measured in ended.events.trainers():
            self.notes.add(measured)
        self.observations.take(ended.events, classified, micro_batch)
        return classified

    def _keep_allocations(self, ended: EndedTrial, micro_batch: int) -> None:
        """Keep what the process that needed most allocated."""
        most = _most_needy(ended)
        if most is not None and (trace := read_allocations(most.allocations)) is not None:
            self._allocations[micro_batch] = trace
            self._has_workspaces |= most.workspace_bytes > 0

    def _begin_speculative(self, below: int, steps: int, allowed_bytes: int) -> None:
        """Run the size above the one that was asked for beside it: it is what proves a maximum.

        Only on a null GPU, where two trials do not share memory, and forked, so that it costs no second import.
        """
        micro_batch, largest = below + 1, self._largest()
        is_cheap = self._forks is not None and self._engine.kind == "null" and _CORES >= _CORES_FOR_TWO
        if (
            not is_cheap
            or self._has_port
            or (largest is not None and micro_batch > largest)
            or allowed_bytes < self.capacity_bytes
        ):
            self._speculative.drop()
            return
        is_plain = steps < steps_of(self._request, below)
        size = (micro_batch, steps if is_plain else steps_of(self._request, micro_batch), allowed_bytes)
        start = self._start(*size)
        self._speculative.begin(size, lambda stop: self._end(start, stop))

    def _largest(self) -> int | None:
        """Return the largest size that is tried; None for no bound."""
        searched = self._request.variant.searched
        if searched is None:
            return share_of_command(self._request)
        return None if searched.up_to is None else searched.up_to // searched.multiple_of

    # --- what the first trial shows ----------------------------------------------------------------------------------

    def _learn(self, ended: EndedTrial) -> None:
        for pid, device in ended.events.devices.items():
            self.device = device
            started = ended.events.started.get(pid)
            versions = {} if started is None else {name: getattr(started, name) for name in ("python", "torch", "cuda")}
            self.versions = {name: version for name, version in versions.items() if version}
        if self.device is not None:
            free = self.device.free_bytes
            used, card = self.device.total_bytes - free, self._request.card_bytes
            capacity = min(free, self._request.memory_bytes or free, free if card is None else card - used)
            reserve = 0 if self._engine.card else self._request.reserve_bytes  # a simulated card has it already
            self.capacity_bytes = max(0, capacity - reserve)

    # --- forking -----------------------------------------------------------------------------------------------------

    def _use_kept(self, environment: Mapping[str, str]) -> None:
        """Fork trials from the server of an earlier probe, where that had this environment; else keep one for it."""
        kept = self._kept
        if kept is None or self._request.fresh:
            self._kept = None
        elif kept.server is None and not kept.environment:
            kept.environment = environment
        elif kept.server is not None and kept.environment == environment:
            self._forks, self._has_port = kept.server, kept.has_port
            self._environment_at_torch, self.fork_reason = kept.environment_at_torch, kept.reason
        else:
            self._kept = None

    def _fork_from(self, ended: EndedTrial, trial: Trial, micro_steps: int) -> None:
        """Start the fork server, and believe it once a forked trial has taken the same memory as the fresh one."""
        described = [measured.process for measured in ended.events.trainers() if measured.process]
        if described:
            self._environment_at_torch = described[0].environment_at_torch
        else:
            self.fork_reason = "each trial was started anew: the process that trains could not be described"
            return
        server = ForkServer(described[0], self._sockets.path if self._kept is None else self._kept.directory)
        if not server.wait(self._request.trial_timeout_seconds, self._stops):
            server.close()
            self.fork_reason = f"each trial was started anew: {server.reason}"
            return
        self._forks = server
        # Two launchers at once would want the same port.
        self._has_port = "MASTER_PORT" in described[0].environment
        again = self._end(self._start(trial.micro_batch, micro_steps, 0))
        forked = classify_trial(again, trial.micro_batch, trial.allowed_bytes, self._request.steps).trial
        took = [(one.outcome, one.peak_allocated_bytes, one.peak_reserved_bytes) for one in (trial, forked)]
        # A file that the server itself imported, as one of an installed package, has its own literals in a fork.
        if took[0] == took[1] and again.events.edited == ended.events.edited:
            self.fork_reason = (
                "forked from a process that has imported what the first trial had; at micro-batch "
                f"{trial.micro_batch} both ways took the same memory to the byte"
            )
            if (kept := self._kept) is not None:
                kept.server, kept.has_port, kept.reason = server, self._has_port, self.fork_reason
                kept.environment_at_torch = self._environment_at_torch
            return
        self._forks = None
        server.close()
        self.fork_reason = (
            "each trial was started anew: forked from a process that has imported torch, the first took other memory"
        )


def _most_needy(ended: EndedTrial) -> Measurements | None:
    """Return the last word of the process that needed most; None where none trained."""
    return max(ended.events.trainers(), key=lambda measured: measured.peak_allocated_bytes or 0, default=None)
