"""`oomdoctor prescribe --verbose`: a roofline, called a model, and nowhere else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from running import run_here

from oomdoctor.engines.catalogue import Peaks, all_cards, peaks_of
from oomdoctor.report.roofline import modelled_seconds
from oomdoctor.results.prescribe import MeasuredRemedies

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.null_gpu, pytest.mark.usefixtures("forked_workers")]
MODEL = """\
import torch


def build_model():
    return torch.nn.Linear(1000, 500, bias=False)


def make_batch(batch_size):
    return torch.randn(batch_size, 1000)


def training_step(model, batch):
    return model(batch).sum()
"""
PEAKS = Peaks({"float32": 1e12, "float16": 4e12}, 1e9, "a datasheet")


def printed(folder: Path, card: str, *options: str) -> tuple[str, str]:
    """What the command prints of the linear layer, with bf16 alone."""
    from oomdoctor.remedies.catalogue import REMEDIES

    (folder / "model.py").write_text(MODEL)
    left = [word for one in REMEDIES if not one.on_request and one.id != "bf16" for word in ("--without", one.id)]
    done = run_here(["prescribe", "model.py", "--gpu", card, "--target-batch", "100", "-q", *left, *options], folder)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_verbose_has_a_model_of_the_time(tmp_path: Path) -> None:
    """Each row has the longer of the times of its FLOPs and its bytes, on stderr, with the source of the peaks."""
    report, told = printed(tmp_path, "rtx-4090", "--verbose")
    assert "a model, not a measurement" in told
    assert "82.6 TFLOP/s in float32" in told
    assert "1008 GB/s (NVIDIA Ada GPU Architecture" in told
    lines = [line.split() for line in told.splitlines() if line.startswith("  ")]
    assert [line[0] for line in lines] == ["as", "bf16"]
    assert all(line[-3:] == ["by", "its", "bytes"] for line in lines)
    assert "oofline" not in report


def test_nothing_is_modelled_unless_asked(tmp_path: Path) -> None:
    """Without the option no report has a modelled time; JSON has the counts alone."""
    report, told = printed(tmp_path, "rtx-4090", "--json")
    assert "oofline" not in report + told
    assert json.loads(report)["result"]["plain"]["step_flops"] == {"float32": 2 * 2 * 100 * 1000 * 500}
    assert "takes -" not in report


def test_a_card_without_published_peaks_is_unknown(tmp_path: Path) -> None:
    """Every time is unknown, and the reason is given."""
    _, told = printed(tmp_path, "rtx-3050-6gb", "--verbose")
    assert "No published peaks of NVIDIA GeForce RTX 3050" in told
    assert [line.split()[-1] for line in told.splitlines() if line.startswith("  ")] == ["unknown"] * 2


@pytest.mark.parametrize(
    ("flops", "touched", "seconds"),
    [
        ({"float32": 2 * 10**12}, 10**9, 2.0),
        ({"float32": 10**12, "float16": 4 * 10**12}, 10**9, 2.0),
        ({"float32": 10**12}, 3 * 10**9, 3.0),
        ({"bfloat16": 1}, 1, None),
        ({}, 1, None),
        ({"float32": 1}, None, None),
    ],
)
def test_the_longer_time_counts(flops: dict[str, int], touched: int | None, seconds: float | None) -> None:
    """Types add up, the slower of computing and reading decides, and what has no count or peak is not known."""
    row = MeasuredRemedies((), "as it is", "same", "measured", step_flops=flops, step_touched_bytes=touched)
    assert modelled_seconds(row, PEAKS) == seconds


def test_peaks_are_of_cards_that_there_are() -> None:
    """Each name is one of the catalogue's, and each peak has a source and is no less in fewer bits."""
    import tomllib

    from oomdoctor.engines import catalogue

    names = tomllib.loads(catalogue._PEAKS.read_text(encoding="utf-8"))["peaks"]
    assert {*names} <= {card.name for card in all_cards()}
    for name in names:
        found = peaks_of(name)
        assert found is not None
        assert found.source
        assert found.bytes_per_second > 1e11
        assert found.flops["float16"] >= found.flops["float32"] > 1e12
