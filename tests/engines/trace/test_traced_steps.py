"""Training steps of many kinds take the memory on the emulated device that they take on the null GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from traced_runs import PYTHONS, RECORDED, build_of, each_python, run, truth

from oomdoctor.errors import NoAnswerError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("null_gpu_if_any")]


@each_python
def test_every_step_takes_what_it_takes_on_the_null_gpu(python: str, directory: Path) -> None:
    """Peaks and what is left after each phase are equal to the byte, for 38 kinds of training."""
    expected, traced = truth(python, directory)["steps"], run(python, directory)["steps"]
    assert len(expected) == 38
    kept = {title: [mark[:2] for mark in marks] for title, marks in traced.items()}
    assert kept == {title: [mark[:2] for mark in marks] for title, marks in expected.items()}


@each_python
def test_every_step_asks_for_what_it_asks_for_on_the_null_gpu(python: str, directory: Path) -> None:
    """All that each phase allocates adds up to the same, though it be for a moment, to 0.3 percent.

    A build without CUDA is held to what a newer version did, whose group norm needs fewer copies.
    """
    expected, traced = truth(python, directory)["steps"], run(python, directory)["steps"]
    tolerance = 3e-3 if run(python, directory)["device"]["torch"].startswith("2.15") else 1e-1
    for title, marks in traced.items():
        asked = [mark[2] for mark in marks]
        assert asked == pytest.approx([mark[2] for mark in expected[title]], rel=tolerance), title


@each_python
def test_the_examples_take_what_they_take_on_the_null_gpu(python: str, directory: Path) -> None:
    """Trials of the examples have the same outcome, peaks and phases, reserved bytes too, and run out at one place."""
    expected, traced = truth(python, directory)["examples"], run(python, directory)["examples"]
    assert [trial["outcome"] for trials in expected.values() for trial in trials] == ["fits", "oom", *["fits"] * 4]
    assert traced == expected


@each_python
def test_what_cuda_refuses_is_refused(python: str, directory: Path) -> None:
    """Types without a kernel, what does not go together and reductions of nothing raise as on CUDA; the rest runs."""
    expected, traced = truth(python, directory)["refused"], run(python, directory)["refused"]

    def begins(said: str) -> list[str]:
        # not the class: `NotImplementedError` is new in PyTorch 2.7; nor the operator, which 2.15 names
        return said.partition(": ")[2].removeprefix("mm: ").removeprefix("addmm: ").split()[:3]

    differing = {name for name, said in traced.items() if begins(said) != begins(expected[name])}
    # Traces of these take more than CUDA: attention to another type, and outer products of integers.
    known = {"2.6.": {"half queries", "outer"}, "2.13": {"half queries"}}
    assert differing == known.get(build_of(python).version[:4], set())
    assert traced["mm"].endswith("not implemented for 'Long'")


@each_python
def test_storages_are_resized_and_copied_as_on_cuda(python: str, directory: Path) -> None:
    """Storages that are made, freed, got back and copied take what they take on CUDA; none leaves torch."""
    traced = run(python, directory)
    own = traced["own storages"]

    assert traced["storages"] == truth(python, directory)["storages"]
    assert (own["twin"], own["target"]) == ([3, 0, 9], [3, 0, 9])
    assert own["refused"]["too small"].startswith("`torch.Tensor.set_` cannot be traced, at ")
    assert own["refused"]["shared"].startswith("`torch.UntypedStorage._share_cuda_` cannot be traced, at ")
    assert own["refused"]["exported"].startswith("`torch.to_dlpack` cannot be traced, at ")
    assert own["refused"]["taken"].startswith("`torch.to_dlpack` cannot be traced, at ")


def test_the_recorded_figures_are_the_null_gpus(directory: Path) -> None:
    """What builds without CUDA are held to is what the null GPU says on this machine."""
    try:
        found = run(PYTHONS[0], directory, null=True, workspaces=False)
    except NoAnswerError as error:
        pytest.skip(error.message)
    assert json.loads(RECORDED.read_text(encoding="utf-8")) == found
