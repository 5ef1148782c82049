"""What a baseline keeps of a command, and what moved between two of them, without a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_figures import CIRCUMSTANCES, FIGURES, GIB, MIB

from oomdoctor.check.baseline.comparison import common_trials, compare, differences, not_compared
from oomdoctor.check.baseline.figures import Baseline, Figures, TrialFigures, figures_of
from oomdoctor.check.baseline.file import read_baseline, write_baseline
from oomdoctor.errors import UsageError
from oomdoctor.results import (
    CommandPlan,
    Device,
    MicroBatch,
    Outcome,
    Phase,
    PhaseName,
    ProbeResult,
    Trial,
)

PHASES = {
    "iteration 0 load": GIB,
    "iteration 1 forward": 3 * GIB,
    "iteration 1 backward": 4 * GIB,
    "iteration 1 optimizer": 3 * GIB,
    "iteration 2 forward": 5 * GIB,
    "iteration 2 backward": 6 * GIB,
    "iteration 2 optimizer": 5 * GIB,
}


def trial(size: int = 16, **changes: Any) -> TrialFigures:
    """Memory at a size."""
    return replace(TrialFigures(size, 2, 6 * GIB, 7 * GIB, PHASES), **changes)


def command(*trials: TrialFigures, maximum: int = 16) -> Figures:
    """A command's figures."""
    by_size = {one.micro_batch: one for one in trials}
    return Figures(CIRCUMSTANCES, maximum, "memory", 4, None, is_command=True, trials=by_size)


def grown(added: int, *names: str) -> TrialFigures:
    """The same memory with more in phases, all of them where none is named."""
    return trial(phases={name: size + added * (not names or name in names) for name, size in PHASES.items()})


def test_a_file_keeps_what_it_was_given(tmp_path: Path) -> None:
    """A command's figures come back as they were, beside a file's, and each has its own keys."""
    baseline = Baseline({"c": command(trial(4), trial()), "f": FIGURES, "nothing": command(maximum=0)})
    write_baseline(tmp_path / "b.json", baseline)
    assert read_baseline(tmp_path / "b.json") == baseline


@pytest.mark.parametrize("key", ["one", "", "1.5", "9" * 30, "²"])
def test_a_size_that_is_none_is_refused(tmp_path: Path, key: str) -> None:
    """The keys of `trials` are numbers; another is named with its line."""
    write_baseline(tmp_path / "b.json", Baseline({"c": command(trial())}))
    text = (tmp_path / "b.json").read_text()
    (tmp_path / "b.json").write_text(text.replace('"16": {', f'"{key}": {{'))
    with pytest.raises(UsageError, match="unknown key"):
        read_baseline(tmp_path / "b.json")


def test_growth_is_told_once_and_where_it_begins() -> None:
    """What stays in every later phase is one line for each kind of phase, the earliest first."""
    after = grown(GIB, *(name for name in PHASES if name > "iteration 1 o"))
    found = compare(command(trial()), command(replace(after, peak_allocated_bytes=7 * GIB)), tolerance=0.02)
    assert [movement.name for movement in found] == [
        "peak allocated",
        "iteration 1 optimizer",
        "iteration 2 forward",
        "iteration 2 backward",
    ]
    assert found[1].text == "iteration 1 optimizer +1.00 GiB at micro-batch 16, +33 %"
    assert all(movement.is_beyond for movement in found)


def test_growth_of_next_to_nothing_is_not_where_it_begins() -> None:
    """A longer batch is in the first phase with a small part of what it costs in the next."""
    sizes = {**PHASES, "iteration 0 load": GIB + 100 * MIB, "iteration 1 forward": 5 * GIB}
    found = compare(command(trial()), command(trial(phases=sizes)), tolerance=0.02)
    assert [movement.name for movement in found] == ["iteration 1 forward", "iteration 0 load"]


