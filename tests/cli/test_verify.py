"""`oomdoctor verify`: its verdicts and exit codes on files, its formats, and what cannot be verified."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from running import Run

from oomdoctor import verify
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


REPEATED = """\
import torch

class Repeated(torch.nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.layer, self.layers = torch.nn.Linear(width, width), layers

    def forward(self, x):
        for _ in range(self.layers):
            x = torch.tanh(self.layer(x[..., :1].expand(*x.shape)))
        return x.square().mean()

def build_model(width=1024, layers=400):
    return Repeated(width, layers)

def make_batch(batch_size):
    return torch.randn(batch_size, 32, 1)

def training_step(model, batch):
    return model(batch.expand(-1, -1, model.layer.in_features))
"""
STEPPING = """
def training_step(model, batch):
    loss = model(batch["tokens"]).square().mean()
    loss.backward()
    return loss
"""
SINGLE = """
def training_step(model, batch):
    return model.output(torch.zeros(len(batch["tokens"]), 16, dtype=torch.float32)).square().mean()
"""
RETURNS_NOTHING = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        self.layer(x)

def build_model():
    return Model()

def make_batch(batch_size):
    return torch.randn(batch_size, 4)
"""
LISTS = """
def make_batch(batch_size):
    return [torch.randint(1, 50, (3 + index % 3,)) for index in range(batch_size)]

def training_step(model, batch):
    return sum(model(tokens).square().mean() for tokens in batch) / len(batch)
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


def test_a_step_without_a_loss_is_told_as_by_probe(model: Path, oomdoctor_here: Run) -> None:
    """A model that returns nothing, in the default step: what it returned, and what to write instead."""
    model.write_text(RETURNS_NOTHING, encoding="utf-8")
    done = oomdoctor_here("verify", "model.py")
    assert done.returncode == 2
    assert "\nerror: the model returned None" in done.stderr
    assert "hint: " in done.stderr
    assert "oomdoctor." not in done.stderr


def test_what_cannot_be_afforded_is_refused_with_a_smaller_model(model: Path, oomdoctor_here: Run) -> None:
    """A model that the CPU would take too long for is refused before it runs; the smaller one that is named is not."""
    model.write_text(REPEATED, encoding="utf-8")
    done = oomdoctor_here("verify", "model.py", "--trial-timeout", "60")
    assert done.returncode == 3, done.stderr
    (smaller,) = re.findall(r"`(model\.py:build_model\(.*?\))`", done.stderr)
    assert re.search(r"Or give this one its time:\s+`--trial-timeout \d+0`", done.stderr)
    assert oomdoctor_here("verify", smaller, "--trial-timeout", "300").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("model.py", "--samples", "7"), "7 samples cannot be cut into 4 equal micro-batches"),
        (("model.py", "--samples", "4"), "give `--samples` a multiple of 4, from 8 on"),
        (("model.py", "--samples", "99999999999999999996"), "more than 10,000,000 samples in one optimizer step"),
        (("missing.py",), "missing.py"),
        (("model.py", "other.py"), "several files are given: `model.py`, `other.py`"),
        (("--", sys.executable, "train.py"), "let the script read it from its arguments first"),
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
    document = json.loads(oomdoctor_here("verify", "--json", *arguments).stdout)
    assert (document["command"], document["exit_code"]) == ("verify", 2)
    assert told in f"{document['result']['problem']['message']} {document['result']['problem']['hint']}"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("def make_batch(batch_size):\n    return torch.randint(1, 50, (12, batch_size))\n", "returned 12 samples"),
        ("def make_batch(batch_size):\n    return torch.ones(12, 2)\n", "`make_batch` ignores `batch_size`"),
        ("def training_step(model, batch):\n    raise ValueError('no')\n", "the training step raised `ValueError: no`"),
        ("def training_step(model, batch):\n    return model(batch['tokens']).sum() * float('nan')\n", "is not finite"),
        ("def training_step(model, batch):\n    return model(batch['tokens'])\n", "not a scalar"),
        (STEPPING, "leave both out of `training_step`"),
        ("def build_model():\n    return torch.nn.LazyLinear(4)\n", "the model has lazy modules"),
        (SINGLE, "`--precision fp32` verifies it in single precision"),
        (
            "def training_step(model, batch):\n    return model(batch['tokens']).sum() * 0\n",
            "gradient of the whole batch is",
        ),
    ],
)
def test_the_users_faults_are_named(model: Path, oomdoctor_here: Run, lines: str, told: str) -> None:
    """What the user's functions do wrong is the target's error, with exit code 2."""
    model.write_text(model.read_text(encoding="utf-8") + lines, encoding="utf-8")
    done = oomdoctor_here("verify", "model.py")
    assert done.returncode == 2
    assert told in done.stderr


def test_lists_of_samples_are_cut(model: Path, oomdoctor_here: Run) -> None:
    """A list with a tensor a sample, each of its own length, is cut between its items."""
    model.write_text(model.read_text(encoding="utf-8") + LISTS, encoding="utf-8")
    done = oomdoctor_here("verify", "model.py")
    assert (done.returncode, "accumulating equals the whole batch." in done.stdout) == (0, True), done.stderr


LOOP = """\
import sys
import torch

torch.manual_seed(0)
batch_size, steps = map(int, sys.argv[1:3])
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(100, 4), torch.randn(100, 1))
loader = torch.utils.data.DataLoader(data, batch_size=batch_size)
for index, (inputs, targets) in enumerate(loader):
    in_window = min(steps, len(loader) - index // steps * steps)
    loss = (model(inputs) - targets).square().mean()
    ({loss}).backward()
    if (index + 1) % steps == 0 or index + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
"""
UNUSED = """\
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters())
model(torch.ones(1, 2)).sum().backward()
"""
SIZES = ("{micro_batch}", "{accumulation_steps}")


def test_a_commands_mistake_is_named_at_its_line(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A script that does not divide ends with exit code 1, and its line, the cause and the rule are in every format."""
    (tmp_path / "train.py").write_text(LOOP.format(loss="loss"), encoding="utf-8")
    done = oomdoctor_here("verify", "-o", "found.json", "--", sys.executable, "train.py", *SIZES)
    assert done.returncode == 1, done.stderr
    document = from_json((tmp_path / "found.json").read_text(encoding="utf-8"), "found.json")
    assert isinstance(document, VerifyDocument)
    (cause,) = document.result.causes
    assert (cause.id, cause.location) == ("division", "train.py:13")
    assert [error.sizes for error in document.result.errors] == [(2,) * 4, (2,) * 4, (2,) * 2]
    for form in ("text", "markdown", "html", "github", "junit", "sarif"):
        shown = oomdoctor_here("report", "found.json", "--format", form)
        assert shown.returncode == 0, shown.stderr
        assert "train.py" in shown.stdout
        assert "OOM202" in shown.stdout or form in ("github", "junit", "sarif")


