"""The sentences of a check's report: its sum, each entry, each limit, each figure that moved.

All text here is plain: no colour, no markup. Text that users control is made visible where it is part of a sentence.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.config.files import OWN, SHARED
from oomdoctor.engines.catalogue import find_card
from oomdoctor.errors import UsageError
from oomdoctor.report import frontier
from oomdoctor.report.buckets import turns
from oomdoctor.report.issues import target_file
from oomdoctor.report.plain_text import count, percent, visible
from oomdoctor.report.probe import sentences as probe_wording
from oomdoctor.request import command_line
from oomdoctor.results import FigureKind, LimitName, Verdict
from oomdoctor.units import exact_size, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from oomdoctor.results import CheckedEntry, CheckResult, Limit, Movement, ProbeResult


WORST_FIRST: Final = (Verdict.ERROR, Verdict.NO_ANSWER, Verdict.FAILED, Verdict.PASSED)
"""Verdicts in the order in which entries are shown and counted."""

VERDICT_WORDS: Final[Mapping[Verdict, str]] = MappingProxyType(
    {verdict: verdict.value.replace("_", " ") for verdict in Verdict}
)
"""Each verdict as a cell of a table."""

LIMIT_WORDS: Final[Mapping[LimitName, str]] = MappingProxyType(
    {
        LimitName.FITS: "No micro-batch fits",
        LimitName.MIN_MICRO_BATCH: "The largest micro-batch is smaller than asked for",
        LimitName.MAX_ACCUMULATION_STEPS: "The target batch takes more accumulation steps than asked for",
        LimitName.MAX_MEMORY: "Training takes more memory than asked for",
        LimitName.HEADROOM: "Training leaves less memory free than asked for",
        LimitName.VERIFY: "Accumulating does not train what the whole batch would",
        LimitName.AT_LEAST: "The largest value of the size is smaller than asked for",
        LimitName.BUCKETS: "One process cannot train on all buckets in turn",
        LimitName.MIN_SAMPLES_PER_SECOND: "The fastest micro-batch trains fewer samples in a second than asked for",
        LimitName.BASELINE: "The figures are worse than the baseline, or there is none",
    }
)
"""What it means that a limit is broken."""

_WORDS_OF_MANY: Final[Mapping[Verdict, str]] = MappingProxyType(
    {Verdict.ERROR: "in error", Verdict.NO_ANSWER: "without an answer", Verdict.FAILED: "failed"}
)
_LONGEST_NAME: Final = 200
_MOST_LINES: Final = 3
_PRESCRIBED: Final = (
    LimitName.FITS,
    LimitName.MIN_MICRO_BATCH,
    LimitName.MAX_ACCUMULATION_STEPS,
    LimitName.MAX_MEMORY,
)
"""Limits that a larger micro-batch, or less memory at one, keeps."""


# --- the sum ---------------------------------------------------------------------------------------------------------


def ordered(result: CheckResult) -> list[CheckedEntry]:
    """Return the entries, worst first; those that ended alike stay in their order."""
    return sorted(result.entries, key=lambda entry: WORST_FIRST.index(entry.verdict))


def headline(result: CheckResult) -> str:
    """Return the sum of the check, such as `2 of 5 entries did not pass: 1 in error, 1 failed`."""
    counted = Counter(entry.verdict for entry in result.entries)
    total, passed = len(result.entries), counted[Verdict.PASSED]
    if not total:
        return "there was no entry to check"
    if passed == total:
        return f"{count(total, 'entry passed', 'entries passed')}"
    parts = [f"{counted[verdict]} {words}" for verdict, words in _WORDS_OF_MANY.items() if counted[verdict]]
    return f"{total - passed} of {count(total, 'entry', 'entries')} did not pass: {', '.join(parts)}"


def advice(result: CheckResult, *, is_page: bool = False) -> Iterator[str]:
    """Yield the next steps, a sentence each; a page does not need the advice to make one."""
    entries, update = result.entries, update_command(result.configuration)
    if any(movement.is_beyond for entry in entries for movement in entry.movements):
        yield f"if these changes are intended, `{update}` writes them to the baseline; commit that file"
    if missing := [entry for entry in entries if entry.baseline == "missing"]:
        these = f"`{name(missing[0])}`" if len(missing) == 1 else f"{len(missing)} entries"
        yield f"`{update}` writes the baseline of {these}, which the file does not have yet"
    lines = [line for entry in entries if (line := prescription(entry, result.configuration))]
    yield from (f"`{line}` measures what makes it fit, and writes the patch" for line in lines[:_MOST_LINES])
    if not is_page and any(True for entry in entries for _ in broken(entry)):
        page = _check_command(result.configuration, "--format", "html", "-o", "check.html")
        yield f"`{page}` draws where the memory is"


def limit_help(result: CheckResult, limit: LimitName) -> str:
    """Return what to do where a limit is broken, a sentence."""
    if limit is LimitName.VERIFY:
        return "`oomdoctor verify` of the same target says what to change."
    if limit is LimitName.BASELINE:
        return f"Undo what grew, or take it for the baseline with `{update_command(result.configuration)}`."
    return (
        "`oomdoctor probe` of the same target shows where its memory is, `oomdoctor lint` what wastes it, and "
        "`oomdoctor prescribe` measures what frees it."
    )


def update_command(configuration: str) -> str:
    """Return the command that writes the baseline of a configuration anew."""
    return _check_command(configuration, "--update")


def _check_command(configuration: str, *options: str) -> str:
    """Return the command that checks the same configuration, which is named where it is not what is found unnamed."""
    path = PurePath(configuration)
    is_found = path.name in (OWN, SHARED) and set(path.parent.parts) <= {".."}
    config = () if is_found else ("--config", configuration)
    return visible(command_line(("oomdoctor", "check", *config, *options)), _LONGEST_NAME)


def updated(result: CheckResult) -> str | None:
    """Return what `--update` wrote; None where it wrote nothing."""
    written = sum(entry.baseline == "updated" for entry in result.entries)
    if not written:
        return None
    return (
        f"the baseline of {count(written, 'entry', 'entries')} is in `{visible(result.baseline or '-', _LONGEST_NAME)}`"
    )


# --- an entry --------------------------------------------------------------------------------------------------------


def name(entry: CheckedEntry) -> str:
    """Return an entry's name in one line."""
    return visible(entry.name, _LONGEST_NAME)


