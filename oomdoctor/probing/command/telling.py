"""What a probe of a command has to say beside its answer: where its numbers were had from, and what to beware of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oomdoctor.probing.command.judging import ENOUGH_STEPS
from oomdoctor.probing.command.template import ACCUMULATION, accumulates, near_misses
from oomdoctor.results import Outcome, Reason
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.probing.command.noting import Noted
    from oomdoctor.probing.command.supervisor import CommandSupervisor
    from oomdoctor.probing.request import ProbeRequest
    from oomdoctor.probing.search import SearchResult
    from oomdoctor.results import Trial

_MOST_PLACES: Final = 8
_ZEROS: Final = (
    "the command read data back from the null GPU, which is zeros: to log it is harmless, but memory that depends on "
    "it (boolean masks, `nonzero`, `.item()` in a condition) is not counted"
)


def reasons(request: ProbeRequest, supervisor: CommandSupervisor) -> tuple[Reason, ...]:
    """Where the numbers were had from."""
    found = [
        Reason("trials", f"the command itself, ended by force once it had taken {_times(request.steps)}"),
        Reason("starts", supervisor.forks_reason or "each trial was started anew, as `--fresh` says"),
    ]
    if accumulates(request.command or ()):
        text = f"`{ACCUMULATION}` was 2 in trials below the target, which has all the memory that more steps have"
        found.append(Reason("accumulation", text))
    if supervisor.zeros_read:
        found.append(Reason("zeros", _ZEROS))
    if left := [Path(path) for path in supervisor.noted.written if Path(path).exists()]:
        found.append(Reason("written", _paths(left, request.directory)))
    return tuple(found)


def warnings(request: ProbeRequest, supervisor: CommandSupervisor, search: SearchResult) -> tuple[str, ...]:
    """What the reader should know before relying on the answer."""
    noted = supervisor.noted
    return (*_of_command(request, noted, search), *_of_training(noted), *_of_evaluation(noted))


def _of_command(request: ProbeRequest, noted: Noted, search: SearchResult) -> Iterator[str]:
    share = request.target_batch // request.world_size
    for name, meant in near_misses(request.command or ()).items():
        yield f"`{name}` is no placeholder and was passed on as it is; `{meant}` would be filled in"
    if search.maximum < share and not accumulates(request.command or ()):
        yield (
            f"the command has no `{ACCUMULATION}`: each of its optimizer steps sees one micro-batch, not the target; "
            "where it accumulates otherwise, gradients stay alive during the forward, and training may need more"
        )
    if noted.processes > request.world_size:
        yield (
            f"{noted.processes} processes trained together, and the world size was taken to be {request.world_size}; "
            f"`--world-size {noted.processes}` shares the target batch between them"
        )
    if noted.failures:
        yield f"not all could be measured in the command's processes: {'; '.join(noted.failures)}"


def _of_training(noted: Noted) -> Iterator[str]:
    if noted.steps is not None and noted.steps < ENOUGH_STEPS:
        yield "the command ended after one optimizer step, and only the second has the peak that training has"
    if noted.idle_optimizers:
        yield (
            f"{noted.idle_optimizers} of the command's optimizers took no step in a trial, so what their steps need is "
            "not known; raise `--steps` until they do"
        )
    if noted.rising is not None:
        yield (
            f"at micro-batch {noted.rising} the last step of a trial needed more than the one before, and a later one "
            "may need more still: give it its longest batches first, or raise `--steps`"
        )
    if noted.untrained_bytes > 0:
        yield (
            f"{format_size(noted.untrained_bytes)} of parameters that the optimizer holds had no gradient in a trial; "
            "where they begin to train later, training needs more"
        )


def _of_evaluation(noted: Noted) -> Iterator[str]:
    if noted.oom_in_evaluation:
        sizes = ", ".join(map(str, sorted(set(noted.oom_in_evaluation))))
        yield f"at micro-batch {sizes} memory ran out in an evaluation, not in training"
    if noted.evaluation_bytes is not None:
        size, evaluation, training = noted.evaluation_bytes
        yield (
            f"evaluation needs more than training: {format_size(evaluation)} against {format_size(training)} at "
            f"micro-batch {size}"
        )


def failures(trials: Sequence[Trial]) -> Iterator[str]:
    """Say which trials failed for another reason than memory; those that the answer rests on did not."""
    for trial in trials:
        if trial.outcome is Outcome.FAILED:
            yield f"the command failed when it was run at micro-batch {trial.micro_batch}: {trial.error}"


def _times(steps: int) -> str:
    return "one optimizer step" if steps == 1 else f"{steps} optimizer steps"


def _paths(paths: list[Path], directory: Path) -> str:
    """What was written, by the entry of the working directory that it lies in; what is elsewhere, by its folder."""
    counts = Counter(_place(path, directory) for path in paths)
    counts = Counter({place: count for place, count in counts.items() if f"{place}/" not in counts})
    places = [f"`{place}`{f' ({count} paths)' if count > 1 else ''}" for place, count in counts.items()]
    rest = len(places) - _MOST_PLACES
    more = f" and {rest} more" if rest > 0 else ""
    return f"the command wrote {', '.join(places[:_MOST_PLACES])}{more} while it was tried"


def _place(path: Path, directory: Path) -> str:
    if path.is_relative_to(directory) and path != directory:
        first = path.relative_to(directory).parts[0]
        return first if first == str(path.relative_to(directory)) else f"{first}/"
    return f"{path.parent}/"