def test_a_phase_that_is_new_fails_nothing() -> None:
    """An evaluation that was added is told; where it needs more than training, the peak fails."""
    sizes = {**PHASES, "iteration 2 evaluation": 2 * GIB}
    (found,) = compare(command(trial()), command(trial(phases=sizes)), tolerance=0.02)
    assert (found.name, found.before, found.is_beyond) == ("iteration 2 evaluation", None, False)


def test_other_numbers_of_steps_are_no_growth() -> None:
    """Iterations that only one has are not compared."""
    sizes = {**PHASES, "iteration 3 forward": 5 * GIB}
    assert compare(command(trial()), command(trial(phases=sizes)), tolerance=0.02) == ()
    assert compare(command(trial(phases=sizes)), command(trial()), tolerance=0.02) == ()


def test_the_largest_size_that_both_have_is_compared() -> None:
    """Where the baseline's does not fit any more, the first one still shows which phase has grown."""
    before, after = command(trial(4), trial(16)), command(replace(grown(GIB), micro_batch=4), maximum=8)
    assert common_trials(before, after) == (trial(4), replace(grown(GIB), micro_batch=4))
    assert not_compared(before, after) is None
    names = [movement.name for movement in compare(before, after, tolerance=0.02)]
    assert names[:2] == ["maximum micro-batch", "iteration 0 load"]


def test_of_two_sizes_the_larger_is_compared() -> None:
    """Where both are there, the one that was asked for counts."""
    found = common_trials(command(trial(4), trial(16)), command(trial(4), grown(GIB)))
    assert found == (trial(16), grown(GIB))


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (command(trial()), FIGURES, "the baseline is of a command, and the entry is a file now"),
        (FIGURES, command(trial()), "the baseline is of a file, and the entry is a command now"),
        (command(trial()), command(trial(8)), "the baseline has memory at micro-batch 16, this check has none"),
        (command(trial()), command(trial(micro_steps=1)), "only the maximum is compared"),
    ],
)
def test_what_cannot_be_compared_is_said(before: Figures, after: Figures, sentence: str) -> None:
    """A check that could not look does not pass."""
    assert sentence in (not_compared(before, after) or "")
    assert differences(before, after) == ()


def test_a_file_and_a_command_have_nothing_in_common() -> None:
    """Not even the maximum is compared."""
    assert compare(replace(FIGURES, maximum=64), command(trial()), tolerance=0.02) == ()


def test_the_figures_are_those_of_the_first_trial_with_all_memory() -> None:
    """Two sizes are kept: the first that was tried, and the one that was asked for or else the largest."""
    result = probed(ran(4), ran(16, allowed_bytes=90, peak=1), ran(16), ran(16, peak=9), ran(32, outcome=Outcome.OOM))
    found = figures_of(result)
    assert found.is_command
    assert {size: one.peak_allocated_bytes for size, one in found.trials.items()} == {4: 5, 16: 5}
    assert found.trials[16].phases == {"iteration 1 forward": 7}
    assert found.profiled_micro_batch == 16
    assert set(figures_of(result, size=32).trials) == {4}


def ran(size: int, *, allowed_bytes: int = 100, peak: int = 5, outcome: Outcome = Outcome.FITS) -> Trial:
    """A trial whose one phase came twice."""
    phases = tuple(Phase(1, PhaseName.FORWARD, most, most) for most in (7, 6))
    return Trial(size, outcome, allowed_bytes, peak, peak, phases=phases)


def probed(*trials: Trial) -> ProbeResult:
    """What a probe of a command found."""
    return ProbeResult(
        target="train {micro_batch}",
        precision="its own",
        optimizer="AdamW",
        micro_batch=MicroBatch(16, 16, "memory"),
        accumulation=None,
        capacity_bytes=100,
        headroom=0.05,
        weights_bytes=None,
        device=Device("null", "NVIDIA T4", "7.5", 100),
        stable=True,
        trials=trials,
        phases=(),
        reasons=(),
        command_plan=CommandPlan(("train", "{micro_batch}", "{accumulation_steps}"), None),
    )
