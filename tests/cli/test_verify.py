"""`oomdoctor verify`: its verdicts and exit codes on files, its formats, and what cannot be verified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import Run

from oomdoctor.results import VerifyDocument
from oomdoctor.results.saved import from_json

PADDED = """\
import torch
from torch import nn

class LanguageModel(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.words, self.output = nn.Embedding(50, width), nn.Linear(width, 50)
        self.norm = {norm}

    def forward(self, tokens):
        return self.output(self.norm(self.words(tokens)))

def build_model(width=16, layers=1):
    return LanguageModel(width)

def make_batch(batch_size):
    tokens = torch.randint(1, 50, (batch_size, 12))
    labels = torch.where(torch.arange(12) < torch.randint(3, 12, (batch_size, 1)), tokens, -100)
    return {{"tokens": tokens, "labels": labels}}

def training_step(model, batch):
    return nn.functional.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten())
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A language model with padded labels, and nothing that mixes samples."""
    path = tmp_path / "model.py"
    path.write_text(PADDED.format(norm="nn.LayerNorm(width)"), encoding="utf-8")
    return path


def test_says_how_to_weigh(model: Path, oomdoctor_here: Run) -> None:
    """Padded labels are equal if weighted; the exit code is 0, and the code to write names the batch's own labels."""
    done = oomdoctor_here("verify", "model.py")
    assert done.returncode == 0, done.stderr
    assert "equals the whole batch if each micro-batch is weighted" in done.stdout
    assert "accumulate(batch, plan, count=lambda part: (part['labels'] != -100).sum())" in done.stdout


def test_a_difference_fails(model: Path, oomdoctor_here: Run) -> None:
    """A batch norm ends with exit code 1, names the module and the line, and saves a document that reads again."""
    norm = "nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(width), nn.Unflatten(0, (-1, 12)))"
    model.write_text(PADDED.format(norm=norm), encoding="utf-8")
    done = oomdoctor_here("verify", "model.py", "--json")
    assert done.returncode == 1, done.stderr
    document = from_json(done.stdout, "stdout")
    assert isinstance(document, VerifyDocument)
    assert document.status == document.result.verdict == "different"
    (cause,) = document.result.causes
    assert (cause.id, cause.module, cause.location) == ("batch_norm", "norm.1", "model.py:11")


def test_parts_and_samples_are_the_users(model: Path, oomdoctor_here: Run) -> None:
    """`--parts` and `--samples` decide the micro-batches."""
    done = oomdoctor_here("verify", "model.py", "--parts", "3", "--samples", "9", "--json")
    sizes = [error["sizes"] for error in json.loads(done.stdout)["result"]["errors"][:2]]
    assert sizes == [[3, 3, 3], [4, 4, 1]]


def test_single_precision_has_its_own_tolerance(model: Path, oomdoctor_here: Run) -> None:
    """With `--precision fp32` the verdict is the same."""
    result = json.loads(oomdoctor_here("verify", "model.py", "--precision", "fp32", "--json").stdout)["result"]
    assert (result["verdict"], result["precision"], result["tolerance"]) == ("equal_if_weighted", "fp32", 1e-3)


def test_what_cannot_be_afforded_is_refused_with_a_smaller_model(oomdoctor_here: Run) -> None:
    """A model that the CPU would take too long for is refused before it runs, and a smaller one is proposed."""
    done = oomdoctor_here("verify", "gpt2:build_model(layers=6)", "--trial-timeout", "60")
    assert done.returncode == 3
    assert "gpt2:build_model(layers=1, width=192, heads=3)" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("model.py", "--samples", "7"), "7 samples cannot be cut into 4 equal micro-batches"),
        (("model.py", "--samples", "4"), "give `--samples` a multiple of 4, from 8 on"),
        (("missing.py",), "missing.py"),
    ],
)
def test_bad_questions_are_usage_errors(
    model: Path, oomdoctor_here: Run, arguments: tuple[str, ...], told: str
) -> None:
    """What cannot be asked ends with exit code 2, before anything runs."""
    done = oomdoctor_here("verify", *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("def make_batch(batch_size):\n    return torch.randint(1, 50, (12, batch_size))\n", "returned 12 samples"),
        ("def training_step(model, batch):\n    raise ValueError('no')\n", "the training step raised `ValueError: no`"),
        ("def training_step(model, batch):\n    return model(batch['tokens']).sum() * float('nan')\n", "is not finite"),
        ("def training_step(model, batch):\n    return model(batch['tokens'])\n", "not a scalar"),
    ],
)
def test_the_users_faults_are_named(model: Path, oomdoctor_here: Run, lines: str, told: str) -> None:
    """What the user's functions do wrong is the target's error, with exit code 2."""
    model.write_text(model.read_text(encoding="utf-8") + lines, encoding="utf-8")
    done = oomdoctor_here("verify", "model.py")
    assert done.returncode == 2
    assert told in done.stderr
