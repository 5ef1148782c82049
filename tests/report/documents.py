"""Documents for the tests of reports: a realistic one, its variations, and any that the types allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from oomdoctor.results import (
    Accumulation,
    Axis,
    Category,
    CategoryBytes,
    CommandPlan,
    Device,
    EnvironmentVariable,
    Guidance,
    MicroBatch,
    ModuleBytes,
    Outcome,
    Phase,
    PhaseMemory,
    PhaseName,
    ProbeDocument,
    ProbeResult,
    Reason,
    SizeThroughput,
    StepMemory,
    Throughput,
    TimelinePoint,
    Trial,
    UniformPlan,
    Variant,
)

MIB = 1024**2
CAPACITY_BYTES = 23_700 * MIB
OOM_TEXT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.92 GiB. GPU 0 has a total capacity of 23.64 GiB "
    "of which 1.41 GiB is free. Of the allocated memory 20.99 GiB is allocated by PyTorch\nTraceback follows"
)


def phases(scale: int) -> tuple[Phase, ...]:
    """Memory by phase whose activations grow with `scale`, in MiB."""
    rows = [
        (0, PhaseName.LOAD, 498, 475),
        (1, PhaseName.FORWARD, 475 + 1064 * scale, 475 + 1032 * scale),
        (1, PhaseName.BACKWARD, 524 + 1116 * scale, 962),
        (1, PhaseName.OPTIMIZER, 1925, 1436),
        (2, PhaseName.FORWARD, 1911 + 1064 * scale, 1911 + 1032 * scale),
        (2, PhaseName.BACKWARD, 1960 + 1116 * scale, 1911),
        (2, PhaseName.OPTIMIZER, 2386, 1436),
    ]
    return tuple(Phase(iteration, phase, peak * MIB, end * MIB) for iteration, phase, peak, end in rows)


def trial(micro_batch: int, outcome: Outcome = Outcome.FITS, **changes: Any) -> Trial:
    """A trial whose figures grow with its size; an OOM ends in backward of the second iteration."""
    ran = phases(micro_batch) if outcome is Outcome.FITS else phases(micro_batch)[:6]
    made = Trial(
        micro_batch=micro_batch,
        outcome=outcome,
        allowed_bytes=CAPACITY_BYTES,
        peak_allocated_bytes=min(CAPACITY_BYTES, max(phase.peak_allocated_bytes for phase in ran)),
        peak_reserved_bytes=min(CAPACITY_BYTES, max(phase.peak_allocated_bytes for phase in ran) + 218 * MIB),
        fixed_bytes=1911 * MIB if outcome is Outcome.FITS else None,
        seconds=0.15 + micro_batch / 100,
        phases=ran,
        error=None if outcome is Outcome.FITS else OOM_TEXT,
    )
    return replace(made, **changes)


def gpt2(**changes: Any) -> ProbeDocument:
    """GPT-2 on an RTX 4090: 19 fits, 20 runs out; `changes` replace fields of the result."""
    result = ProbeResult(
        target="gpt2",
        precision="bf16",
        optimizer="AdamW",
        micro_batch=MicroBatch(maximum=19, recommended=18, limited_by="memory"),
        accumulation=Accumulation(
            target_batch=256,
            world_size=1,
            steps=14,
            micro_batches=(19,) * 4 + (18,) * 10,
            effective_batch=256,
            uniform=UniformPlan(micro_batch=16, steps=16, effective_batch=256),
            fixed_size=UniformPlan(micro_batch=19, steps=14, effective_batch=266),
        ),
        capacity_bytes=CAPACITY_BYTES,
        headroom=0.05,
        weights_bytes=475 * MIB,
        device=Device("null", "NVIDIA GeForce RTX 4090", "8.9", 24_207 * MIB, context_bytes=507 * MIB),
        stable=True,
        trials=(
            trial(1),
            trial(19, alloc_retries=1),
            trial(20, Outcome.OOM, alloc_retries=2),
            trial(18, allowed_bytes=22_515 * MIB),
        ),
        phases=phases(19),
        reasons=(
            Reason("device", "a null GPU, since `--gpu rtx-4090` names a card that is not here"),
            Reason("context", "507 MiB, the figure of the catalogue for this card"),
            Reason("cudnn_workspace", "counted as 0: no measured figure yet"),
        ),
    )
    versions = {"oomdoctor": "0.1.0", "python": "3.11.9", "torch": "2.15.0+cu132", "cuda": "13.2"}
    document = ProbeDocument(command="probe", status="fits", exit_code=0, versions=versions, result=result)
    return replace(document, result=replace(result, **changes))


def timed() -> ProbeDocument:
    """GPT-2 on a GPU of the machine, which trains as fast with half of the largest micro-batch."""
    sizes = (
        SizeThroughput(19, 14, 41.25, (40.0, 42.5), 6, 23_600 * MIB),
        SizeThroughput(16, 16, 43.1, (42.6, 43.6), 24, 20_100 * MIB),
        SizeThroughput(8, 32, 43.0, (42.5, 43.5), 24, 11_900 * MIB),
        SizeThroughput(4, 64, 31.0, None, 3, 7_800 * MIB),
        SizeThroughput(2, 128, None, None, 0, ran_out=True),
    )
    plan = Accumulation(256, 1, 32, (8,) * 32, 256, UniformPlan(8, 32, 256), UniformPlan(8, 32, 256))
    return gpt2(throughput=Throughput(8, plan, sizes, 57, is_settled=False), target_samples=256)


def untimed() -> ProbeDocument:
    """The same without a GPU: exit code 3."""
    sizes = (
        SizeThroughput(19, 14, None, None, 0, 23_600 * MIB, flops=3 * 10**14, touched_bytes=900_000 * MIB),
        SizeThroughput(9, 29, None, None, 0, 12_600 * MIB),
    )
    found = Throughput(None, None, sizes, 0, is_settled=False, problem="no GPU runs the steps")
    return replace(gpt2(throughput=found), exit_code=3)


def command(**changes: Any) -> ProbeDocument:
    """A training command on the same card, which takes one size."""
    words = ("python", "train.py", "--name", "two words", "--batch-size", "{micro_batch}")
    fields: dict[str, Any] = {
        "target": "python train.py --name 'two words' --batch-size {micro_batch} --accum {accumulation_steps}",
        "precision": "precision of its own",
        "weights_bytes": None,
        "command_plan": CommandPlan(
            words=(*words, "--accum", "{accumulation_steps}"),
            run=("python", "train.py", "--name", "two words", "--batch-size", "16", "--accum", "16"),
            sizes=UniformPlan(micro_batch=16, steps=16, effective_batch=256),
        ),
    }
    return gpt2(**(fields | changes))


def nothing_fits(**changes: Any) -> ProbeDocument:
    """A model whose weights alone are larger than the card."""
    loading = (Phase(0, PhaseName.LOAD, 23_600 * MIB, 23_600 * MIB),)
    failed = trial(1, Outcome.OOM, phases=loading, peak_allocated_bytes=23_600 * MIB, peak_reserved_bytes=23_620 * MIB)
    fields: dict[str, Any] = {
        "micro_batch": MicroBatch(maximum=0, recommended=0, limited_by="memory"),
        "accumulation": None,
        "weights_bytes": 26_772 * MIB,
        "trials": (failed,),
        "phases": failed.phases,
    }
    return replace(gpt2(**(fields | changes)), status="nothing_fits")


# --- any document ----------------------------------------------------------------------------------------------------

_integers = st.integers(0, 2**63 - 1)
_small = st.integers(0, 5000)
texts = st.text(max_size=40) | st.sampled_from(
    [
        "[red]x[/red]",
        "a|b",
        "`code`",
        "<b>",
        "\x1b[31mred",
        "@someone",
        "two\nlines",
        ":tada:",
        "\ud800",
        "\u202eabc",
        "界" * 30,
        "x" * 5000,
        "<script>document.title = 1</script>",
        "<!--",
        "{{ 7 * 7 }}",
        "a\0b",
        "\"'",
    ]
)
_phases = st.lists(
    st.builds(Phase, st.integers(0, 3), st.sampled_from(PhaseName), _integers, _integers), max_size=4
).map(tuple)
_sizes = st.integers(0, 2**40)
_by_category = st.lists(_sizes, max_size=8).map(tuple)
# A phase and a point are parts of no decision, so that one of each is as good as many.
_modules = st.lists(
    st.builds(ModuleBytes, st.none() | texts, st.sampled_from(Category), _sizes, _small), max_size=3
).map(tuple)
step_memories = st.builds(
    StepMemory,
    micro_batch=_small,
    micro_steps=_small,
    peak_allocated_bytes=_sizes,
    peak_reserved_bytes=_sizes,
    peak_event=_small,
    peak_iteration=st.integers(0, 3),
    peak_phase=st.sampled_from(PhaseName),
    categories=st.lists(st.builds(CategoryBytes, st.sampled_from(Category), _sizes), max_size=3).map(tuple),
    modules=_modules,
    category_peaks=_modules,
    phases=st.lists(
        st.builds(
            PhaseMemory,
            st.integers(0, 3),
            _small,
            st.sampled_from(PhaseName),
            _small,
            _small,
            _by_category,
            _by_category,
        ),
        max_size=1,
    ).map(tuple),
    timeline=st.lists(st.builds(TimelinePoint, _small, st.none() | _small, _sizes, _by_category), max_size=1).map(
        tuple
    ),
)
_trials = st.builds(
    Trial,
    micro_batch=_small,
    outcome=st.sampled_from(Outcome),
    allowed_bytes=_integers,
    peak_allocated_bytes=st.none() | _integers,
    peak_reserved_bytes=st.none() | _integers,
    fixed_bytes=st.none() | _integers,
    alloc_retries=_small,
    swallowed_ooms=_small,
    seconds=st.floats(0, 1e6),
    phases=_phases,
    error=st.none() | texts,
)
_uniform_plans = st.builds(UniformPlan, _integers, _integers, _integers)
_accumulations = st.builds(
    Accumulation,
    target_batch=_integers,
    world_size=_integers,
    steps=_integers,
    micro_batches=st.lists(_integers, max_size=5).map(tuple),
    effective_batch=_integers,
    uniform=st.none() | _uniform_plans,
    fixed_size=_uniform_plans,
)
_words = st.lists(texts, max_size=4).map(tuple)
_variants = st.builds(
    Variant,
    precision=st.sampled_from(["fp32", "bf16", "fp16"]),
    optimizer=st.none() | texts,
    environment=st.lists(st.builds(EnvironmentVariable, texts, texts), max_size=2).map(tuple),
    transformations=_words,
    axes=st.lists(st.builds(Axis, texts, _integers), max_size=2).map(tuple),
)
any_probe_result = st.builds(
    ProbeResult,
    target=texts,
    precision=texts,
    optimizer=texts,
    micro_batch=st.builds(MicroBatch, _small, _small, st.sampled_from(["memory", "target", "limit"]), _small),
    accumulation=st.none() | _accumulations,
    capacity_bytes=_integers,
    headroom=st.floats(0, 1),
    weights_bytes=st.none() | _integers,
    device=st.builds(
        Device,
        st.sampled_from(["cuda", "null", "trace"]),
        texts,
        texts,
        _integers,
        st.none() | _integers,
        st.none() | _integers,
    ),
    stable=st.booleans(),
    trials=st.lists(_trials, max_size=4).map(tuple),
    phases=_phases,
    reasons=st.lists(st.builds(Reason, texts, texts), max_size=3).map(tuple),
    warnings=st.lists(texts, max_size=2).map(tuple),
    memory=st.none() | step_memories,
    command_plan=st.none() | st.builds(CommandPlan, _words, st.none() | _words, st.none() | _uniform_plans),
    guide=st.none() | st.builds(Guidance, st.lists(_integers, max_size=2).map(tuple), st.none() | texts),
    variant=st.none() | _variants,
)
any_probe_document = st.builds(
    ProbeDocument,
    command=st.just("probe"),
    status=st.sampled_from(["fits", "limited", "nothing_fits"]),
    exit_code=st.integers(0, 255),
    versions=st.dictionaries(texts, texts, max_size=3),
    result=any_probe_result,
)
