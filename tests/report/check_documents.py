"""What a check found, for the tests of reports: realistic documents, hostile ones, and any that the types allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import documents
import frontier_documents
from documents import MIB, any_probe_result, gpt2, texts
from hypothesis import strategies as st
from memory_documents import step_memory

from oomdoctor.results import (
    Accumulation,
    Category,
    CheckDocument,
    CheckedEntry,
    CheckResult,
    FigureKind,
    Limit,
    LimitName,
    MicroBatch,
    ModuleBytes,
    Movement,
    Outcome,
    Problem,
    Reason,
    UniformPlan,
    Verdict,
)

# Few points, since golden files have them all.
_MEMORY = step_memory(micro_batch=8, phases=step_memory().phases[:2], timeline=step_memory().timeline[::80])

FITS = Limit(LimitName.FITS, 1, 6, holds=True, text="micro-batch 6 fits")
SMALL = Limit(LimitName.MIN_MICRO_BATCH, 8, 6, holds=False, text="micro-batch 6 fits, and at least 8 is asked for")
STEPS = Limit(LimitName.MAX_ACCUMULATION_STEPS, 64, 43, holds=True, text="43 accumulation steps, of at most 64")
MOVED = Limit(LimitName.BASELINE, None, None, holds=False, text="2 figures are worse than the baseline by more than 2%")
ACTIVATIONS = Movement(
    kind=FigureKind.CATEGORY,
    name="activations",
    before=675 * MIB,
    after=1087 * MIB,
    is_beyond=True,
    text="activations +412.00 MiB at micro-batch 8, +61 % in `encoder.layers.*`",
)
MAXIMUM = Movement(
    kind=FigureKind.MICRO_BATCH,
    name="maximum",
    before=9,
    after=6,
    is_beyond=True,
    text="maximum micro-batch 9 -> 6",
)
WEIGHTS = Movement(
    kind=FigureKind.CATEGORY,
    name="weights",
    before=475 * MIB,
    after=474 * MIB,
    is_beyond=False,
    text="weights -1.00 MiB",
)
LOST = Problem(
    message="`train/vision.py` has no `make_batch`",
    hint="add these lines:\n\n    def make_batch(batch_size):\n        ...",
    details="Traceback (most recent call last):\n  File \"train/vision.py\", line 3, in <module>\nNameError: name 'x'",
    exit_code=2,
)
TIMED_OUT = Problem("the trial at micro-batch 4 took longer than 300 s", "raise `trial-timeout`", None, 3)


def _plan(largest: int, steps: int) -> Accumulation:
    plan = UniformPlan(largest, steps, largest * steps)
    return Accumulation(256, 1, steps, (largest,) * steps, 256, plan, plan)


def broken(**changes: Any) -> CheckedEntry:
    """An entry whose limit is broken and whose baseline moved; `changes` replace its fields."""
    probe = gpt2(
        target="train/model.py:build_model(depth=24)",
        micro_batch=MicroBatch(6, 6, "memory"),
        accumulation=_plan(6, 43),
        trials=(documents.trial(6), documents.trial(7, Outcome.OOM)),
        memory=_MEMORY,
    ).result
    entry = CheckedEntry(
        name="pretrain on rtx-4090",
        target="train/model.py:build_model(depth=24)",
        gpu="rtx-4090",
        verdict=Verdict.FAILED,
        limits=(SMALL, MOVED, FITS, STEPS),
        movements=(ACTIVATIONS, MAXIMUM, WEIGHTS),
        baseline="compared",
        tolerance=0.02,
        profiled_micro_batch=8,
        probe=probe,
        problem=None,
    )
    return replace(entry, **changes)


def passed(**changes: Any) -> CheckedEntry:
    """An entry that keeps its limits and its baseline."""
    probe = gpt2(micro_batch=MicroBatch(32, 32, "target"), accumulation=_plan(32, 8)).result
    entry = broken(
        name="finetune",
        target="train.finetune:build",
        gpu="a100",
        verdict=Verdict.PASSED,
        limits=(replace(FITS, found=32, text="micro-batch 32 fits"),),
        movements=(),
        probe=probe,
    )
    return replace(entry, **changes)


def without_answer(problem: Problem = LOST, **changes: Any) -> CheckedEntry:
    """An entry that has a problem in place of an answer."""
    entry = passed(
        name="vision",
        target="train/vision.py",
        gpu=None,
        verdict=Verdict.ERROR if problem.exit_code == 2 else Verdict.NO_ANSWER,
        limits=(),
        profiled_micro_batch=None,
        probe=None,
        problem=problem,
    )
    return replace(entry, **changes)


def searched(**changes: Any) -> CheckedEntry:
    """An entry whose longest sequence is shorter than asked for."""
    found = frontier_documents.longest().result
    text = "`sequence_length` 3072 is the largest that fits at micro-batch 8; at least 4096 is asked for"
    limit = Limit(LimitName.AT_LEAST, 4096, 3072, holds=False, text=text)
    return replace(
        broken(name="longest", limits=(limit,), movements=(), baseline="none", probe=None), searched=found, **changes
    )


def turns(**changes: Any) -> CheckedEntry:
    """An entry whose buckets one process cannot train on in turn."""
    found = frontier_documents.bucketed().result.buckets
    text = "one process trains on 2 buckets in turn with at most 97 % of their samples"
    limit = Limit(LimitName.BUCKETS, 100, 97, holds=False, text=text)
    return replace(
        broken(name="in turn", limits=(limit,), movements=(), baseline="none", probe=None), buckets=found, **changes
    )


def check(*entries: CheckedEntry, **changes: Any) -> CheckDocument:
    """A check of these entries; without any, of one that passed, one that failed and one with a problem."""
    entries = entries or (passed(), broken(), without_answer())
    result = replace(CheckResult("oomdoctor.toml", "oomdoctor-baseline.json", entries), **changes)
    verdicts = {entry.verdict for entry in entries}
    worst = next(
        (verdict for verdict in (Verdict.ERROR, Verdict.NO_ANSWER, Verdict.FAILED) if verdict in verdicts), None
    )
    exits = {Verdict.ERROR: 2, Verdict.NO_ANSWER: 3, Verdict.FAILED: 1, None: 0}
    status: Any = "passed" if worst is None else worst.value
    return CheckDocument("check", status, exits[worst], gpt2().versions, result)


def many(count: int) -> CheckDocument:
    """So many entries, every third of which failed."""
    kinds = (broken(), passed(), passed())
    return check(*(replace(kinds[number % 3], name=f"entry {number}") for number in range(count)))


def endless(count: int) -> CheckDocument:
    """One entry with so many limits and so many movements."""
    return check(broken(limits=(SMALL,) * count, movements=(ACTIVATIONS, WEIGHTS) * (count // 2)))


def filled_with(text: str) -> CheckDocument:
    """The sample with `text` in each place that a configuration, a target or a saved document controls."""
    probe = broken().probe
    assert probe is not None
    plain_probe = replace(probe, memory=None, trials=probe.trials[1:])
    hostile_probe = replace(
        plain_probe,
        target=text,
        precision=text,
        optimizer=text,
        device=replace(probe.device, name=text),
        reasons=(Reason(text, text),),
        warnings=(text,),
        memory=replace(_MEMORY, modules=(ModuleBytes(text, Category.WEIGHTS, 1, 1),), category_peaks=()),
    )
    limits = tuple(replace(limit, text=text) for limit in (SMALL, MOVED, FITS))
    movements = tuple(replace(movement, name=text, text=text) for movement in (ACTIVATIONS, MAXIMUM, WEIGHTS))
    said: dict[str, Any] = {"name": text, "target": text, "gpu": text, "warnings": (text,)}
    entries = (
        passed(**said, movements=movements[2:], probe=plain_probe),
        broken(**said, limits=limits, movements=movements, probe=hostile_probe),
        broken(**said, limits=limits, movements=(), baseline="missing", probe=plain_probe),
        without_answer(Problem(text, text, text, 2), **said),
        replace(searched(**said), searched=frontier_documents.filled_with(text).result),
        replace(turns(**said), buckets=frontier_documents.filled_with(text).result.buckets),
    )
    document = check(*entries, configuration=text, baseline=text)
    return replace(document, versions={text: text})


_numbers = st.integers(0, 10**6)
_limits = st.builds(
    Limit,
    name=st.sampled_from(LimitName),
    asked=st.none() | _numbers | st.floats(0, 1),
    found=st.none() | _numbers | st.floats(0, 1),
    holds=st.booleans(),
    text=texts,
)
_movements = st.builds(
    Movement,
    kind=st.sampled_from(FigureKind),
    name=texts,
    before=st.none() | _numbers,
    after=st.none() | _numbers,
    is_beyond=st.booleans(),
    text=texts,
)
_entries = st.builds(
    CheckedEntry,
    name=texts,
    target=texts,
    gpu=st.none() | texts,
    verdict=st.sampled_from(Verdict),
    limits=st.lists(_limits, max_size=3).map(tuple),
    movements=st.lists(_movements, max_size=3).map(tuple),
    baseline=st.sampled_from(["none", "missing", "compared", "updated"]),
    tolerance=st.floats(0, 2),
    profiled_micro_batch=st.none() | _numbers,
    probe=st.none() | any_probe_result,
    problem=st.none() | st.builds(Problem, texts, st.none() | texts, st.none() | texts, st.integers(0, 255)),
    warnings=st.lists(texts, max_size=2).map(tuple),
    searched=st.none() | texts.map(lambda text: frontier_documents.filled_with(text).result),
    buckets=st.none() | texts.map(lambda text: frontier_documents.filled_with(text).result.buckets),
)
any_check = st.builds(
    CheckDocument,
    command=st.just("check"),
    status=st.sampled_from(["passed", "failed", "error", "no_answer"]),
    exit_code=st.integers(0, 255),
    versions=st.dictionaries(texts, texts, max_size=2),
    result=st.builds(CheckResult, texts, st.none() | texts, st.lists(_entries, max_size=2).map(tuple)),
)