def test_a_right_command_is_equal(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A script that accumulates rightly is equal with other parts and samples, too."""
    (tmp_path / "train.py").write_text(LOOP.format(loss="loss / in_window"), encoding="utf-8")
    sizes = ("--parts", "3", "--samples", "9", "--json")
    done = oomdoctor_here("verify", *sizes, "--", sys.executable, "train.py", *SIZES)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)["result"]
    assert (result["verdict"], result["notes"], result["errors"][0]["sizes"]) == ("equal", [], [3, 3, 3])


def test_a_command_that_needs_a_gpu_is_told_what_to_do(tmp_path: Path, oomdoctor_here: Run) -> None:
    """Without a GPU there is no answer, whether the error passes or the script turns it into an exit code."""
    path, use = tmp_path / "train.py", "import torch\n{indent}torch.zeros(1).cuda()\n"
    caught = "try:\n  " + use.format(indent="  ") + "except Exception as error:\n  exit(str(error))\n"
    for text in (use.format(indent=""), caught):
        path.write_text(text, encoding="utf-8")
        done = oomdoctor_here("verify", "--", sys.executable, "train.py", *SIZES, CUDA_VISIBLE_DEVICES="")
        assert done.returncode == 3, done.stderr
        assert done.stderr.count("error: the command needs a GPU, and this machine has none") == 1
        assert "hint: verify it where there is one" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "told"),
    [
        ((*SIZES,), {"OOMDOCTOR_NULL_NAME": "t4"}, 3, "a null GPU computes nothing"),
        (SIZES[:1], {}, 2, "it has no `{accumulation_steps}`"),
        (SIZES[1:], {}, 2, "has no `{micro_batch}`"),
    ],
)
def test_commands_that_cannot_be_verified(
    oomdoctor_here: Run, arguments: tuple[str, ...], environment: dict[str, str], code: int, told: str
) -> None:
    """A null GPU, and a command that is not told both sizes, are refused before anything runs."""
    done = oomdoctor_here("verify", "--", sys.executable, "train.py", *arguments, **environment)
    assert done.returncode == code
    assert told in done.stderr


def test_a_command_decides_its_precision(oomdoctor_here: Run) -> None:
    """`--precision` is for files."""
    done = oomdoctor_here("verify", "--precision", "fp32", "--", sys.executable, "train.py", *SIZES)
    assert (done.returncode, "`--precision` is for files" in done.stderr) == (2, True)


def test_a_command_that_fails_shows_its_error(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A script that raises is the user's error, with its traceback; one whose gradient is not finite is told so."""
    path = tmp_path / "train.py"
    path.write_text("import torch\nraise RuntimeError('no data')\n", encoding="utf-8")
    done = oomdoctor_here("verify", "--", sys.executable, "train.py", *SIZES)
    assert (done.returncode, "at micro-batch 8: no data" in done.stderr) == (2, True)
    path.write_text(LOOP.format(loss="loss * float('nan')"), encoding="utf-8")
    done = oomdoctor_here("verify", "--", sys.executable, "train.py", *SIZES)
    assert (done.returncode, "is not finite at micro-batch 8" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (UNUSED, "never took an optimizer step"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "was ended by SIGKILL"),
    ],
)
def test_a_command_without_a_step_says_how_it_ended(tmp_path: Path, oomdoctor_here: Run, lines: str, told: str) -> None:
    """Gradients that nothing steps with are no step, and a signal has its name."""
    (tmp_path / "train.py").write_text(lines, encoding="utf-8")
    done = oomdoctor_here("verify", "--", sys.executable, "train.py", *SIZES)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr


