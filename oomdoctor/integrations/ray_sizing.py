"""Sizes asked about in a Ray cluster: each question once, by a process of the node where it was asked first.

A ledger, an actor beside the driver, knows all questions and their answers. It has one sizer a node: an actor at
`num_gpus=0` whose probes run on a null GPU, in workers forked from one process that has imported torch. What runs on a
node that dies is asked about anew on another.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from oomdoctor.errors import NoAnswerError, OomdoctorError
from oomdoctor.integrations.sizing import Sizer

if TYPE_CHECKING:
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import ProbeDocument

Answer: TypeAlias = "ProbeDocument | OomdoctorError"

_OWN_DIRECTORY: Final = Path()
"""Directory of a question where each node has the job's files in a place of its own."""
_MOST_ASKERS: Final = 1000
"""Trials that may wait for the ledger at once."""
_MOST_PROBES: Final = 8
"""Probes of a node at once; each holds a model in the host's memory."""
_MOST_DEATHS: Final = 3
"""Sizers that may die over one question: a node that is lost takes one, a probe that ends its node takes each."""


class ClusterSizer:
    """Asks each question once in the cluster; it can be pickled, and goes with the last process that holds it.

    Ray is started where it is not, as Ray's own calls do. Targets are looked for in the `working_dir` of the job's
    runtime environment, which travels to every node; a job without one has the driver's directory on every node.
    """

    def __init__(self) -> None:
        if not ray.is_initialized():
            ray.init()
        context = ray.get_runtime_context()
        self._directory = _OWN_DIRECTORY if context.runtime_env.get("working_dir") else Path.cwd()
        beside = NodeAffinitySchedulingStrategy(context.get_node_id(), soft=True)
        self._ledger = _LEDGER.options(scheduling_strategy=beside).remote()

    def ask(self, request: ProbeRequest) -> ProbeDocument:
        """Return the answer to a question, whose directory is passed over.

        Raises:
            OomdoctorError: There is none; it is asked anew the next time.
        """
        node = ray.get_runtime_context().get_node_id()
        answer: Answer = ray.get(self._ledger.ask.remote(replace(request, directory=self._directory), node))
        if isinstance(answer, OomdoctorError):
            raise answer
        return answer

    def probes(self) -> int:
        """Return how many questions were probed so far."""
        return int(ray.get(self._ledger.probes.remote()))


class _Ledger:
    """Every question and its answer, or the probe that is finding it."""

    def __init__(self) -> None:
        self._answers: dict[ProbeRequest, asyncio.Future[Answer]] = {}
        self._sizers: dict[str, Any] = {}
        self._probes = 0

    async def ask(self, request: ProbeRequest, node: str) -> Answer:
        """Return the answer to a question.

        Args:
            request: The question.
            node: Where to probe, if nobody has asked before.
        """
        if request not in self._answers:
            self._answers[request] = asyncio.ensure_future(self._probed(request, node))
        finding = self._answers[request]
        try:
            # Another who waits for the same answer shall have it also where this one's call is cancelled.
            return await asyncio.shield(finding)
        finally:
            if finding.done() and not _has_answer(finding) and self._answers.get(request) is finding:
                del self._answers[request]  # a trial that Ray begins again asks anew

    async def probes(self) -> int:
        """Return how many probes were begun."""
        return self._probes

    async def _probed(self, request: ProbeRequest, node: str) -> Answer:
        for _ in range(_MOST_DEATHS):
            sizer = self._sizer(node)
            self._probes += 1
            try:
                answer: Answer = await sizer.ask.remote(request)
            except RayActorError:
                if self._sizers.get(node) is sizer:
                    del self._sizers[node]
            else:
                return answer
        return NoAnswerError(
            f"the process that probed `{request.target}` in the cluster died {_MOST_DEATHS} times",
            hint="Ray's logs say why; where it was killed for the host's memory, run fewer trials at once",
        )

    def _sizer(self, node: str) -> Any:  # noqa: ANN401 - Ray makes its class
        if node not in self._sizers:
            there = NodeAffinitySchedulingStrategy(node, soft=True)  # another node's, where this one was lost
            self._sizers[node] = _SIZER.options(scheduling_strategy=there).remote()
        return self._sizers[node]


def _has_answer(finding: asyncio.Future[Answer]) -> bool:
    failed = finding.cancelled() or finding.exception() is not None
    return not failed and not isinstance(finding.result(), OomdoctorError)


class _NodeSizer:
    """Probes what the trials of its node ask about."""

    def __init__(self) -> None:
        self._sizer = Sizer()

    def ask(self, request: ProbeRequest) -> Answer:
        """Return the answer to a question."""
        try:
            return self._sizer.ask(replace(request, directory=request.directory.resolve()))
        except OomdoctorError as error:
            return error


_LEDGER: Final = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=_MOST_ASKERS)(_Ledger)
_SIZER: Final = ray.remote(num_cpus=0, max_concurrency=_MOST_PROBES)(_NodeSizer)
