"""Settings that the user's file makes for itself hold in the trials as in training."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from running import Run

pytestmark = pytest.mark.null_gpu

TARGET = """
{lines}
import torch
from torch import nn


def build_model():
    {build}
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))


def make_batch(batch_size):
    return torch.zeros(batch_size, 700, 512)


def training_step(model, batch):
    {step}
    return model(batch).mean()
"""


def _probed(
    oomdoctor_here: Run, tmp_path: Path, *options: str, lines: str = "", build: str = "", step: str = ""
) -> Any:
    text = TARGET.format(lines=lines, build=build or "pass", step=step or "pass")
    (tmp_path / "model.py").write_text(text)
    arguments = ("probe", "model.py", "--target-batch", "4096", "--capacity", "512MiB", "--json", *options)
    ended = oomdoctor_here(*arguments)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)["result"]


@pytest.mark.parametrize("options", [(), ("--engine", "trace")])
@pytest.mark.parametrize("variable", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_allocator_settings_of_the_file_hold(
    oomdoctor_here: Run, tmp_path: Path, variable: str, options: tuple[str, ...]
) -> None:
    """A variable that the file sets at its top gives what the same variable gives in the environment."""
    import torch

    if variable == "PYTORCH_ALLOC_CONF" and torch.__version__ < "2.9":
        pytest.skip("this version of torch reads the other variable only")
    setting = "roundup_power2_divisions:4"
    plain = _probed(oomdoctor_here, tmp_path, *options)["micro_batch"]
    inside = _probed(oomdoctor_here, tmp_path, *options, lines=f"import os\n\nos.environ['{variable}'] = '{setting}'\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variable, setting)
        outside = _probed(oomdoctor_here, tmp_path, *options)
    assert inside["micro_batch"] == outside["micro_batch"]
    assert inside["micro_batch"] != plain
    told = [reason["text"] for reason in inside["reasons"] if reason["subject"] == "allocator"]
    assert told == [f"`{variable}={setting}` is set by the target's file and was used"]


def test_a_setting_that_grows_with_each_import_is_taken_over_once(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A file that appends to the variable would set another one in each worker; the first is taken."""
    name = "os.environ['PYTORCH_CUDA_ALLOC_CONF']"
    lines = f"import os\n\n{name} = os.environ.get('PYTORCH_CUDA_ALLOC_CONF', 'expandable_segments:True') + ','\n"
    assert _probed(oomdoctor_here, tmp_path, lines=lines)["micro_batch"]["maximum"] > 0


@pytest.mark.parametrize("options", [(), ("--engine", "trace")])
@pytest.mark.parametrize("place", ["lines", "build", "step"])
def test_a_memory_fraction_of_the_file_holds(
    oomdoctor_here: Run, tmp_path: Path, place: str, options: tuple[str, ...]
) -> None:
    """`set_per_process_memory_fraction` in the file bounds the trials, and the result says so."""
    call = "torch.cuda.set_per_process_memory_fraction(0.5)"
    found = _probed(
        oomdoctor_here, tmp_path, *options, **{place: f"import torch; {call}" if place == "lines" else call}
    )
    half = _probed(oomdoctor_here, tmp_path, *options, "--capacity", "256MiB")
    total = found["device"]["total_bytes"]
    assert found["capacity_bytes"] == total // 2
    assert abs(found["micro_batch"]["maximum"] - half["micro_batch"]["maximum"]) <= 25 * (place != "")
    fits = [trial for trial in found["trials"] if trial["outcome"] == "fits"]
    assert max(trial["peak_reserved_bytes"] for trial in fits) <= total // 2
    assert any("set_per_process_memory_fraction" in reason["text"] for reason in found["reasons"])
