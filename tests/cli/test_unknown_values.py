"""What a target decides by integers from the host is as on a GPU; what it decides by other values is named by line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from running import Run

pytestmark = pytest.mark.usefixtures("null_gpu")
NULL = ("--engine", "null", "--capacity", "4GiB", "--quiet", "--json")
MODEL = """import torch


def build_model():
    return torch.nn.Linear(300, 400)


def make_batch(batch_size):
    return torch.randn(batch_size, 300), torch.randint(0, 10, (batch_size,))


def training_step(model, batch):
    x, y = batch
    out = model(x)
    {body}
"""
PACKED = """import torch
from torch.nn.utils.rnn import pack_padded_sequence


def build_model():
    return torch.nn.LSTM(64, 128, batch_first=True)


def make_batch(batch_size):
    return torch.randn(batch_size, 100, 64), torch.full((batch_size,), {length})


def training_step(model, batch):
    x, lengths = batch
    return model(pack_padded_sequence(x, lengths.cpu(), batch_first=True))[0].data.mean()
"""
COMMAND = """import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
size = parser.parse_args().batch_size
model = torch.nn.Linear(300, 400).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    x, y = torch.randn(size, 300).cuda(), torch.randint(0, 10, (size,)).cuda()
    assert y.min() >= 0 and y.max() < 10
    out = model(x)
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if _ % 2 == 0: print(loss.item())
    elif _: print(loss.item())
"""


def _probe(folder: Path, run: Run, text: str, *arguments: str) -> tuple[int, str, dict[str, object]]:
    (folder / "model.py").write_text(text, encoding="utf-8")
    given = arguments or ("model.py", *NULL[:4])
    ended = run("probe", *given, "--target-batch", "8", *NULL[4:])
    result = json.loads(ended.stdout).get("result") if ended.stdout else None
    return ended.returncode, " ".join(ended.stderr.split()), result or {}


def test_a_true_assertion_about_labels_holds(tmp_path: Path, oomdoctor_here: Run) -> None:
    """Labels that come from the host keep their range on a null GPU, and nothing is warned of."""
    body = "assert y.min() >= 0 and y.max() < 10\n    return out[y >= 0].mean()"

    code, stderr, result = _probe(tmp_path, oomdoctor_here, MODEL.format(body=body))

    assert code == 0, stderr
    assert not [text for text in result["warnings"] if "read" in text]  # type: ignore[attr-defined]


def test_a_false_assertion_about_labels_is_the_targets(tmp_path: Path, oomdoctor_here: Run) -> None:
    """An assertion that fails on a GPU, too, is the target's error and none of the null GPU."""
    code, stderr, _ = _probe(tmp_path, oomdoctor_here, MODEL.format(body="assert y.max() > 10\n    return out.mean()"))

    assert code == 2
    assert "AssertionError" in stderr
    assert "zeros" not in stderr


@pytest.mark.parametrize(
    ("check", "engine"),
    [
        ("assert torch.isfinite(out).all().item()", "null"),
        ("torch.distributions.Normal(x, x.exp())", "null"),
        ("torch.distributions.Normal(x, x.exp())", "trace"),
        ("if not torch.equal(out, out + 0.0): raise SystemExit(7)", "null"),
        ("if not torch.equal(out, out + 0.0): raise SystemExit(7)", "trace"),
        ("if out.mean().item() > 9: raise ValueError", "null"),
    ],
)
def test_a_check_of_floats_passes(tmp_path: Path, oomdoctor_here: Run, check: str, engine: str) -> None:
    """A condition that only raises or goes on goes on, whatever a device without arithmetic would say, unwarned."""
    body = f"{check}\n    return out.mean()"

    code, stderr, result = _probe(
        tmp_path, oomdoctor_here, MODEL.format(body=body), "model.py", "--gpu", "t4", "--engine", engine
    )

    assert code == 0, stderr
    assert not [text for text in result["warnings"] if "read" in text]  # type: ignore[attr-defined]


def test_a_check_that_zeros_fail_is_not_blamed_on_the_data(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A number that a check compares cannot be had on a null GPU, and the error names it with its line."""
    body = "assert out.std().item() > 1e-9\n    return out.mean()"

    code, stderr, _ = _probe(tmp_path, oomdoctor_here, MODEL.format(body=body))

    assert code == 3
    assert "`out.std().item()` at model.py:15 (a check)" in stderr


def test_a_mask_of_floats_is_warned_of_by_its_line(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A boolean mask made of floating-point numbers selects all rows on a null GPU, and the warning names its line."""
    body = "kept = out[out.mean(1) > 0]\n    return kept.sum() + out.mean()"

    code, stderr, result = _probe(tmp_path, oomdoctor_here, MODEL.format(body=body))

    assert code == 0, stderr
    assert "`out[out.mean(1) > 0]` at model.py:15 (the most rows that there can be)" in str(result["warnings"])


def test_lengths_on_the_device_decide_how_much_is_packed(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A packed sequence is as long as its lengths say, which are read back from the device."""
    peaks = []
    for length in (10, 100):
        code, stderr, result = _probe(tmp_path, oomdoctor_here, PACKED.format(length=length))
        assert code == 0, stderr
        peaks.append(max(phase["peak_allocated_bytes"] for phase in result["phases"]))  # type: ignore[attr-defined]

    assert peaks[1] - peaks[0] > 8 * 90 * 128 * 4


@pytest.mark.parametrize(
    ("loss", "warned"),
    [
        ("out[y >= 0].mean()", ""),
        ("out.mean() + out[out.mean(1) > 0].sum()", "`out[out.mean(1) > 0]` at model.py:13 (the most rows"),
    ],
    ids=["known", "unknown"],
)
def test_commands_know_and_name_values_too(tmp_path: Path, oomdoctor_here: Run, loss: str, warned: str) -> None:
    """In a command integers from the host are known as well, and a mask of floats is named; a logged loss is not."""
    command = ("--trial-timeout", "100", "--", sys.executable, "model.py", "--batch-size", "{micro_batch}")
    (tmp_path / "model.py").write_text(COMMAND.format(loss=loss), encoding="utf-8")

    ended = oomdoctor_here("probe", "--target-batch", "4", *NULL, *command)

    assert ended.returncode == 0, ended.stderr
    warnings = [text for text in json.loads(ended.stdout)["result"]["warnings"] if "values" in text]
    assert (warned in str(warnings)) if warned else not warnings


SPARSE = """import torch


def build_model():
    return torch.nn.EmbeddingBag(200_000, 256, sparse=True)


def make_batch(batch_size):
    return torch.arange(batch_size * 1000).remainder({rows}).view(batch_size, 1000)


def training_step(model, batch):
    return model(batch).mean()


def build_optimizer(model):
    return torch.optim.SparseAdam(model.parameters())
"""


def test_sparse_gradients_have_the_rows_of_their_indices(tmp_path: Path, oomdoctor_here: Run) -> None:
    """An optimizer of sparse gradients takes memory for each different row, which the indices of the batch decide."""
    most = []
    for rows in (1, 8000):
        code, stderr, result = _probe(tmp_path, oomdoctor_here, SPARSE.format(rows=rows))
        assert code == 0, stderr
        assert not [text for text in result["warnings"] if "rows" in text]  # type: ignore[attr-defined]
        phases = [phase for phase in result["phases"] if phase["phase"] == "optimizer"]  # type: ignore[attr-defined]
        most.append(max(phase["peak_allocated_bytes"] for phase in phases))

    assert most[1] - most[0] > 2 * 8000 * 256 * 4
