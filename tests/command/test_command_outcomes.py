"""Single trials of real scripts, forked from one process that has imported torch: how each ends and what it showed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_running import MEMORY_BYTES, Forks, small_copy

from oomdoctor.command.outcome import SWALLOWED, BatchSizeCheck, classify_trial
from oomdoctor.errors import NoAnswerError, TargetError
from oomdoctor.results import Outcome

pytestmark = pytest.mark.null_gpu

# Shows what a forked program finds, and leaves with a status of its own.
_LOOKS_AROUND = """
import os, sys
print(repr(sys.stdin.read()), os.getcwd(), sys.argv[1:])
sys.exit(3)
"""

_ENDS_AFTER_A_STEP = """
import os, sys
import torch
from tiny import build_model, loss_of, make_batch

model = build_model().cuda()
loss_of(model, make_batch(2)).backward()
torch.optim.AdamW(model.parameters()).step()
exec(sys.argv[1])
"""

_FEW_SAMPLES = """
import sys
import torch
from tiny import WIDTH, build_model, loss_of
from torch.utils.data import DataLoader

model = build_model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
while True:
    for batch in DataLoader(torch.randn(10, 4, WIDTH), batch_size=int(sys.argv[2])):
        loss_of(model, batch.cuda()).backward()
        optimizer.step()
"""

_EVALUATES_MUCH = """
import sys
import torch
from tiny import build_model, loss_of, make_batch

model = build_model().cuda().eval()
with torch.no_grad():
    model(make_batch(24))
model.train()
optimizer = torch.optim.AdamW(model.parameters())
while True:
    loss_of(model, make_batch(int(sys.argv[2]))).backward()
    optimizer.step()
"""

# Every nth iteration the second optimizer steps, on a batch four times as large; 0 for never.
_STEPS_RARELY = """
import sys
import torch
from tiny import build_model, loss_of, make_batch

first, second = build_model().cuda(), build_model().cuda()
often, rarely = (torch.optim.AdamW(model.parameters()) for model in (first, second))
every, iteration = int(sys.argv[1]), 0
while True:
    iteration += 1
    loss_of(first, make_batch(2)).backward()
    often.step()
    if every and iteration % every == 0:
        loss_of(second, make_batch(8)).backward()
        rarely.step()
"""

# Keeps so many MiB of each step.
_KEEPS = """
import sys
import torch
from tiny import build_model, loss_of, make_batch

model, kept = build_model().cuda(), []
optimizer = torch.optim.AdamW(model.parameters())
while True:
    loss_of(model, make_batch(2)).backward()
    optimizer.step()
    kept.append(torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device="cuda"))
