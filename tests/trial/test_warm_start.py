"""What a guide says for a card, and what a session makes of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from oracles import GIB, MIB, Oracle
from targets_for_tests import write_target

from oomdoctor.engines.catalogue import find_card
from oomdoctor.progress import SilentProgress
from oomdoctor.request import ProbeRequest
from oomdoctor.results import Guidance, Outcome, Trial
from oomdoctor.search.prediction import Guess
from oomdoctor.search.probe_search import ProbeSearch
from oomdoctor.search.trial_source import TrialNotes
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial import warm_start
from oomdoctor.trial.warm_start import TracedWarmStart
from oomdoctor.trial.worker_process import WorkerProcess

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("forked_workers")

_NOTING = """
def make_batch(batch_size):
    print(batch_size, file=open({!r}, "a"))
    return torch.randn(batch_size, 2**15, 8)
"""


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a guess as long as it takes on a machine that does much else."""
    monkeypatch.setattr(warm_start, "_LEAST_SECONDS", 120.0)


@pytest.mark.parametrize(("cap_bytes", "first"), [(None, 16), (8 * GIB, 4)])
def test_a_guide_guesses_for_every_capacity(tmp_path: Path, cap_bytes: int | None, first: int) -> None:
    """It traces once, for the card or what `--memory` leaves of it, and says of each capacity what would fit."""
    request = ProbeRequest("gpt2", tmp_path, target_batch=256, memory_bytes=cap_bytes)
    card = find_card("rtx-4090")
    with TracedWarmStart(request, parse_reference("gpt2", directory=tmp_path), os.environ) as guide:
        guide.begin(card)
        guesses = [guide.guess(size) for size in (cap_bytes or card.capacity_bytes, 12 * GIB, 12 * GIB)]

    second = guesses[1].maximum if guesses[1] else None
    assert [guess and guess.maximum for guess in guesses] == [first, second, second]
    assert second in {7, 8}  # before torch 2.15 a workspace is kept
    assert guide.guess(20 * GIB) is None  # it has ended
    assert guide.guidance() == Guidance((first, second), None)


def test_what_a_guide_cannot_load_is_no_guess(tmp_path: Path) -> None:
    """There is a sentence instead, and nothing is raised, however often it is asked."""
    write_target(tmp_path, "import nowhere_to_be_found")
    request = ProbeRequest("model.py", tmp_path, target_batch=256)
    card = find_card("rtx-4090")
    with TracedWarmStart(request, parse_reference("model.py", directory=tmp_path), os.environ) as guide:
        guide.begin(card)
        assert [guide.guess(size) for size in (card.capacity_bytes, GIB)] == [None, None]

    said = guide.guidance()
    assert said.guesses == ()
    assert said.problem is not None
    assert "nowhere_to_be_found" in said.problem


def test_a_guide_makes_no_batch_that_cannot_fit(tmp_path: Path) -> None:
    """With `--memory` it traces up to what that leaves of the card, since a larger batch may not fit the host."""
    sizes = tmp_path / "sizes"
    small = "def build_model():\n    return nn.Linear(8, 8)"
    write_target(tmp_path, build_model=small, make_batch=_NOTING.format(str(sizes)))
    request = ProbeRequest("model.py", tmp_path, target_batch=65536, memory_bytes=256 * MIB)
    with TracedWarmStart(request, parse_reference("model.py", directory=tmp_path), os.environ) as guide:
        guide.begin(find_card("rtx-4090"))
        guess = guide.guess(256 * MIB)

    assert guess is not None
    assert max(map(int, sizes.read_text().split())) < 2 * guess.maximum


def test_a_bug_in_the_guide_is_a_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of its traceback is what the result says, and the probe goes on."""

    def bug(*_: object, **__: object) -> None:
        raise RuntimeError("Traceback (most recent call last):\n  somewhere\nKeyError: 'size'\n")

    monkeypatch.setattr(WorkerProcess, "answer", bug)
    request = ProbeRequest("gpt2", tmp_path, target_batch=256)
    with TracedWarmStart(request, parse_reference("gpt2", directory=tmp_path), os.environ) as guide:
        guide.begin(find_card("rtx-4090"))
        assert guide.guess(GIB) is None

    assert guide.guidance() == Guidance((), "KeyError: 'size'")


@dataclass
class ShrinkingSource:
    """Trials on a GPU whose kernels take memory when they are first run, and its guide."""

    capacity_bytes: int = 24 * GIB
    asked: list[int] = field(default_factory=list)
    notes: TrialNotes = field(default_factory=TrialNotes)

    def run(self, micro_batch: int, *, micro_steps: int, allowed_bytes: int) -> Trial:  # noqa: ARG002 - the protocol's
        """One trial; each sample takes 1 GiB."""
        self.asked.append(micro_batch)
        self.capacity_bytes = 22 * GIB
        trial = Oracle(lambda size: size * GIB, capacity=min(allowed_bytes, self.capacity_bytes), fixed=0)(micro_batch)
        return replace(trial, allowed_bytes=allowed_bytes)

    def predict_max(self, low: int, high: int, *, allowed_bytes: int, retries: bool) -> None:
        """Nobody can say."""

    def guess(self, capacity_bytes: int) -> Guess:
        """Right for the capacity that it is told."""
        maximum = capacity_bytes // GIB
        return Guess(maximum, maximum - 3)


def test_a_guess_for_less_memory_is_asked_for_where_memory_has_become_less() -> None:
    """The first guess runs out because the kernels are there now; the next one is right, and so is the recommended."""
    source = ShrinkingSource()
    session = ProbeSearch(source, SilentProgress(), 256, source)

    search = session.find_maximum(0)
    recommended = session.find_recommended(search, 0.05)

    assert (search.maximum, recommended) == (22, 19)
    assert source.asked == [24, 22, 23, 19]
    assert [trial.outcome for trial in session.trials] == [Outcome.OOM, Outcome.FITS, Outcome.OOM, Outcome.FITS]
