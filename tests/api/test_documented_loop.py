"""The documented training loop and its calls from Python run as they stand."""

from __future__ import annotations

import copy
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from documentation import TEXT
from running import run_command
from torch import Tensor

from oomdoctor import load_result, plan_accumulation
from oomdoctor.results import ProbeDocument
from oomdoctor.results.saved import to_json

BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
LOOP = next((block for block in BLOCKS if "accumulate(batch" in block), "")
CALLS = next((block for block in BLOCKS if "plan_accumulation" in block), "")
MODEL = next((block for block in BLOCKS if block.startswith("# model.py")), "")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the documented model and a result for it, as of a card on which 100 samples fit."""
    folder = tmp_path_factory.mktemp("loop")
    (folder / "model.py").write_text(MODEL)
    words = ["probe", "model.py", "--target-batch", "256", "--gpu", "t4", "-o", "oomdoctor.json"]
    ended = run_command(words, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    document = load_result(folder / "oomdoctor.json")
    assert isinstance(document, ProbeDocument)
    smaller = replace(document.result, accumulation=plan_accumulation(256, 100))
    (folder / "oomdoctor.json").write_text(to_json(replace(document, result=smaller)))
    return folder


@pytest.fixture
def _in_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.delitem(sys.modules, "model", raising=False)


@pytest.mark.null_gpu
@pytest.mark.usefixtures("_in_directory")
def test_the_loop_trains_as_whole_batches_would() -> None:
    """The documented loop leaves the weights where training on whole batches leaves them, an epoch's last included."""
    assert load_result("oomdoctor.json").plan.steps == 3
    names: dict[str, object] = {}
    exec(LOOP, names)  # noqa: S102 - what is tested
    torch.manual_seed(5)
    loader = [(torch.randn(size, 784), torch.randint(0, 10, (size,))) for size in (256, 256, 100)]
    torch.manual_seed(6)
    start = torch.get_rng_state()
    trained = names["train"](loader, device="cpu")  # type: ignore[operator]
    torch.set_rng_state(start)
    whole = _trained_on_whole_batches(loader)

    for one, other in zip(trained.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def _trained_on_whole_batches(loader: list[tuple[Tensor, Tensor]]) -> torch.nn.Module:
    from model import build_model, training_step  # type: ignore[import-not-found]

    model: torch.nn.Module = build_model()
    untrained = copy.deepcopy(list(model.parameters()))
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in loader:
        training_step(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(untrained[0], next(model.parameters()))
    return model


@pytest.mark.null_gpu
@pytest.mark.usefixtures("_in_directory")
def test_the_calls_run() -> None:
    """The documented calls from Python answer."""
    names: dict[str, object] = {}
    exec(CALLS, names)  # noqa: S102 - what is tested
    assert names["largest"] == 256
    assert names["plan"].micro_batches == (256,)  # type: ignore[attr-defined]


def test_lint_has_nothing_to_say_about_the_loop(tmp_path: Path) -> None:
    """The loop that the documentation recommends has none of the mistakes that `oomdoctor lint` knows."""
    (tmp_path / "train.py").write_text(LOOP)
    assert "accumulate(batch" in LOOP
    ended = run_command(["lint", "train.py", "--select", "ALL"], cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout
