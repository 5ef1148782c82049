"""Probe one target at every combination of sizes besides the batch, several at once."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oomdoctor import __version__
from oomdoctor.errors import EXIT_GATE, EXIT_OK, EXIT_USAGE, OomdoctorError, TargetError, UsageError
from oomdoctor.multi_card.buckets import check_buckets, find_buckets
from oomdoctor.multi_card.pool import PooledProbe, StagedProgress, probe_all
from oomdoctor.request import command_line
from oomdoctor.results import Axis
from oomdoctor.results.document import FrontierDocument
from oomdoctor.results.frontier import FrontierCell, FrontierResult
from oomdoctor.search.probe_search import limit_notes
from oomdoctor.trial.answer import ProbeRun
from oomdoctor.trial.parallel import default_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from oomdoctor.multi_card.pool import Answer
    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import BucketFormat, Buckets, SearchedSize

_MOST_CELLS = 200


@dataclass(frozen=True, slots=True)
class FrontierRequest:
    """One question about several sizes.

    Attributes:
        build: Makes the question, given the sizes of a cell by name as `at`.
        given: Sizes that every cell has.
        over: Values of each size that is varied, by name; none to ask about one cell.
        searched: The size that is searched, at its micro-batch; None to search the micro-batch.
        jobs: Most probes at once; None for one a core.
        buckets: The tool whose buckets the cells are to be; None for no buckets.
        executor: Runs the probes elsewhere; None for this machine.
        command: The command that is asked about, as it was given, with placeholders; None for a file.
    """

    build: Callable[..., ProbeRequest]
    given: Mapping[str, int]
    over: Mapping[str, Sequence[int]]
    searched: SearchedSize | None = None
    jobs: int | None = None
    buckets: BucketFormat | None = None
    executor: Executor | None = None
    command: Sequence[str] | None = None

    def command_line(self) -> str | None:
        """Return the command in one line, with the sizes that every cell has; None for a file."""
        if self.command is None:
            return None
        # A size that only a literal in the command's files has leaves the words as they are.
        words = list(self.command)
        for name, size in self.given.items():
            words = [word.replace(f"{{{name}}}", str(size)) for word in words]
        return command_line(words)


def find_frontier(request: FrontierRequest, progress: Progress) -> FrontierDocument:
    """Probe every cell.

    Args:
        request: The question.
        progress: Told of each cell.

    Raises:
        UsageError: The question contradicts itself, or has too many cells.
        TargetError: The user's file is at fault in every cell.
        NoAnswerError: No device, or no cell has an answer.
    """
    asked = questions(request)
    grid = [sizes for sizes, _ in asked]
    if request.buckets is not None:
        check_buckets(asked[0][1], request.buckets, tuple(request.over), is_searched=request.searched is not None)
    cases = [PooledProbe(named(sizes), replace(question, profiles=False, guide=False)) for sizes, question in asked]
    jobs = request.jobs or default_jobs(len(cases))
    answers = probe_all(cases, StagedProgress(progress, len(cases)), jobs=jobs, executor=request.executor)
    runs = [answer for answer in answers if isinstance(answer, ProbeRun)]
    errors = [answer for answer in answers if isinstance(answer, OomdoctorError)]
    # A size that a model cannot have is a cell's; what every cell says is the target's, and so is what is no target's.
    for error in errors:
        if not runs or not isinstance(error, TargetError):
            raise error
    cells = tuple(_cell(request, sizes, answer) for sizes, answer in zip(grid, answers, strict=True))
    form = request.buckets
    buckets = None if form is None else find_buckets(cases[0].request, form, cells, progress)
    return _document(cases[0].request, request, cells, runs[-1], buckets)


def searched_result(asked: ProbeRequest, run: ProbeRun) -> FrontierResult:
    """Return the answer to a question whose searched size is not the micro-batch: a frontier of one cell."""
    request = FrontierRequest(lambda **_: asked, {}, {}, asked.variant.searched)
    return _document(asked, request, (_cell(request, {}, run),), run, None).result


def combinations(request: FrontierRequest) -> list[dict[str, int]]:
    """Return the sizes of each cell by name, the last fastest; one without any where none is varied.

    Raises:
        UsageError: A size is asked about twice, or there are too many cells.
    """
    _check_names(request)
    grid = [dict(zip(request.over, sizes, strict=True)) for sizes in itertools.product(*request.over.values())]
    if len(grid) > _MOST_CELLS:
        raise UsageError(f"{len(grid)} cells are asked about", hint=f"ask about {_MOST_CELLS} at most at once")
    return grid


def questions(request: FrontierRequest) -> list[tuple[dict[str, int], ProbeRequest]]:
    """Return the sizes of each cell, and its question.

    Raises:
        UsageError: The question contradicts itself, or has too many cells.
    """
    grid = combinations(request)
    return [(sizes, request.build(at={**request.given, **sizes}, searched=request.searched)) for sizes in grid]


def named(sizes: Mapping[str, int]) -> str:
    """Return what to call a cell."""
    return ", ".join(f"{name} {size}" for name, size in sizes.items()) or "as it is"


def _check_names(request: FrontierRequest) -> None:
    searched = [] if request.searched is None else [request.searched.name]
    names = [*request.given, *request.over, *searched]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(
            f"`{twice[0]}` is asked about twice", hint="give it with one of `--at`, `--over` and `--largest`"
        )


def _cell(request: FrontierRequest, sizes: Mapping[str, int], answer: Answer) -> FrontierCell:
    axes = tuple(Axis(name, size) for name, size in sizes.items())
    if isinstance(answer, OomdoctorError):
        return FrontierCell(axes, 0, 0, "unknown", 0, None, 0, problem=answer.message)
    result, searched = answer.result, request.searched
    found = result.micro_batch
    unit = 1 if searched is None else searched.multiple_of
    samples = found.maximum if searched is None else searched.micro_batch
    others = list(sizes.values()) if searched is None else [*sizes.values(), found.maximum * unit]
    return FrontierCell(
        sizes=axes,
        maximum=found.maximum * unit,
        recommended=found.recommended * unit,
        limited_by=found.limited_by if result.trials else "model",
        elements=samples * math.prod(others) if found.maximum else 0,
        accumulation=result.accumulation,
        trials=len(result.trials),
        notes=result.warnings if searched is None else tuple(limit_notes(result.trials, found.limited_by, searched)),
        evaluation=result.evaluation,
    )


def _document(
    asked: ProbeRequest,
    request: FrontierRequest,
    cells: tuple[FrontierCell, ...],
    last: ProbeRun,
    buckets: Buckets | None,
) -> FrontierDocument:
    result = last.result
    fits = any(cell.maximum for cell in cells)
    given = tuple(axis for axis in asked.variant.axes if axis.name not in request.over)
    # As of a check: where not everything could be asked, the rest says less than it seems to.
    is_whole = all(cell.problem is None for cell in cells)
    return FrontierDocument(
        command="frontier",
        status="incomplete" if not is_whole else "measured" if fits else "nothing_fits",
        exit_code=EXIT_USAGE if not is_whole else EXIT_OK if fits else EXIT_GATE,
        versions={"oomdoctor": __version__, **last.versions},
        result=FrontierResult(
            target=request.command_line() or result.target,
            axes=tuple(request.over),
            searched_size=request.searched,
            target_batch=asked.target_batch,
            world_size=asked.world_size,
            precision=result.precision,
            optimizer=result.optimizer,
            headroom=result.headroom,
            capacity_bytes=result.capacity_bytes,
            device=result.device,
            cells=cells,
            reasons=result.reasons,
            notes=tuple(_surprises(request.over, cells)),
            buckets=buckets,
            mode=asked.variant.mode,
            variant=replace(asked.variant, axes=given),
        ),
    )


def _surprises(over: Mapping[str, Sequence[int]], cells: Sequence[FrontierCell]) -> Iterator[str]:
    """Yield each pair of cells that differ in one size, of which the smaller fits less."""
    by_sizes = {tuple(axis.size for axis in cell.sizes): cell for cell in cells if cell.problem is None}
    for place, (name, values) in enumerate(over.items()):
        for smaller, larger in itertools.pairwise(sorted(set(values))):
            for sizes, cell in by_sizes.items():
                other = by_sizes.get((*sizes[:place], larger, *sizes[place + 1 :]))
                if sizes[place] == smaller and other is not None and cell.maximum < other.maximum:
                    yield f"{name} {smaller} needs more than {larger}: {cell.maximum} fits, and {other.maximum} there"