def test_check_verifies_where_it_is_asked(tmp_path: Path, model: Path, oomdoctor_here: Run) -> None:
    """An entry with `verify = true` fails for what is different, holds for what is equal if weighted, and says why."""
    normed = "nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(width), nn.Unflatten(0, (-1, 12)))"
    (tmp_path / "normed.py").write_text(PADDED.format(norm=normed), encoding="utf-8")
    entries = "".join(f'[[check]]\ntarget = "{name}"\n' for name in (model.name, "normed.py"))
    top = 'engine = "trace"\ngpu = "t4"\ntarget-batch = 8\nverify = true\n\n'
    (tmp_path / "oomdoctor.toml").write_text(top + entries, encoding="utf-8")
    done = oomdoctor_here("check", "--json", "--no-cache", "-j", "1")
    assert done.returncode == 1, done.stderr
    limits = [
        next(limit for limit in entry["limits"] if limit["name"] == "verify")
        for entry in json.loads(done.stdout)["result"]["entries"]
    ]
    assert [limit["holds"] for limit in limits] == [True, False]
    assert "normed.py:11" in limits[1]["text"]


def test_check_refuses_to_verify_a_command_without_steps(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A command without a place for its accumulation steps cannot be verified, which the configuration's error says."""
    entry = '[[check]]\ncommand = ["python", "train.py", "{micro_batch}"]\ntarget-batch = 8\nverify = true\n'
    (tmp_path / "oomdoctor.toml").write_text(entry, encoding="utf-8")
    done = oomdoctor_here("check")
    assert (done.returncode, "needs `{accumulation_steps}` in the command" in done.stderr) == (2, True)


def test_the_api_is_the_command(model: Path, forked_workers: None) -> None:
    """`oomdoctor.verify` returns the document that the command writes."""
    document = verify(f"{model}:build_model(width=8)", parts=2)
    assert (document.status, document.result.samples, document.exit_code) == ("equal_if_weighted", 4, 0)
