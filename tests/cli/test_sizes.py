"""Sizes besides the batch: given, refused where they change nothing, and filled into commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from running import Run

pytestmark = [pytest.mark.null_gpu, pytest.mark.usefixtures("forked_workers")]

MODEL = """\
import torch


def build_model(hidden=64):
    return torch.nn.Linear(hidden, hidden)


def make_batch(batch_size, *, length=8, hidden=64, kind=0):
    return torch.zeros(batch_size, length, hidden)


def training_step(model, batch):
    return model(batch).mean()
"""
LOOP = """
import sys

model = build_model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    batch = make_batch(int(sys.argv[1]), length=int(sys.argv[2])).cuda()
    training_step(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CONSTANT = MODEL.replace("length=8, hidden=64", "length=48, hidden=64")
PROBE = ("--gpu", "rtx-4090", "--capacity", "64MiB", "--target-batch", "4096", "--json")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file whose batch has a length and whose model and batch share a width."""
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_a_size_gives_the_answer_of_a_file_with_that_constant(model: Path, oomdoctor_here: Run) -> None:
    """`--at length=48` finds what the file with 48 written in finds, and says so in the result."""
    (model.parent / "constant.py").write_text(CONSTANT)
    given = json.loads(oomdoctor_here("probe", "model.py", *PROBE, "--at", "length=48").stdout)["result"]
    written = json.loads(oomdoctor_here("probe", "constant.py", *PROBE).stdout)["result"]

    assert given["micro_batch"] == written["micro_batch"]
    assert given["variant"]["axes"] == [{"name": "length", "size": 48}]


def test_the_model_has_the_size_too_where_it_takes_it(model: Path, oomdoctor_here: Run) -> None:
    """A width that `build_model` and `make_batch` both take is given to both."""
    ended = oomdoctor_here("probe", "model.py", *PROBE, "--at", "hidden=128")
    result = json.loads(ended.stdout)["result"]

    assert result["weights_bytes"] == 4 * (128 * 128 + 128)
    text = oomdoctor_here("probe", "model.py", *PROBE[:-1], "--at", "hidden=128").stdout
    assert "model.py, hidden 128, fp32, AdamW" in text


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (("--at", "tokens=8"), "`make_batch` takes no `tokens`", "it takes `length`, `hidden`, `kind`"),
        (("--at", "kind=8"), "`kind` changes no tensor", "leave the size out"),
        (("--at", "length"), "`--at length` gives no size", "`sequence_length=512`"),
        (("--at", "length=0"), "`--at length=0` gives no whole number above 0", "give a size of 1 or more"),
        (("--at", "length=9223372036854775808"), "is larger than any size", "give a smaller one"),
        (("--at", "1st=2"), "`--at 1st=2` names no size", "`sequence_length=512`"),
        (("--at", "micro_batch=2"), "is not for `--at`", "the micro-batch is what is searched"),
        (("--at", "length=2", "--at", "length=3"), "`--at` gives `length` twice", "give each size once"),
    ],
)
def test_a_size_that_says_nothing_is_refused(
    model: Path, oomdoctor_here: Run, arguments: tuple[str, ...], error: str, hint: str
) -> None:
    """An unknown keyword, one that changes no tensor, and no size at all: each is an error that says what to write."""
    ended = oomdoctor_here("probe", model.name, *PROBE[:-1], *arguments)

    assert ended.returncode == 2
    assert error in ended.stderr
    assert hint in ended.stderr


def test_a_size_against_that_of_the_reference_is_refused(model: Path, oomdoctor_here: Run) -> None:
    """The target sets one width, and the batch is asked for with another."""
    ended = oomdoctor_here("probe", f"{model.name}:build_model(hidden=32)", *PROBE[:-1], "--at", "hidden=64")

    assert ended.returncode == 2
    assert "`build_model(hidden=32)` sets `hidden` to 32, and the batch is asked for with 64" in ended.stderr


def test_a_commands_placeholder_is_filled_in(tmp_path: Path, oomdoctor_here: Run) -> None:
    """The size stands where its placeholder stood; a command without one is refused."""
    (tmp_path / "train.py").write_text(MODEL + LOOP)
    card = ("--gpu", "rtx-4090", "--capacity", "256MiB", "--json")
    command = ("--", sys.executable, "train.py", "{micro_batch}")
    filled = oomdoctor_here("probe", *card, "--at", "length=512", *command, "{length}")
    missing = oomdoctor_here("probe", *card, "--at", "length=512", *command, "8")

    assert json.loads(filled.stdout)["result"]["command_plan"]["words"][-1] == "512"
    assert missing.returncode == 2
    assert "the command has no `{length}`" in missing.stderr


def test_a_target_that_fits_whole_is_found_where_accumulating_needs_more(model: Path, oomdoctor_here: Run) -> None:
    """Memory that the backward takes at any size is no reason to think that the whole target needs more."""
    options = ("--gpu", "rtx-4090", "--capacity", "64MiB", "--target-batch", "64", "--at", "hidden=1616", "--json")
    result = json.loads(oomdoctor_here("probe", model.name, *options).stdout)["result"]

    assert (result["micro_batch"]["maximum"], result["accumulation"]["steps"]) == (64, 1)
    assert any("with accumulation the largest is 20" in warning for warning in result["warnings"])


@pytest.mark.parametrize("parameters", ["batch_size, *, length", "batch_size, length, /"])
def test_a_size_without_a_default_is_told_how_to_get_one(model: Path, oomdoctor_here: Run, parameters: str) -> None:
    """Where `make_batch` cannot be called with the batch size alone, the hint shows its definition with a default."""
    model.write_text(
        MODEL.replace("batch_size, *, length=8, hidden=64, kind=0", parameters).replace(", hidden)", ", 64)")
    )
    ended = oomdoctor_here("probe", "model.py", *PROBE[:-1])

    assert ended.returncode == 2
    assert "missing a required" in ended.stderr
    assert "`def make_batch(batch_size, *, length=...)`, and `--at length=...` asks about another one" in ended.stderr