"""

_WRITTEN_HERE = {
    "keeps.py": _KEEPS,
    "steps_rarely.py": _STEPS_RARELY,
    "looks_around.py": _LOOKS_AROUND,
    "ends.py": _ENDS_AFTER_A_STEP,
    "few_samples.py": _FEW_SAMPLES,
    "evaluates_much.py": _EVALUATES_MUCH,
}


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """A process to fork from, in a directory of its own."""
    directory = small_copy(tmp_path_factory.mktemp("scripts"))
    for name, text in _WRITTEN_HERE.items():
        (directory / name).write_text(text)
    with Forks(directory) as found:
        yield found


def _peak(forks: Forks, *words: str, steps: int = 3) -> int:
    trial = forks.classified(*words, steps=steps).trial
    assert trial.outcome is Outcome.FITS, trial.error
    assert trial.peak_allocated_bytes is not None
    return trial.peak_allocated_bytes


def test_a_forked_trial_is_the_fresh_one(forks: Forks) -> None:
    """A forked trial takes the same memory in the same phases as one whose Python imported torch itself."""
    fresh = classify_trial(forks.first, 0, MEMORY_BYTES, 3).trial
    forked = forks.classified("plain_loop.py").trial

    assert fresh.outcome is forked.outcome is Outcome.FITS
    assert forked.phases == fresh.phases
    assert [phase.iteration for phase in forked.phases] == [0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert (forked.peak_allocated_bytes, forked.peak_reserved_bytes, forked.fixed_bytes) == (
        fresh.peak_allocated_bytes,
        fresh.peak_reserved_bytes,
        fresh.fixed_bytes,
    )


def test_a_trial_ends_after_as_many_steps_as_were_asked_for(forks: Forks) -> None:
    """Optimizer steps are counted, not micro-batches: with two of these to a step, two steps are two."""
    ended = forks.trial("plain_loop.py", "--grad-accum", "2", steps=2)

    assert ended.events.done_steps == 2
    assert ended.return_code is None
    assert forks.trial("plain_loop.py", steps=5).events.done_steps == 5


def test_a_trial_whose_memory_still_grows_goes_on(forks: Forks) -> None:
    """A script that keeps memory of each step is tried for more steps, until it is seen whether that ends, and why."""
    assert forks.classified("keeps.py", "40").trial.outcome is Outcome.OOM
    assert forks.trial("keeps.py", "2").events.done_steps == 8
    assert forks.trial("keeps.py", "0").events.done_steps == 3
    assert forks.trial("keeps.py", "40", steps=1).events.done_steps == 1
    longer = forks.trial("keeps.py", "2", OOMDOCTOR_TRIAL_MOST_STEPS="12").events
    assert longer.done_steps == 12
    assert longer.trainers()[0].holder == "`kept` (keeps.py:11)"


def test_accumulated_gradients_are_counted(forks: Forks) -> None:
    """Two micro-batches to a step keep gradients alive in the second forward, by the bytes of the gradients."""
    gradients = forks.trial("plain_loop.py").events.trainers()[0].gradient_bytes

    assert _peak(forks, "plain_loop.py", "--grad-accum", "2") - _peak(forks, "plain_loop.py") >= gradients // 2 > 0


def test_an_oom_that_the_script_survives_is_swallowed(forks: Forks) -> None:
    """A script that halves its batch is ended at its first step with less, and the size has run out."""
    classified = forks.classified("halving.py", "--batch-size", "64")

    assert (classified.trial.outcome, classified.trial.error) == (Outcome.OOM, SWALLOWED)
    assert classified.trial.swallowed_ooms > 0


def test_an_oom_that_the_script_answers_with_a_status_is_one(forks: Forks) -> None:
    """A script that catches the error and leaves has run out of memory, whatever it says."""
    trial = forks.classified("exits_after_oom.py", "--batch-size", "64").trial

    assert (trial.outcome, trial.swallowed_ooms) == (Outcome.OOM, 0)
    assert "out of memory" in (trial.error or "")


def test_an_oom_has_its_phases(forks: Forks) -> None:
    """Where an OOM ends the script, memory by phase goes up to the failure."""
    trial = forks.classified("plain_loop.py", "--batch-size", "40").trial

    assert trial.outcome is Outcome.OOM
    assert "Tried to allocate" in (trial.error or "")
    assert [(phase.iteration, phase.phase) for phase in trial.phases] == [(0, "load"), (1, "forward")]
    assert trial.phases[-1].peak_allocated_bytes == trial.peak_allocated_bytes


def test_both_optimizers_of_a_gan_take_part(forks: Forks) -> None:
    """Three steps of a GAN show as much memory as twelve: both optimizers have their state by then."""
    assert _peak(forks, "gan.py", "--batch-size", "2") == _peak(forks, "gan.py", "--batch-size", "2", steps=12)


def test_an_optimizer_that_steps_rarely_is_waited_for(forks: Forks) -> None:
    """An optimizer that steps in every fifth iteration, and needs most then, is part of a trial of three steps."""
    assert _peak(forks, "steps_rarely.py", "5") == _peak(forks, "steps_rarely.py", "1") > _peak(forks, "plain_loop.py")


def test_an_optimizer_that_never_steps_is_noted(forks: Forks) -> None:
    """An optimizer that was made and did not step holds a trial up for a while, and is observations."""
    (trainer,) = forks.trial("steps_rarely.py", "0").events.trainers()

    assert (trainer.ending, trainer.steps, trainer.idle_optimizers) == ("steps", 3, 1)


def test_a_script_without_an_optimizer_of_torch_is_told_at_once(forks: Forks) -> None:
    """Hand-written SGD trains for ever, and no optimizer was made: the trial ends and names the option."""
    classified = forks.classified("by_hand.py")

    assert "made no optimizer of `torch.optim`" in (classified.trial.error or "")
    assert classified.problem is not None
    assert "`--count-steps backward`" in (classified.problem.hint or "")


def test_a_short_script_without_an_optimizer_of_torch_is_told_at_its_end(forks: Forks) -> None:
    """Hand-written SGD of one step is told once it has ended; where it ends with an exit code, it is told that."""
    short, failed = (forks.classified("by_hand.py", "--steps", "1", "--status", status) for status in ("0", "3"))

    assert "ran 1 backward pass and made no optimizer of `torch.optim`" in (short.trial.error or "")
    assert short.problem is not None
    assert "`--count-steps backward`" in (short.problem.hint or "")
    assert "exit code 3 before its first optimizer step" in (failed.trial.error or "")


def test_backward_passes_are_counted_where_that_was_asked_for(forks: Forks) -> None:
    """Three backward passes end the trial of hand-written SGD, with the memory of each."""
    ended = forks.trial("by_hand.py", OOMDOCTOR_TRIAL_COUNT_STEPS="backward")
    classified = classify_trial(ended, 0, MEMORY_BYTES, 3)

    assert ended.events.done_steps == 3
    assert classified.trial.outcome is Outcome.FITS
    assert [phase.iteration for phase in classified.trial.phases if phase.phase == "backward"] == [1, 2, 3]


def test_optimizers_take_part_where_backward_passes_are_counted(forks: Forks) -> None:
    """Steps of an optimizer are not those that are counted then, and it is not said to be idle."""
    (trainer,) = forks.trial("plain_loop.py", OOMDOCTOR_TRIAL_COUNT_STEPS="backward").events.trainers()

    assert (trainer.steps, trainer.idle_optimizers, trainer.optimizer) == (3, 0, "AdamW")


def test_a_backward_that_runs_out_is_no_step(forks: Forks) -> None:
    """Where backward passes are counted, the one that memory ran out in is none, and no code caught its error."""
    ended = forks.trial("by_hand.py", "--batch-size", "21", OOMDOCTOR_TRIAL_COUNT_STEPS="backward")
    trial = classify_trial(ended, 21, MEMORY_BYTES, 3).trial

    assert ended.events.ooms[0].phase == "backward"
    assert (trial.outcome, ended.events.done_steps) == (Outcome.OOM, 0)
    assert trial.error != SWALLOWED


def test_what_a_gradient_scaler_skips_is_no_step(forks: Forks) -> None:
    """Of four iterations the first two overflow: two optimizer steps are counted."""
    words = ("--device", "cpu", "--batch-size", "1", "--overflow", "2", "--steps", "4")
    ended = forks.trial("fp16_scaler.py", *words, steps=4)

    assert ended.return_code == 0
    assert ended.events.done_steps == 2


def test_a_gradient_scaler_trains(forks: Forks) -> None:
    """Half precision with a scaler fits, in less memory than full precision takes."""
    assert _peak(forks, "fp16_scaler.py") < _peak(forks, "plain_loop.py")


def test_an_evaluation_that_needs_more_is_told_apart(forks: Forks) -> None:
    """An evaluation before training has a phase and a peak of its own."""
    measured = forks.trial("evaluates_first.py", "--batch-size", "1", "--eval-batch-size", "16").events.trainers()[0]

    assert measured.evaluation_peak_bytes > measured.training_peak_bytes > 0
    assert "evaluation" in [phase.phase for phase in measured.phases]


def test_an_evaluation_that_runs_out_is_told_apart(forks: Forks) -> None:
    """Where an evaluation runs out of memory, it was not training."""
    classified = forks.classified("evaluates_first.py", "--batch-size", "1")

    assert classified.trial.outcome is Outcome.OOM
    assert classified.in_evaluation
    assert not forks.classified("plain_loop.py", "--batch-size", "40").in_evaluation


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_training_in_a_child_is_found(forks: Forks, method: str) -> None:
    """A process that multiprocessing starts is the one that trains, and takes what the script itself would."""
    classified = forks.classified("in_a_child.py", "--start-method", method)

    assert classified.trial.outcome is Outcome.FITS, classified.trial.error
    assert classified.trial.peak_allocated_bytes == _peak(forks, "halving.py")


def test_workers_of_a_data_loader_are_no_ranks(forks: Forks) -> None:
    """Worker processes load and do not train: one process did, and its batch is the one that was seen."""
    ended = forks.trial("loader_workers.py", "--batch-size", "6")

    assert (ended.events.world_size, len(ended.events.trainers())) == (1, 1)
    assert [batch.shapes[0][0] for batch in ended.events.batches.values()] == [6]
    assert classify_trial(ended, 6, MEMORY_BYTES, 3).trial.outcome is Outcome.FITS


def test_a_package_is_run_as_a_module(forks: Forks) -> None:
    """`python -m` trains as a script does."""
    assert _peak(forks, "-m", "trainer_package", "--batch-size", "4") > 2**20


def test_a_script_that_resets_its_peaks_hides_nothing(forks: Forks) -> None:
    """Peak statistics that the script resets are the same as those of a script that does not."""
    assert _peak(forks, "resets_peaks.py") == _peak(forks, "halving.py")


def test_ten_megabytes_of_output_do_not_matter(forks: Forks) -> None:
    """A script that prints a lot is not held up, and the end of it is kept."""
    ended = forks.trial("talkative.py")

    assert classify_trial(ended, 8, MEMORY_BYTES, 3).trial.outcome is Outcome.FITS
    assert ended.tail is not None
    assert len(ended.tail) < 5000


def test_the_end_of_a_trial_is_none_that_the_script_sees(forks: Forks) -> None:
    """No `atexit`, `finally` or handler of the script runs, and what it wrote until then is there and is told."""
    ended = forks.trial("writes_files.py", "--output", "ended")
    output = forks.directory / "ended"

    assert {path.name for path in output.iterdir()} == {"log.txt", "checkpoint.pt"}
    assert (output / "log.txt").read_text() == "step 0\nstep 1\n"
    assert {str(output), str(output / "log.txt"), str(output / "checkpoint.pt")} <= set(ended.events.written)
    assert all(Path(path).parent in (forks.directory, output) for path in ended.events.written)


def test_files_come_and_go_in_the_working_directory(forks: Forks) -> None:
    """What a script makes, renames and deletes is as it left it, and what it made is told."""
    before = set(forks.directory.iterdir())
    ended = forks.trial("changes_files.py")
    made = {forks.directory / name for name in ("cache", "config.json")}

    assert set(forks.directory.iterdir()) - before == made
    assert (forks.directory / "cache/tokens/part-0.bin").stat().st_size == 1000
    assert {str(path) for path in made} <= set(ended.events.written)


def test_a_command_finds_its_directory_and_no_input(forks: Forks) -> None:
    """A script runs in the user's directory with its own arguments, and its standard input is empty."""
    classified = forks.classified("looks_around.py", "a b", "*", "$HOME", "{}")

    assert classified.problem is not None
    assert classified.problem.message == "the command ended with exit code 3 before its first optimizer step"
    assert classified.problem.hint == "start it without oomdoctor, and see that it comes to a step of its optimizer"
    assert f"'' {forks.directory} ['a b', '*', '$HOME', '{{}}']" in (classified.problem.details or "")


