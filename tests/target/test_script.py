"""A training script that is named as a target is answered with the command form, and not run."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import Run

from oomdoctor.errors import TargetError
from oomdoctor.target.reference import parse_reference

LOOP = """
import argparse
import pathlib
import torch

pathlib.Path("ran").write_text("it was run")
parser = argparse.ArgumentParser()
parser.add_argument("--eval-batch-size", type=int)
parser.add_argument("-b", "--train-batch-size", type=int, default=8)
parser.add_argument("--grad-accum", type=int, default=1)
arguments = parser.parse_args()
model = torch.nn.Linear(4, 4)
for _ in range(3):
    model(torch.zeros(arguments.train_batch_size, 4)).sum().backward()
"""


def test_a_script_is_answered_before_it_runs(tmp_path: Path, oomdoctor_here: Run) -> None:
    """The command form has the script's own options, and nothing of the script has run."""
    (tmp_path / "loop.py").write_text(LOOP)

    ended = oomdoctor_here("probe", "loop.py", "--gpu", "t4", "--reserve", "1GiB", "--target-batch", "64")

    assert ended.returncode == 2
    assert "`loop.py` is a script that trains" in ended.stderr
    line = (
        "oomdoctor probe --target-batch 64 --gpu t4 --reserve 1GiB -- python loop.py --train-batch-size {micro_batch} "
        "--grad-accum {accumulation_steps}"
    )
    assert line in ended.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("command", ["prescribe", "verify"])
def test_the_command_that_was_typed_is_the_one_that_is_hinted(
    tmp_path: Path, oomdoctor_here: Run, command: str
) -> None:
    """Whoever asks for remedies or a verdict is told how to ask that of the script."""
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "plain.py").write_text("import torch\nbatch_size = 8\ntorch.nn.Linear(1, 1)(x).sum().backward()\n")
    known, unknown = oomdoctor_here(command, "loop.py", "-q"), oomdoctor_here(command, "plain.py", "-q")

    line = (
        f"oomdoctor {command} -- python loop.py --train-batch-size {{micro_batch}} --grad-accum {{accumulation_steps}}"
    )
    assert (known.returncode, line in known.stderr) == (2, True)
    if command == "prescribe":
        assert "oomdoctor prescribe --set 'plain.py:batch_size={micro_batch}' -- python plain.py\n" in unknown.stderr
    else:  # it has no `--set`, and has to be told the steps
        line = "oomdoctor verify -- python plain.py --batch-size {micro_batch} --grad-accum {accumulation_steps}"
        assert line in unknown.stderr
        assert "have it read its accumulation steps" in unknown.stderr


def test_a_script_without_an_option_is_told_to_have_one(tmp_path: Path) -> None:
    """A batch size that is a literal cannot be set from outside."""
    (tmp_path / "my loop.py").write_text("import torch\ntorch.nn.Linear(1, 1)(torch.zeros(1, 1)).sum().backward()\n")

    with pytest.raises(TargetError) as caught:
        parse_reference("my loop.py", directory=tmp_path)

    assert "oomdoctor probe -- python 'my loop.py' --batch-size {micro_batch}" in (caught.value.hint or "")
    assert "which it has none of" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "beginning",
    [
        "def build_model(): ...",
        "from parts import make_batch",
        "from parts import *",
        "if True:\n    def make_batch(batch_size): ...",
        "build_model = make = None",
        "globals().update(build_model=print)",
        "def __getattr__(name): ...",
        "def define():\n    global make_batch\n    make_batch = print",
        "with open('x') as make_batch: ...",
        "def broken(",
    ],
)
def test_a_file_that_may_have_the_functions_is_imported(tmp_path: Path, beginning: str) -> None:
    """Only where the source shows that neither function can be there is a file taken for a script."""
    (tmp_path / "model.py").write_text(f"{beginning}\n\ndef main(loss):\n    loss.backward()\n")

    assert parse_reference("model.py", directory=tmp_path).path == str(tmp_path / "model.py")


def test_a_file_that_does_not_train_is_told_what_it_lacks(tmp_path: Path) -> None:
    """A file with a model and no training is no script."""
    (tmp_path / "model.py").write_text("import torch\nnet = torch.nn.Linear(1, 1)\n")

    assert parse_reference("model.py:net", directory=tmp_path).attribute == "net"