def card(entry: CheckedEntry) -> str:
    """Return the card as it was given, or the local GPU."""
    return "local GPU" if entry.gpu is None else visible(entry.gpu, _LONGEST_NAME)


def largest(entry: CheckedEntry) -> str:
    """Return the largest micro-batch that fits, or value of the searched size by name; `-` for no answer."""
    if entry.searched is not None and entry.searched.searched_size is not None:
        found = [str(cell.maximum) for cell in entry.searched.cells[:1]]
        return visible(" ".join([entry.searched.searched_size.name, *found]), _LONGEST_NAME)
    return "-" if entry.probe is None else str(entry.probe.micro_batch.maximum)


def steps(entry: CheckedEntry) -> str:
    """Return accumulation steps to the target batch; `-` where there is no plan."""
    plan = None if entry.probe is None else entry.probe.accumulation
    return "-" if plan is None else str(plan.steps)


def answer(entry: CheckedEntry) -> str:
    """Return the answer in one line; empty where there is none."""
    if entry.searched is not None:
        return visible(frontier.headline(entry.searched))
    if entry.buckets is not None:
        return visible(turns(entry.buckets))
    return "" if entry.probe is None else probe_wording.headline(entry.probe)


def broken(entry: CheckedEntry) -> Iterator[Limit]:
    """Return the limits that are not kept."""
    return (limit for limit in entry.limits if not limit.holds)


def warnings(entry: CheckedEntry) -> list[str]:
    """Return the warnings of an entry and of its probe."""
    return [*entry.warnings, *([] if entry.probe is None else probe_wording.warnings(entry.probe))]