@pytest.mark.parametrize(
    ("statement", "how"),
    [
        ("sys.exit(4)", "exit code 4"),
        ("os._exit(5)", "exit code 5"),
        ("os.kill(os.getpid(), 11)", "signal 11"),
        ("raise KeyboardInterrupt", ""),
        ("raise ValueError('no more data')", "no more data"),
    ],
)
def test_a_bad_end_after_a_step_is_a_failure(forks: Forks, statement: str, how: str) -> None:
    """A status, a crash or an error after a step is never taken for a size that fits, nor for an OOM."""
    classified = forks.classified("ends.py", statement)

    assert classified.trial.outcome is Outcome.FAILED
    assert how in (classified.trial.error or "")


def test_a_good_end_after_a_step_fits(forks: Forks) -> None:
    """A script that ends well before it has taken all steps fits, with the steps that it took."""
    ended = forks.trial("ends.py", "pass")

    assert (ended.return_code, ended.events.done_steps) == (0, 1)
    assert classify_trial(ended, 2, MEMORY_BYTES, 3).trial.outcome is Outcome.FITS


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("never_steps.py --forward-only", "never took an optimizer step"),
        ("never_steps.py", "ran 5 backward passes and made no optimizer"),
        ("on_cpu.py", "trains on the CPU"),
        ("no_such.py", "exit code 2 before its first optimizer step"),
    ],
)
def test_what_cannot_be_measured_is_a_failure(forks: Forks, script: str, says: str) -> None:
    """A script without steps, without a GPU or without a file is said to be so."""
    classified = forks.classified(*script.split())

    assert isinstance(classified.problem, TargetError)
    assert says in classified.problem.message


