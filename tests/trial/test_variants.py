"""A variant is made in one place, applied in the worker, and written into the result and the keys of cached answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from oomdoctor.check.cache import key_of
from oomdoctor.errors import TargetError, UsageError
from oomdoctor.progress import SilentProgress
from oomdoctor.request import as_option, build_request, build_variant
from oomdoctor.results import Axis, Variant
from oomdoctor.trial.probe import probe
from oomdoctor.units import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from oomdoctor.results import ProbeResult

pytestmark = pytest.mark.usefixtures("forked_workers")

TARGET = """
import torch
from torch import nn


def build_model():
    return nn.Sequential(nn.Linear(1024, 1100), nn.Linear(1100, 1024), nn.Linear(1024, 8))


def make_batch(batch_size, length=1):
    return torch.randn(batch_size, length, 1024)


def training_step(model, batch):
    return model(batch).mean()
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder with a target whose batches have a length."""
    (tmp_path / "model.py").write_text(TARGET)
    return tmp_path


def probed(folder: Path, variant: Variant) -> ProbeResult:
    """The answer for a target batch of 4 on a null GPU of which PyTorch may take 512 MiB."""
    request = build_request("model.py", directory=folder, target_batch=4, capacity=512 * MIB, engine="null")
    return probe(replace(request, variant=variant), SilentProgress()).result


def peak(result: ProbeResult) -> int:
    """The peak at the maximum."""
    at_maximum = [trial for trial in result.trials if trial.micro_batch == result.micro_batch.maximum]
    return at_maximum[0].peak_allocated_bytes or 0


@pytest.mark.null_gpu
def test_a_transformation_changes_the_model_that_is_trained(target: Path) -> None:
    """In half the bytes, parameters, gradients and optimizer state are half as large."""
    plain, halved = (probed(target, build_variant(transformations=names)) for names in ((), ("bf16-weights",)))

    parameters = 4 * (1024 * 1100 + 1100 + 1100 * 1024 + 1024)
    assert peak(plain) - peak(halved) >= 3 * parameters // 2
    assert halved.variant == Variant(transformations=("bf16-weights",))
    assert plain.variant == Variant()


@pytest.mark.null_gpu
def test_the_environment_is_that_of_the_worker(target: Path) -> None:
    """An allocator that rounds up to powers of two takes more, and a reason names the setting."""
    rounding = build_variant(environment={"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:2"})
    plain, rounded = probed(target, Variant()), probed(target, rounding)

    assert peak(rounded) > peak(plain)
    assert any("roundup_power2_divisions:2" in reason.text for reason in rounded.reasons)
    assert not any("roundup_power2_divisions:2" in reason.text for reason in plain.reasons)


@pytest.mark.null_gpu
def test_an_axis_is_a_keyword_of_make_batch(target: Path) -> None:
    """A longer sequence has larger activations; the default length is the function's own."""
    short, default, long = (probed(target, build_variant(axes=axes)) for axes in ({"length": 1}, {}, {"length": 256}))

    assert peak(short) == peak(default) < peak(long)
    assert long.variant == Variant(axes=(Axis("length", 256),))


@pytest.mark.null_gpu
@pytest.mark.parametrize(
    ("variant", "message"),
    [
        (build_variant(transformations=("no_such",)), "there is no transformation `no_such`"),
        (build_variant(axes={"width": 3}), "`make_batch` takes no `width`"),
    ],
)
def test_what_cannot_be_applied_is_the_targets_error(target: Path, variant: Variant, message: str) -> None:
    """The message names the transformation, or the call."""
    with pytest.raises(TargetError, match=message):
        probed(target, variant)


def test_a_variant_has_a_key_of_its_own(target: Path) -> None:
    """Answers of two variants are not taken for each other."""
    request = build_request("model.py", directory=target, target_batch=4)
    variants = [
        build_variant(),
        build_variant(precision="bf16"),
        build_variant(optimizer="SGD"),
        build_variant(transformations=("a",)),
        build_variant(axes={"length": 2}),
        build_variant(environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    ]
    assert len({key_of(replace(request, variant=variant), {}) for variant in variants}) == len(variants)


def test_order_of_names_makes_no_other_variant() -> None:
    """Variables and axes are sorted; transformations are applied in the order in which they are given."""
    assert build_variant(axes={"b": 1, "a": 2}) == build_variant(axes={"a": 2, "b": 1})
    assert build_variant(environment={"B": "1", "A": "2"}) == build_variant(environment={"A": "2", "B": "1"})
    assert build_variant(transformations=("b", "a")) != build_variant(transformations=("a", "b"))


def test_an_error_names_a_parameter_as_its_user_writes_it() -> None:
    """The command line has `--target-batch`, and Python `target_batch`."""
    for name, spelled in (("--target-batch", as_option), ("target_batch", str)):
        with pytest.raises(UsageError, match=f"`{name}`"):
            build_request("model.py", target_batch=True, spelled=spelled)
    for names, spelled in (("`--memory` and `--capacity`", as_option), ("`memory` and `capacity`", str)):
        with pytest.raises(UsageError, match=names):
            build_request("model.py", memory=MIB, capacity=MIB, spelled=spelled)
