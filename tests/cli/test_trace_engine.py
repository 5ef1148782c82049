"""`--engine trace`: an answer without a GPU, without CUDA and without a compiler."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from running import Run
from targets_for_tests import write_target

SCHEMA = json.loads((files("oomdoctor") / "schemas" / "probe.schema.json").read_text(encoding="utf-8"))
_COMPARED = ("outcome", "peak_allocated_bytes", "peak_reserved_bytes", "fixed_bytes", "alloc_retries", "phases")

_CHOOSES = """
def training_step(model, batch):
    outputs = model(batch)
    return outputs.sum() + outputs.long().flatten().bincount()[0]
"""
_SAVES = """
def build_model():
    model = nn.Linear(1024, 1024).cuda()
    torch.save(model.state_dict(), "weights.pt")
    return model
"""
_WITH_GAPS = """
def training_step(model, batch):
    kernel = torch.zeros(1, 1, 3, 3, device=batch.device)
    picture = model(batch).view(1, 1, 8, -1)
    return torch.nn.functional.conv_transpose2d(picture, kernel, output_padding=1, dilation=2).sum()
"""
"""Its output is padded by a stride, which cuDNN does not do."""
_IN_BACKWARD = """
def training_step(model, batch):
    outputs = model(batch)
    classes = torch.zeros(outputs.shape[0], dtype=torch.long, device=outputs.device)
    return nn.functional.multi_margin_loss(outputs, classes)
"""
_LOOKS = """
def training_step(model, batch):
    loss = model(batch).square().mean()
    print(loss.item())
    return loss
"""
_QUANTIZES = """
def build_model():
    from torch.ao import quantization

    model = nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()).train()
    model = nn.Sequential(quantization.fuse_modules_qat(model, ["0", "1", "2"]), nn.Flatten(), nn.Linear(576, 10))
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    return quantization.prepare_qat(model.train())
"""
_NAMES_TYPES = """
Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor


def training_step(model, batch):
    outputs = model(batch.type(Tensor))
    valid = torch.autograd.Variable(Tensor(*outputs.shape).fill_(1.0), requires_grad=False)
    assert isinstance(outputs, Tensor) and outputs.type() == "torch.cuda.FloatTensor"
    return nn.functional.mse_loss(outputs, valid)
"""
_PICTURES = """
def make_batch(batch_size):
    return torch.randn(batch_size, 3, 8, 8)
"""
_TRANSFORMS = """
def training_step(model, batch):
    window = torch.hann_window(600, device=batch.device)
    spectrum = torch.stft(model(batch), 600, window=window, return_complex=True)
    return torch.istft(spectrum, 600, window=window).mean() + torch.linalg.svdvals(model[0].weight).sum()