def asked_anew(entry: CheckedEntry) -> str | None:
    """Return why the next check will take as long again; None where it need not."""
    return None if entry.not_kept is None else f"the next check asks anew: {visible(entry.not_kept, _LONGEST_NAME)}"


def prescription(entry: CheckedEntry, configuration: str) -> str | None:
    """Return the `oomdoctor prescribe` line that answers an entry's broken limit; None where no remedy is asked for.

    Args:
        entry: The entry; of a command, whose remedies are its own, and of what does not train there is no line.
        configuration: The configuration file, from whose folder the target is given.
    """
    probe = entry.probe
    limit = next((limit for limit in broken(entry) if limit.name in _PRESCRIBED), None)
    if limit is None or probe is None or probe.command_plan is not None or probe.mode != "train":
        return None
    is_file = target_file(entry.target) is not None
    target = str(PurePath(configuration).parent / entry.target) if is_file else entry.target
    plan, batch, is_memory = probe.accumulation, probe.target_samples, limit.name is LimitName.MAX_MEMORY
    world_size = 1 if plan is None else plan.world_size
    options: dict[str, object | None] = {
        "--gpu": entry.gpu,
        "--precision": None if probe.precision == "fp32" else probe.precision,
        "--target-batch": batch,
        "--world-size": world_size if world_size > 1 else None,
        "--capacity": exact_size(int(limit.asked)) if is_memory and limit.asked else _capacity(probe, entry.gpu),
        "--need": _needed(limit, entry, batch and -(-batch // world_size)),
    }
    given = (word for name, value in options.items() if value is not None for word in (name, str(value)))
    return visible(command_line(("oomdoctor", "prescribe", target, *given)), _LONGEST_NAME)


def _capacity(probe: ProbeResult, gpu: str | None) -> str | None:
    """Return the capacity that was asked for; None where it is the card's own, and for the GPU of this machine."""
    own_bytes = None
    if gpu is not None:
        with suppress(UsageError):  # a card of another release's catalogue
            own_bytes = find_card(gpu).capacity_bytes
    is_own = probe.device.kind == "cuda" or probe.capacity_bytes == own_bytes
    return None if is_own else exact_size(probe.capacity_bytes)


def _needed(limit: Limit, entry: CheckedEntry, batch: int | None) -> int | None:
    """Return the micro-batch with which a limit holds; None where no size tells."""
    if limit.name is LimitName.MAX_ACCUMULATION_STEPS:
        return -(-batch // int(limit.asked)) if batch and limit.asked else None
    if limit.name is LimitName.MAX_MEMORY:
        return entry.profiled_micro_batch
    return int(limit.asked or 1)


# --- what moved ------------------------------------------------------------------------------------------------------


def beyond(entry: CheckedEntry) -> list[Movement]:
    """Return the figures that are worse than the baseline by more than the tolerance."""
    return [movement for movement in entry.movements if movement.is_beyond]


def within(entry: CheckedEntry) -> list[Movement]:
    """Return the other figures that changed."""
    return [movement for movement in entry.movements if not movement.is_beyond]


def beyond_title(entry: CheckedEntry) -> str:
    """Return the title of the figures that fail; empty where the broken limit says so already."""
    if any(limit.name is LimitName.BASELINE for limit in broken(entry)):
        return ""
    return f"worse than the baseline by more than {percent(entry.tolerance)}"


def within_title(entry: CheckedEntry) -> str:
    """Return the title of the figures that changed and fail no limit."""
    if entry.baseline == "updated":
        return "changed, and is in the baseline now"
    return "also changed" if beyond(entry) else "changed since the baseline, but fails no limit"


def figure(movement: Movement, value: int | None) -> str:
    """Return a figure before or after, as samples or as a size; `-` where there is none."""
    if value is None:
        return "-"
    return str(value) if movement.kind is FigureKind.MICRO_BATCH else format_size(value)


def first(movements: Sequence[Movement], most: int) -> tuple[Sequence[Movement], str]:
    """Return the first of what moved, and a word about the others; empty where there are none."""
    more = len(movements) - most
    return movements[:most], f"and {more} more; `--json` has them" if more > 0 else ""
