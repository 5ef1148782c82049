"""Prescribe: from the question to the document."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from oomdoctor import __version__
from oomdoctor.command.fork_server import KeptForkServer
from oomdoctor.engines.monitor import has_local_gpu
from oomdoctor.errors import EXIT_GATE, EXIT_INTERRUPTED, EXIT_OK, UsageError
from oomdoctor.multi_card.workers import WorkerPool
from oomdoctor.prescription.measuring import Measuring, order, unmeasured
from oomdoctor.prescription.patching import Prescription, has_patch, prescription_of, why_no_patch
from oomdoctor.prescription.search import Found, names_alone, search, with_front
from oomdoctor.remedies.catalogue import BY_ID
from oomdoctor.remedies.file_edit import code_by_place, code_of_program
from oomdoctor.remedies.trainers import framework_arguments
from oomdoctor.report.plain_text import count
from oomdoctor.request import ProbeRequest  # noqa: TC001
from oomdoctor.results.document import Interrupted, PrescribeDocument
from oomdoctor.results.prescribe import PrescribedCode, PrescribeResult
from oomdoctor.search.probe_search import share_of
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.parallel import default_jobs
from oomdoctor.trial.process import CancelToken
from oomdoctor.units import LARGEST_MICRO_BATCH, MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

    from oomdoctor.prescription.patching import PatchFile
    from oomdoctor.prescription.search import Keep
    from oomdoctor.progress import Progress
    from oomdoctor.remedies.file_edit import FileEdit
    from oomdoctor.results.prescribe import MeasuredRemedies, PrescribeStatus
    from oomdoctor.target.reference import Reference
    from oomdoctor.trial.answer import ProbeRun

DEFAULT_BUDGET: Final = 80
_RANKS: Final = 8
"""GPUs of the server that advice is given for."""
_INTERRUPTED: Final = "the measuring was interrupted before"
_NOT_WRITTEN: Final = "the measuring was interrupted"
_EXIT_CODES: Final = {"measured": EXIT_OK, "reached": EXIT_OK, "interrupted": EXIT_INTERRUPTED}
"""Exit codes by status; that of all others is 1."""
KEEPS: Final = ("same", "rounding", "any")


@dataclass(frozen=True, slots=True)
class PrescribeRequest:
    """One question to `oomdoctor prescribe`.

    Attributes:
        probe: The question about the target as it is.
        need: The micro-batch that is needed; None for as much as possible.
        keep: What combinations have to leave the same.
        without: Remedies to leave out.
        beside: Remedies to measure although they change what is trained on request only.
        budget: Most probes.
        jobs: Most probes at once; None for one a core.
        write: Where the patched file goes; None to write none.
        executor: Runs the probes of remedies elsewhere; None for this machine.
    """

    probe: ProbeRequest
    need: int | None = None
    keep: Keep = "rounding"
    without: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    budget: int = DEFAULT_BUDGET
    jobs: int | None = None
    write: PatchFile | None = None
    executor: Executor | None = None

    def check(self) -> None:
        """See that it can be asked.

        Raises:
            UsageError: It names no remedy that there is, or one both with and without, needs what is no size, or wants
                the patch of a command.
        """
        if self.probe.command is not None and self.write is not None:
            raise UsageError(
                "a command is given, and patches are made of files alone",
                hint="leave `--write` out; the code of what is prescribed is printed",
            )
        for name in (*self.without, *self.beside):
            if name not in BY_ID:
                raise UsageError(f"there is no remedy `{name}`", hint=_alike(name))
        if both := {*self.without} & {*self.beside}:
            raise UsageError(
                f"`{min(both)}` is asked for with `--with` and left out with `--without`", hint="drop one of the two"
            )
        if self.keep not in KEEPS:
            raise UsageError(f"`keep` is `{self.keep}`, which is none of its values", hint="one of same, rounding, any")
        self._check_sizes()
        if self.write is not None:
            self.write.check()

    def _check_sizes(self) -> None:
        target_batch = self.probe.target_batch
        if target_batch is not None:
            share_of(target_batch, self.probe.world_size)
        if self.need is None:
            return
        if self.need < 1:
            raise UsageError(f"`need` is {self.need}, and a micro-batch has 1 sample or more", hint="give a larger one")
        if target_batch is not None and self.need > target_batch:
            raise UsageError(
                f"a micro-batch of {self.need} is needed, and the target batch is {target_batch}",
                hint="raise the target batch, above which no micro-batch is tried",
            )
        if target_batch is None and self.need > LARGEST_MICRO_BATCH:
            raise UsageError(
                f"a micro-batch of {self.need} is needed, and none above {LARGEST_MICRO_BATCH} is tried",
                hint="ask for a smaller one",
            )


def _alike(name: str) -> str:
    """Return which remedies a misspelt name may mean, and which there are."""
    known = f"there are {', '.join(BY_ID)}"
    near = get_close_matches(name.strip().lower().replace("_", "-"), BY_ID, n=3)
    return f"did you mean {' or '.join(f'`{one}`' for one in near)}? {known}" if near else known


def prescribe(request: PrescribeRequest, progress: Progress) -> PrescribeDocument:
    """Measure every remedy on the target, and say which of them to take.

    Args:
        request: The question.
        progress: Told of each row.

    Raises:
        UsageError: The question contradicts itself, or the patched file cannot be written.
        TargetError: The user's file is at fault.
        NoAnswerError: No device, a crash, or a time limit.
        Interrupted: Somebody interrupted; it has the rows that were measured until then.
    """
    request.check()
    reference = None
    if request.probe.command is None:
        asked = request.probe
        reference = parse_reference(asked.target, directory=asked.directory, verb="prescribe", options=asked.options)
    if request.write is not None and reference is not None and not has_patch(reference):
        message, _, way = why_no_patch(reference).partition("; ")
        raise UsageError(message, hint=way or "leave `--write` out; the code of what is prescribed is printed")
    is_local = request.probe.gpu is None and has_local_gpu()
    jobs = 1 if is_local else request.jobs or default_jobs(len(BY_ID))
    # The last probe is that of the patched copy.
    budget = max(1, request.budget - 1) if has_patch(reference) else request.budget
    with WorkerPool(CancelToken()) as workers, closing(KeptForkServer()) as kept:
        measuring = Measuring(request.probe, progress, workers, jobs, budget, request.budget, request.executor, kept)
        try:
            found = _searched(request, measuring)
            prescription = prescription_of(measuring, found, reference, request.write)
        except KeyboardInterrupt as interrupt:
            if () not in measuring.rows:
                interrupt.add_note(measuring.state)
                raise
            found = None
    if found is None:  # raised here, since what each probe notes on the interrupt says nothing of the rows
        raise _interrupted(request, measuring)
    return _document(request, measuring, found, reference, prescription)


def _searched(request: PrescribeRequest, measuring: Measuring) -> Found:
    measuring.plain()
    return search(
        measuring.measure,
        measuring.rows[()],
        need=request.need,
        keep=request.keep,
        without=request.without,
        beside=request.beside,
        blocks=lambda names: max((change.total for change in measuring.runs[names].changes), default=0),
    )


def _interrupted(request: PrescribeRequest, measuring: Measuring) -> Interrupted:
    """Return an interrupt with what was measured, and with what was being measured."""
    alone = [(name,) for name in names_alone(request.without, request.beside)]
    rows = {names: unmeasured(names, "not_measured", _INTERRUPTED) for names in alone} | measuring.rows
    combined = [row for names, row in rows.items() if names and names not in alone]
    found = Found(tuple(rows[names] for names in alone), tuple(combined), None)
    ended = Interrupted(_document(request, measuring, found, None, Prescription(), is_whole=False))
    ended.add_note(measuring.state)
    return ended


def _document(  # noqa: PLR0913 - the parts of one
    request: PrescribeRequest,
    measuring: Measuring,
    found: Found,
    reference: Reference | None,
    prescription: Prescription,
    *,
    is_whole: bool = True,
) -> PrescribeDocument:
    chosen, first, plain = found.chosen, measuring.rows[()], measuring.runs[()]
    rows = with_front([first, *found.alone, *found.combined])
    alone = sorted(
        rows[1 : 1 + len(found.alone)], key=lambda row: (row.outcome == "measured", order(row)), reverse=True
    )
    edit = prescription.edit
    unwritten = _unwritten(request, found, prescription if is_whole else Prescription(unwritten=_NOT_WRITTEN))
    code = () if edit is None else _code(edit, reference, measuring.optimizer)
    if chosen is not None:
        source = program_source(request.probe, reference)
        code += tuple(PrescribedCode(*part) for part in framework_arguments(source, chosen.remedies))
    status = _status(request, first, chosen, is_written=unwritten is None) if is_whole else "interrupted"
    result = plain.result
    planned = None if chosen is None else measuring.runs[chosen.remedies].result
    # of what the accumulation steps are told of; the same of the model, and none of a plan that nobody is given
    warnings = result.warnings if planned is None else planned.warnings
    return PrescribeDocument(
        command="prescribe",
        status=status,
        exit_code=_EXIT_CODES.get(status, EXIT_GATE),
        versions={"oomdoctor": __version__, **plain.versions},
        result=PrescribeResult(
            target=request.probe.target,
            target_batch=request.probe.target_batch,
            world_size=request.probe.world_size,
            precision=request.probe.variant.precision,
            need=request.need,
            keep=request.keep,
            without=request.without,
            capacity_bytes=result.capacity_bytes,
            headroom=request.probe.headroom,
            device=result.device,
            plain=rows[0],
            alone=tuple(alone),
            combined=tuple(rows[1 + len(found.alone) :]),
            prescribed=next((row for row in rows if chosen and row.remedies == chosen.remedies), None),
            accumulation=None if planned is None else planned.accumulation,
            recommended_accumulation=None if planned is None else planned.recommended_accumulation,
            code=code,
            patch=prescription.patch,
            patch_problem=prescription.problem,
            probes=measuring.probes if is_whole else measuring.done,
            reasons=result.reasons,
            warnings=warnings if unwritten is None else (*warnings, unwritten),
            advice=tuple(_advice(request.probe, plain, first)),
            interrupted=None if is_whole else measuring.state,
        ),
    )


def _status(
    request: PrescribeRequest, plain: MeasuredRemedies, chosen: MeasuredRemedies | None, *, is_written: bool
) -> PrescribeStatus:
    reached = max(plain.maximum, chosen.maximum if chosen else 0)
    if reached < (request.need or 0):
        return "not_reached"
    if not reached:
        return "nothing_fits"
    if not is_written:
        return "not_written"
    return "measured" if request.need is None else "reached"


def _unwritten(request: PrescribeRequest, found: Found, prescription: Prescription) -> str | None:
    """Return that a file which was asked for was not written, and why; None where none was, or it was written."""
    patch = prescription.patch
    if request.write is None or (patch is not None and patch.written is not None):
        return None
    why = prescription.unwritten or prescription.problem
    if why is None:
        why = "nothing is prescribed" if found.chosen is None else "there is no proven patch"
    return f"nothing was written to `{request.write.path}`: {why}"


def _code(edit: FileEdit, reference: Reference | None, optimizer: str) -> tuple[PrescribedCode, ...]:
    if reference is None:
        return tuple(PrescribedCode(place, lines) for place, lines in code_of_program(edit))
    builder = reference.attribute or "build_model"
    return tuple(PrescribedCode(place, lines) for place, lines in code_by_place(edit, builder, optimizer))


def program_source(request: ProbeRequest, reference: Reference | None) -> str:
    """Return the source of the user's file, or of a command's program; nothing where there is none to read."""
    if reference is not None:
        path = reference.path
    else:
        path = next((word for word in request.command or () if word.endswith(".py")), None)
    try:
        return "" if path is None else (request.directory / path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _advice(request: ProbeRequest, plain: ProbeRun, row: MeasuredRemedies) -> Iterator[str]:
    """Yield what no worker can change by itself, each with the number that there is for it."""
    scores_bytes = 0 if plain.cost is None else plain.cost.score_bytes
    if plain.cost is not None and scores_bytes >= MIB:
        yield (
            'compute attention by `torch.nn.functional.scaled_dot_product_attention` (`attn_implementation="sdpa"` in '
            f"transformers), which never holds the scores: they are {format_size(scores_bytes)} a layer at micro-batch "
            f"{plain.cost.micro_batch}"
        )
    if row.fixed_bytes:
        held = format_size(row.fixed_bytes)
        less = format_size(row.fixed_bytes * (_RANKS - 1) // _RANKS)
        yield (
            f"split weights, gradients and optimizer state over {_RANKS} GPUs (`torch.distributed.fsdp.fully_shard`): "
            f"at most {less} of the {held} that stay between steps go from each, by division and not measured"
        )
    batch = request.target_batch
    if batch is not None and request.world_size == 1 and row.maximum and batch >= _RANKS:
        share = -(-batch // _RANKS)
        yield (
            f"share the target batch among {_RANKS} GPUs: {count(-(-share // row.maximum), 'accumulation step')} of "
            f"up to {count(min(share, row.maximum), 'sample')} on each (`--world-size {_RANKS}`)"
        )
    if row.bytes_per_sample is not None and row.bytes_per_sample > 0:
        where = " in `make_batch`" if request.command is None else ""
        yield (
            f"make sequences shorter or images smaller{where}: each sample takes "
            f"{format_size(row.bytes_per_sample)} as it is"
        )