"""


def _probe(run: Run, *arguments: str, **options: Any) -> dict[str, Any]:
    ended = run("probe", *arguments, "--json", "--quiet", **options)
    assert (ended.returncode, ended.stderr) == (0, "")
    document = json.loads(ended.stdout)
    jsonschema.validate(document, SCHEMA)
    return document["result"]


def _trials(result: dict[str, Any]) -> dict[tuple[int, int], list[Any]]:
    return {
        (trial["micro_batch"], trial["allowed_bytes"]): [trial[name] for name in _COMPARED]
        for trial in result["trials"]
    }


@pytest.mark.parametrize("engine", ["trace", pytest.param("null", marks=pytest.mark.null_gpu)])
def test_lengths_that_are_drawn_are_told(oomdoctor_here: Run, tmp_path: Path, engine: str) -> None:
    """Where the trial at the maximum takes other memory once more, the result warns and says what to do."""
    drawn = """
        import random
        def make_batch(batch_size):
            longest = random.choice(range(20_000, 400_000, 2))
            return torch.zeros(batch_size, 1024), torch.zeros(batch_size, longest)
    """
    write_target(
        tmp_path, make_batch=drawn, training_step="def training_step(model, batch):\n    return model(batch[0]).sum()"
    )

    result = _probe(oomdoctor_here, "model.py", "--target-batch", "64", "--gpu", "t4", "--engine", engine)

    told = [line for line in result["warnings"] if "no two trials of this target allocate the same memory" in line]
    assert len(told) == 1
    assert "where `make_batch` draws lengths at random, let it make the longest" in told[0]


@pytest.mark.null_gpu
def test_lengths_that_are_drawn_are_the_same_in_every_trial(oomdoctor_here: Run, tmp_path: Path) -> None:
    """What `make_batch` draws with PyTorch, NumPy or `random` hangs on the engine no more than on what ran before."""
    drawn = """
        import random
        import numpy
        def make_batch(batch_size):
            longest = int(torch.randint(20_000, 40_000, ())) + random.randrange(20_000) + numpy.random.randint(20_000)
            return torch.zeros(batch_size, 1024), torch.zeros(batch_size, longest)
    """
    step = "def training_step(model, batch):\n    return model(batch[0]).sum() + torch.rand(1).sum().item()"
    write_target(tmp_path, make_batch=drawn, training_step=step)
    question = ("model.py", "--gpu", "t4", "--capacity", "256MiB")

    traced, run, again = (_probe(oomdoctor_here, *question, "--engine", name) for name in ("trace", "null", "null"))

    assert traced["micro_batch"] == run["micro_batch"] == again["micro_batch"]
    assert _trials(run) == _trials(again)
    sizes = [size for size in _trials(run) if size in _trials(traced)]
    assert len(sizes) > 2
    assert [_trials(traced)[size] for size in sizes] == [_trials(run)[size] for size in sizes]


@pytest.mark.null_gpu
@pytest.mark.parametrize(("example", "precision"), [("gpt2", "bf16"), ("resnet50", "fp32")])
def test_a_trace_answers_as_the_null_gpu(oomdoctor_here: Run, example: str, precision: str) -> None:
    """Each trial has the outcome, the peaks, the phases and the retries that PyTorch has on a null GPU, to the byte."""
    question = (example, "--target-batch", "256", "--gpu", "rtx-4090", "--precision", precision)
    traced, run = (_probe(oomdoctor_here, *question, "--engine", engine) for engine in ("trace", "null"))

    assert traced["micro_batch"] == run["micro_batch"]
    assert traced["accumulation"] == run["accumulation"]
    assert _trials(traced) == _trials(run)
    assert (traced["device"]["kind"], run["device"]["kind"]) == ("trace", "null")
    assert {**traced["device"], "kind": None} == {**run["device"], "kind": None}


def test_a_trace_needs_no_gpu_and_no_compiler(oomdoctor: Run) -> None:
    """With nothing but Python on the path the answer is there, and says how it was had."""
    result = _probe(
        oomdoctor, "gpt2", "--target-batch", "256", "--gpu", "rtx-4090", "--engine", "trace",
        PATH="/nowhere",
        CC="/nowhere/cc",
    )  # fmt: skip

    sizes = {"maximum": 16, "plain_maximum": 16, "recommended": 16, "smallest": 1}
    assert result["micro_batch"] == {**sizes, "limited_by": "memory"}
    assert sum(result["accumulation"]["micro_batches"]) == 256
    reasons = {reason["subject"]: reason["text"] for reason in result["reasons"]}
    assert reasons["engine"].startswith("trace: asked for by `--engine trace`")
    assert "simulation" in reasons["peaks"]
    assert result["memory"] is None


def test_without_a_null_gpu_a_trace_answers_by_itself(oomdoctor: Run, tmp_path: Path) -> None:
    """Where the null GPU cannot be had, because there is no compiler or no CUDA, `auto` traces and says why."""
    environment = {"CC": "/nowhere/cc", "PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    write_target(tmp_path)
    question = ("model.py", "--target-batch", "65536", "--capacity", "1GiB")

    result = _probe(oomdoctor, *question, **environment)

    assert result["device"]["kind"] == "trace"
    assert result["reasons"][0]["text"].startswith("trace: the null GPU")
    assert 1 < result["micro_batch"]["maximum"] < 65536


def test_a_step_that_depends_on_data_is_named(oomdoctor_here: Run, tmp_path: Path) -> None:
    """The operator and the user's line are told, and the engine that can run it; it is no fault of the target."""
    write_target(tmp_path, training_step=_CHOOSES)

    ended = oomdoctor_here("probe", "model.py", "--target-batch", "64", "--gpu", "t4", "--engine", "trace")

    lines = (tmp_path / "model.py").read_text().splitlines()
    line = lines.index("    return outputs.sum() + outputs.long().flatten().bincount()[0]") + 1
    assert ended.returncode == 3
    assert "`aten.bincount` cannot be traced" in ended.stderr
    assert f"model.py:{line}" in ended.stderr
    assert "--engine null" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("function", "code", "said"),
    [
        ("build_model", _SAVES, "`torch.save` cannot be traced, at "),
        ("training_step", _IN_BACKWARD, "`aten.multi_margin_loss_backward` cannot be traced; none of your lines"),
        ("training_step", _WITH_GAPS, "`aten.convolution` cannot be traced, at "),
    ],
)
def test_what_cannot_be_traced_is_nobodys_fault(
    oomdoctor_here: Run, tmp_path: Path, function: str, code: str, said: str
) -> None:
    """Wherever it is called, it is named as such, and no line of oomdoctor's is named as the user's."""
    write_target(tmp_path, **{function: code})

    ended = oomdoctor_here("probe", "model.py", "--target-batch", "64", "--gpu", "t4", "--engine", "trace")

    assert ended.returncode == 3
    assert said in ended.stderr
    assert "--engine null" in ended.stderr
    assert "oomdoctor/" not in ended.stderr.replace(str(tmp_path), "")


