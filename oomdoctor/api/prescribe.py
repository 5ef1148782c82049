"""`oomdoctor prescribe` as a function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.option_values import by_parameters
from oomdoctor.prescription.patching import PatchFile
from oomdoctor.prescription.run import DEFAULT_BUDGET, PrescribeRequest
from oomdoctor.prescription.run import prescribe as run_prescribe
from oomdoctor.progress import SilentProgress
from oomdoctor.request import DEFAULT_HEADROOM, DEFAULT_TRIAL_TIMEOUT_SECONDS, build_request

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from oomdoctor.prescription.search import Keep
    from oomdoctor.progress import Progress
    from oomdoctor.request import EngineName
    from oomdoctor.results import Precision, PrescribeDocument


@by_parameters
def prescribe(  # noqa: PLR0913 - one parameter an option
    target: str | os.PathLike[str] | Sequence[str],
    *,
    target_batch: int | None = None,
    need: int | None = None,
    keep: Keep = "rounding",
    without: Sequence[str] = (),
    beside: Sequence[str] = (),
    budget: int = DEFAULT_BUDGET,
    jobs: int | None = None,
    write: str | os.PathLike[str] | None = None,
    force: bool = False,
    world_size: int = 1,
    gpu: str | None = None,
    device: int | str | None = None,
    memory: int | str | None = None,
    capacity: int | str | None = None,
    reserve: int | str | None = None,
    precision: Precision | None = None,
    optimizer: str | None = None,
    at: Mapping[str, int] | None = None,
    set: Sequence[str] = (),  # noqa: A002 - as the option is called
    steps: int | None = None,
    count_steps: str | None = None,
    headroom: float | str = DEFAULT_HEADROOM,
    engine: EngineName = "auto",
    trial_timeout: float = DEFAULT_TRIAL_TIMEOUT_SECONDS,
    progress: Progress | None = None,
) -> PrescribeDocument:
    """Measure what each remedy against running out of memory gains, and which of them reach what is needed.

        prescribe("model.py", gpu="rtx-4090", target_batch=256, need=64).result.prescribed

    Args:
        target: The file: `model.py`, `pkg.module`, `model.py:build_model(layers=2)`, or an example's name; or a
            command, as a list of words with `{micro_batch}` in one of them, or in `set`.
        target_batch: Samples per optimizer step over all devices; None for plain steps.
        need: Micro-batch that is needed; None for as large as can be.
        keep: What combinations have to keep: `same`, `rounding` or `any`.
        without: Ids of remedies to leave out.
        beside: Ids of remedies to measure, too, that train something else.
        budget: Most probes in all.
        jobs: Probes at once; None for one a core.
        write: Where the patched file goes, once it is proven; None to write none.
        force: Whether a file that exists there is overwritten, such as the target itself.
        world_size: Devices that share the target batch.
        gpu: Card to ask about; None for the GPU of this machine.
        device: Index or UUID of a GPU of this machine.
        memory: Memory of the card in all.
        capacity: What PyTorch may take; instead of `memory`.
        reserve: Memory that others hold; PyTorch may not take it.
        precision: Precision of a file as it is; None for fp32.
        optimizer: A `torch.optim` class, where the file builds none; None for AdamW.
        at: Sizes besides the batch, by name.
        set: Literals of a command's own files to set, such as `train.py:BATCH={micro_batch}`; no file is changed.
        steps: Optimizer steps after which a trial of a command is ended; None for 3.
        count_steps: What such a step is: `optimizer` or `backward`.
        headroom: Part of the capacity that the recommended size leaves free.
        engine: Where to run: `auto`, `cuda`, `null` or `trace`.
        trial_timeout: Longest time that a trial may take, in seconds.
        progress: Told of each row; None for silence.

    Returns:
        The document that the command writes with `--json`.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The user's file is at fault.
        NoAnswerError: No device, a crash, or a time limit.
        KeyboardInterrupt: Somebody interrupted; its `document`, where it has one, has what was measured until then.
    """
    request = build_request(
        target,
        target_batch=target_batch,
        world_size=world_size,
        precision=precision,
        optimizer=optimizer,
        headroom=str(headroom),
        gpu=gpu,
        device=device,
        memory=memory,
        capacity=capacity,
        reserve=reserve,
        engine=engine,
        trial_timeout=trial_timeout,
        literals=set,
        steps=steps,
        count_steps=count_steps,
        at=at or {},
        guide=False,
    )
    file = None if write is None else PatchFile(Path(write), force)
    question = PrescribeRequest(request, need, keep, tuple(without), tuple(beside), budget, jobs, file)
    return run_prescribe(question, progress or SilentProgress())
