"""Peak memory against micro-batch: dots, the line through those that fit, the capacity, and the answer."""

from __future__ import annotations

from dataclasses import replace

from documents import CAPACITY_BYTES, any_probe_document, gpt2, nothing_fits, trial
from hypothesis import given

from oomdoctor.report.charts.scales import SCALE
from oomdoctor.report.charts.trials import TrialsChart, chart
from oomdoctor.results import MicroBatch, Outcome, ProbeDocument, ProbeResult, Trial


def drawn(result: ProbeResult) -> TrialsChart:
    """The chart of a probe that has one."""
    found = chart(result)
    assert found is not None
    return found


def with_trials(*trials: Trial, maximum: int = 1) -> ProbeResult:
    """A probe with these trials."""
    return gpt2(trials=trials, micro_batch=MicroBatch(maximum, maximum, "memory")).result


def test_every_trial_is_a_dot() -> None:
    """Each trial lies where its size and its peak put it, with its outcome, and says both in words."""
    found = drawn(gpt2().result)
    assert [mark.outcome for mark in found.marks] == ["fits", "fits", "oom", "fits"]
    assert [mark.is_lowered for mark in found.marks] == [False, False, False, True]
    one, nineteen, twenty, eighteen = found.marks
    assert one.x < eighteen.x < nineteen.x < twenty.x
    assert one.y > eighteen.y > nineteen.y
    assert nineteen.title == "micro-batch 19: 22.83 GiB reserved at the peak"
    assert twenty.title.endswith("reserved at the peak, up to the failure")
    assert found.left_out == 0


def test_line_goes_through_those_that_fit() -> None:
    """The line has a corner at each size that fits, in order, and none at one that does not."""
    found = drawn(gpt2().result)
    one, nineteen, _, eighteen = found.marks
    assert found.line == " ".join(f"{mark.x:g},{mark.y:g}" for mark in (one, eighteen, nineteen))
    assert drawn(with_trials(trial(1))).line == ""
    assert drawn(nothing_fits().result).line == ""


def test_capacity_and_what_the_headroom_leaves() -> None:
    """The capacity lies above what fits, and the capacity less the headroom a little below it."""
    found = drawn(gpt2().result)
    assert found.capacity is not None
    assert found.spared is not None
    assert (found.capacity.label, found.spared.label) == ("capacity 23.14 GiB", "capacity less 5%")
    assert found.capacity.y < found.spared.y
    assert found.capacity.y < min(mark.y for mark in found.marks if mark.outcome is Outcome.FITS)
    assert drawn(gpt2(headroom=0.0).result).spared is None


def test_far_capacity_is_said() -> None:
    """A capacity that would flatten the trials is said and not drawn."""
    found = drawn(replace(with_trials(trial(1)), capacity_bytes=CAPACITY_BYTES * 100))
    assert (found.capacity, found.spared) == (None, None)
    assert found.beyond == "capacity 2314.45 GiB, far above"


def test_the_answer_is_named() -> None:
    """Maximum and recommended are named with their sizes; where nothing fits, nothing is."""
    assert [flag.label for flag in drawn(gpt2().result).flags] == ["maximum 19", "recommended 18"]
    assert drawn(nothing_fits().result).flags == ()


def test_scale_of_sizes() -> None:
    """Sizes are on a linear scale, unless that would crowd most of them at its beginning."""
    assert not drawn(gpt2().result).is_log
    doublings = [trial(2**power) for power in range(12)]
    found = drawn(with_trials(*doublings, maximum=2048))
    assert found.is_log
    gaps = {round(after.x - before.x) for before, after in zip(found.marks, found.marks[1:], strict=False)}
    assert max(gaps) - min(gaps) <= 1
    assert not drawn(with_trials(trial(0), *doublings)).is_log


def test_without_figures_there_is_no_chart() -> None:
    """A probe whose trials have no figures, or that has no trials, has no chart."""
    assert chart(with_trials(trial(1, peak_reserved_bytes=None))) is None
    assert chart(with_trials()) is None
    assert drawn(with_trials(trial(1), trial(2, peak_reserved_bytes=None))).left_out == 1


def test_endless_trials_are_thinned() -> None:
    """Of ten thousand trials a few hundred are drawn, those of the answer among them, and the rest is counted."""
    trials = [trial(size) for size in range(1, 10_001)]
    found = drawn(with_trials(*trials, maximum=9999))
    assert len(found.marks) <= 800
    assert any(mark.title.startswith("micro-batch 9999:") for mark in found.marks)
    assert found.left_out == 10_000 - len(found.marks)


@given(any_probe_document)
def test_everything_lies_in_the_plot(document: ProbeDocument) -> None:
    """Whatever a document has, no dot, line, label or flag is outside of the box."""
    found = chart(document.result)
    if found is None:
        return
    places = [*(mark.x for mark in found.marks), *(mark.y for mark in found.marks), *(flag.x for flag in found.flags)]
    places += [level.y for level in (*found.grid, *filter(None, [found.capacity, found.spared]))]
    places += [at for at, _ in found.counts]
    places += [float(number) for corner in found.line.split() for number in corner.split(",")]
    assert all(0 <= place <= SCALE for place in places)