@pytest.mark.parametrize("engine", ["trace", pytest.param("null", marks=pytest.mark.null_gpu)])
def test_tensors_can_be_made_by_the_old_names_of_types(oomdoctor_here: Run, tmp_path: Path, engine: str) -> None:
    """A step that takes `torch.cuda.FloatTensor` for its type, as many of GANs do, is probed on either engine."""
    write_target(tmp_path, training_step=_NAMES_TYPES)

    result = _probe(oomdoctor_here, "model.py", "--target-batch", "8", "--gpu", "t4", "--engine", engine)

    assert result["warnings"] == []


def test_what_a_step_prints_of_its_loss_is_a_placeholder(oomdoctor_here: Run, tmp_path: Path) -> None:
    """`.item()` is answered, and the result warns that what depends on it is not counted."""
    write_target(tmp_path, training_step=_LOOKS)

    result = _probe(oomdoctor_here, "model.py", "--target-batch", "64", "--gpu", "t4", "--engine", "trace")

    assert any("read data back from the GPU" in warning and "in a trace" in warning for warning in result["warnings"])


@pytest.mark.null_gpu
def test_observers_of_quantization_are_counted_and_what_they_read_is_not_told(
    oomdoctor_here: Run, tmp_path: Path
) -> None:
    """What observers keep of each channel is in the peaks, and the zero points that rounding checks are no warning."""
    write_target(tmp_path, build_model=_QUANTIZES, make_batch=_PICTURES)

    traced, null = (
        _probe(oomdoctor_here, "model.py", "--target-batch", "64", "--capacity", "64MiB", "--engine", engine)
        for engine in ("trace", "null")
    )

    assert _trials(traced) == _trials(null)
    assert traced["warnings"] == null["warnings"] == []


def test_work_areas_that_are_counted_by_a_rule_are_told(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A step with singular values and a long inverse STFT, whose window is checked, is traced, and says so."""
    write_target(tmp_path, training_step=_TRANSFORMS)

    result = _probe(oomdoctor_here, "model.py", "--target-batch", "8", "--gpu", "t4", "--engine", "trace")

    said = " ".join(result["warnings"])
    assert "Fourier transforms are counted as cuFFT's documentation names the least" in said
    assert "cuSOLVER" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gpt2", "--device", "0"), "`--engine trace` uses none"),
        (("gpt2",), "neither `--gpu` nor `--memory`"),
    ],
)
def test_a_trace_has_to_know_its_card(oomdoctor_here: Run, arguments: tuple[str, ...], said: str) -> None:
    """Without a card there is nothing to emulate, and a local GPU is not used."""
    ended = oomdoctor_here("probe", *arguments, "--target-batch", "64", "--engine", "trace")

    assert ended.returncode in (2, 3)
    assert said in ended.stderr.replace("\n", " ")


def test_what_is_known_to_be_too_low_is_said(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A card without bf16 runs it in ways that a trace does not know: the result warns."""
    write_target(tmp_path)
    question = ("model.py", "--target-batch", "64", "--engine", "trace", "--precision", "bf16")

    on_old, on_new = (_probe(oomdoctor_here, *question, "--gpu", gpu)["warnings"] for gpu in ("t4", "rtx-4090"))

    assert any("a trace of bf16 is too low" in warning for warning in on_old)
    assert not any("too low" in warning for warning in on_new)


@pytest.mark.slow
def test_a_check_without_cuda_compares_peaks_and_phases(oomdoctor: Run, tmp_path: Path) -> None:
    """Where only a trace answers, what a baseline holds are the trials' peaks, and growth at the same maximum fails."""
    environment = {"CC": "/nowhere/cc", "PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    write_target(tmp_path)
    settings = """
[tool.oomdoctor]
gpu = "rtx-4090"
target-batch = 64
[[tool.oomdoctor.check]]
name = "model"
target = "model.py"
optimizer = "{}"
micro-batch = 48
max-memory = "1 GiB"
baseline = true
"""
    (tmp_path / "pyproject.toml").write_text(settings.format("SGD"))
    assert oomdoctor("check", "--update", "--quiet", **environment).returncode == 0
    entry = json.loads((tmp_path / "oomdoctor-baseline.json").read_text())["entries"]["model"]
    same = oomdoctor("check", "--quiet", **environment)

    (tmp_path / "pyproject.toml").write_text(settings.format("AdamW"))
    grown = oomdoctor("check", "--quiet", **environment)

    assert (same.returncode, grown.returncode) == (0, 1)
    assert entry["memory"] is None
    assert "48" in entry["trials"]
    assert "peak allocated" in grown.stdout
    assert "could not be measured" not in same.stdout