def test_a_script_that_stands_still_is_ended_in_time(forks: Forks) -> None:
    """At its time limit a script that took one step of three has no answer; where one was asked for, it fits."""
    classified = forks.classified("sleeps.py", timeout=4)

    assert isinstance(classified.problem, NoAnswerError)
    assert "took 1 of 3 optimizer steps in 4 s" in classified.problem.message
    assert forks.classified("sleeps.py", steps=1).trial.outcome is Outcome.FITS


def _problem_between(forks: Forks, script: str, first: int, second: int) -> str:
    following, problem = BatchSizeCheck(), None
    for size in (first, second):
        ended = forks.trial(script, "--batch-size", str(size))
        trial = classify_trial(ended, size, MEMORY_BYTES, 3).trial
        assert trial.outcome is Outcome.FITS, trial.error
        problem = following.problem_of(size, ended.events, trial.peak_allocated_bytes)
    return "" if problem is None else problem.message


@pytest.mark.parametrize("script", ["loader_workers.py", "few_samples.py", "evaluates_much.py"])
def test_a_script_that_heeds_its_size_is_believed(forks: Forks, script: str) -> None:
    """Two sizes are told apart by what reached the model, where an evaluation before needs most memory too."""
    assert _problem_between(forks, script, 4, 5) == ""


def test_a_script_that_ignores_its_size_is_found_out(forks: Forks) -> None:
    """The same batch and the same memory at two sizes are no answer."""
    assert "does not heed `{micro_batch}`" in _problem_between(forks, "ignores_batch_size.py", 4, 6)


def test_a_batch_that_the_data_cuts_is_found_out(forks: Forks) -> None:
    """A size above the number of samples is no size that fits."""
    problem = _problem_between(forks, "few_samples.py", 4, 16)

    assert problem == "micro-batch 16 was asked for, and a batch of 10 reached the model"
