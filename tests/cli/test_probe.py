"""The main job, through the command line, on PyTorch's real CUDA code."""

from __future__ import annotations

import json
from importlib.resources import files
from itertools import cycle, product
from pathlib import Path

import jsonschema
import pytest
from running import INVOCATIONS, Run
from targets_for_tests import MLP, write_target

from oomdoctor.engines.catalogue import find_card

pytestmark = pytest.mark.null_gpu

EXAMPLES = ("gpt2", "resnet50", "vit_b16", "lstm", "unet")
CARDS = ("rtx-4090", "l40s", "a100-sxm4-80gb")
SCHEMA = json.loads((files("oomdoctor") / "schemas" / "probe.schema.json").read_text(encoding="utf-8"))

# What a reader of the README could have written: a residual convolutional classifier with its own loss and optimizer.
READERS_MODULE = '''
"""A small residual network for 64x64 images."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return F.relu(x + self.convolutions(x))


def build_model(channels=128, depth=6):
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        *(Block(channels) for _ in range(depth)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 10),
    )


def make_batch(batch_size):
    return torch.randn(batch_size, 3, 64, 64), torch.randint(0, 10, (batch_size,))


def training_step(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def build_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
'''


def probe(run: Run, *arguments: str, **options: str) -> dict:
    """Run `oomdoctor probe ... --json`, and hold its document to the schema."""
    ended = run("probe", *arguments, "--json", "--quiet", **options)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    document = json.loads(ended.stdout)
    jsonschema.validate(document, SCHEMA)
    return document


def check_answer(result: dict, target_batch: int) -> None:
    """The maximum was run and fits, its successor was run and does not, and the plan reaches the target."""
    maximum = result["micro_batch"]["maximum"]
    outcomes = {
        trial["micro_batch"]: trial["outcome"]
        for trial in result["trials"]
        if trial["allowed_bytes"] == result["capacity_bytes"]
        and trial["micro_batches_per_step"] == (2 if trial["micro_batch"] < target_batch else 1)
    }
    assert outcomes[maximum] == "fits"
    if result["micro_batch"]["limited_by"] == "memory":
        assert outcomes[maximum + 1] == "oom"
    else:
        assert maximum == target_batch
    assert 0 < result["micro_batch"]["recommended"] <= maximum
    plan = result["accumulation"]
    assert sum(plan["micro_batches"]) == plan["effective_batch"] == target_batch
    assert max(plan["micro_batches"]) <= maximum
    assert len(plan["micro_batches"]) == plan["steps"] >= -(-target_batch // maximum)
    fitting = {trial["micro_batch"] for trial in result["trials"] if trial["outcome"] == "fits"}
    assert set(plan["micro_batches"]) <= fitting
    careful = result["recommended_accumulation"]
    assert sum(careful["micro_batches"]) == target_batch
    assert max(careful["micro_batches"]) <= result["micro_batch"]["recommended"]
    assert set(careful["micro_batches"]) <= fitting


@pytest.mark.parametrize(
    ("example", "card"),
    [*product(EXAMPLES[:1], CARDS), *zip(EXAMPLES[1:], cycle(CARDS), strict=False)],
)
def test_every_example_is_answered(oomdoctor_here: Run, example: str, card: str) -> None:
    """Each shipped example gets an exact answer on a 24, a 48 or an 80 GiB card, and one of them on all three."""
    document = probe(oomdoctor_here, example, "--target-batch", "256", "--gpu", card, "--precision", "bf16")

    result = document["result"]
    assert result["device"]["kind"] == "null"
    assert result["capacity_bytes"] == pytest.approx(find_card(card).capacity_bytes, abs=2**21)
    check_answer(result, 256)


def test_a_readers_own_module_is_answered(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A file as the README tells people to write it is probed with its own loss and optimizer."""
    (tmp_path / "residual.py").write_text(READERS_MODULE)

    document = probe(
        oomdoctor_here, "residual.py:build_model(depth=8)", "--target-batch", "2048", "--gpu", "rtx-3060-12gb"
    )

    assert document["result"]["optimizer"] == "SGD"
    assert 1 < document["result"]["micro_batch"]["maximum"] < 2048
    check_answer(document["result"], 2048)


@pytest.mark.parametrize("invocation", INVOCATIONS)
def test_both_invocations_print_the_same_result_and_nothing_else(
    tmp_path: Path, oomdoctor: Run, invocation: str
) -> None:
    """`oomdoctor` and `python -m oomdoctor` print one JSON document on stdout."""
    write_target(tmp_path)

    document = probe(oomdoctor, "model.py", "--target-batch", "64", "--capacity", "1GiB", invocation=invocation)

    assert document["command"] == "probe"
    assert document["status"] == "fits"
    assert document["exit_code"] == 0
    assert document["result"]["capacity_bytes"] == 2**30


@pytest.mark.parametrize("engine", ["null", "trace"])
def test_what_others_hold_lowers_the_capacity(tmp_path: Path, oomdoctor_here: Run, engine: str) -> None:
    """A reserve is taken off the card's memory and off a capacity, and the result and the report name it."""
    write_target(tmp_path)
    question = ("model.py", "--target-batch", "8", "--engine", engine, "--reserve", "256MiB")

    on_card = probe(oomdoctor_here, *question, "--gpu", "rtx-3060-12gb")
    shown = oomdoctor_here("probe", *question, "--capacity", "1GiB", "--quiet")

    device, card = on_card["result"]["device"], find_card("rtx-3060-12gb")
    assert on_card["result"]["capacity_bytes"] == pytest.approx(card.capacity_bytes - 2**28, abs=2**21)
    assert (device["reserve_bytes"], device["context_bytes"]) == (2**28, card.context_bytes)
    assert "768.00 MiB = 1.00 GiB total - 256.00 MiB reserved for others" in shown.stdout


def test_progress_goes_to_stderr_and_a_file_gets_the_report(tmp_path: Path, oomdoctor: Run) -> None:
    """With `-o` stdout stays empty, stderr shows the trials, and the file can be rendered again."""
    write_target(tmp_path)
    arguments = ("model.py", "--target-batch", "64", "--engine", "null", "--capacity", "1GiB")

    ended = oomdoctor("probe", *arguments, "--json", "-o", "result.json")
    again = oomdoctor("report", "result.json")

    assert (ended.returncode, ended.stdout) == (0, "")
    assert "micro-batch 64 fits" in ended.stderr
    assert again.returncode == 0
    assert "micro-batch 64 fits" in again.stdout


def test_less_memory_gives_a_smaller_answer(tmp_path: Path, oomdoctor_here: Run) -> None:
    """Capacity decides: the same file fits fewer samples where there is less memory."""
    write_target(tmp_path)
    maxima = [
        probe(oomdoctor_here, "model.py", "--target-batch", "8192", "--capacity", memory)["result"]["micro_batch"][
            "maximum"
        ]
        for memory in ("192MiB", "256MiB", "320MiB")
    ]

    assert 0 < maxima[0] < maxima[1] < maxima[2] < 8192


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_runs(oomdoctor_here: Run, precision: str) -> None:
    """fp32, bf16 and fp16 with a gradient scaler train the same file."""
    document = probe(oomdoctor_here, "vit_b16", "--target-batch", "4", "--capacity", "8GiB", "--precision", precision)

    assert document["result"]["precision"] == precision
    assert [phase["iteration"] for phase in document["result"]["phases"]] == [0, 1, 1, 1, 2, 2, 2]


def test_half_precision_takes_less_memory(oomdoctor_here: Run) -> None:
    """Autocast really runs: the activations of bf16 are smaller than those of fp32."""
    peaks = [
        probe(oomdoctor_here, "vit_b16", "--target-batch", "64", "--capacity", "24GiB", "--precision", precision)
        for precision in ("fp32", "bf16")
    ]

    fp32, bf16 = (max(phase["peak_allocated_bytes"] for phase in peak["result"]["phases"]) for peak in peaks)
    assert bf16 < 0.75 * fp32


def test_the_second_iteration_holds_the_optimizers_state(oomdoctor_here: Run) -> None:
    """AdamW's two moments are there in the second forward and not in the first, in bytes of the weights."""
    result = probe(oomdoctor_here, "vit_b16", "--target-batch", "2", "--capacity", "16GiB")["result"]
    peak = {(phase["iteration"], phase["phase"]): phase["end_allocated_bytes"] for phase in result["phases"]}

    assert peak[2, "forward"] - peak[1, "forward"] == pytest.approx(2 * result["weights_bytes"], rel=0.1)


def test_a_far_target_is_approached_from_below(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A target far above what fits never makes a trial far above what is known to fit: the host would run out."""
    write_target(tmp_path)

    result = probe(oomdoctor_here, "model.py", "--target-batch", "5000000", "--capacity", "512MiB")["result"]

    check_answer(result, 5_000_000)
    largest_fit = 0
    for trial in result["trials"]:
        assert trial["micro_batch"] <= max(4096, 8 * largest_fit)
        if trial["outcome"] == "fits":
            largest_fit = max(largest_fit, trial["micro_batch"])
    assert largest_fit > 4096
    assert sum(trial["micro_batches_per_step"] == 2 for trial in result["trials"]) <= 12
    # At the edge eight steps prove a size, and a replay of as many foretells where that ends.
    assert sum(trial["micro_batches_per_step"] == 1 for trial in result["trials"]) <= 7


def test_the_named_optimizer_is_used(tmp_path: Path, oomdoctor_here: Run) -> None:
    """`--optimizer` names a class of `torch.optim`, in any case."""
    write_target(tmp_path)

    document = probe(
        oomdoctor_here, "model.py", "--target-batch", "4", "--capacity", "1GiB", "--optimizer", "adafactor"
    )

    assert document["result"]["optimizer"] == "Adafactor"


def test_the_world_shares_the_target(tmp_path: Path, oomdoctor_here: Run) -> None:
    """With four devices each does a quarter of the target, and nothing above that is tried."""
    write_target(tmp_path)

    result = probe(oomdoctor_here, "model.py", "--target-batch", "64", "--world-size", "4", "--capacity", "1GiB")[
        "result"
    ]

    assert result["micro_batch"] == {
        "maximum": 16, "recommended": 16, "limited_by": "target", "smallest": 1, "plain_maximum": None,
    }  # fmt: skip
    assert result["accumulation"]["micro_batches"] == [16]
    assert result["accumulation"]["effective_batch"] == 64


def test_a_dry_run_explains_the_file(tmp_path: Path, oomdoctor_here: Run) -> None:
    """`--dry-run` says which functions were found where, and tries the smallest size once."""
    write_target(tmp_path)

    ended = oomdoctor_here("probe", "model.py", "--dry-run", "--engine", "null", "--capacity", "1GiB", "--quiet")

    assert ended.returncode == 0, ended.stderr
    assert "`make_batch` at model.py:" in ended.stdout
    assert "AdamW" in ended.stdout
    assert "One trial at micro-batch 1: fits" in ended.stdout


def test_the_users_directory_is_left_alone(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A probe writes nothing beside the user's file but Python's own cache."""
    write_target(tmp_path, MLP)

    probe(oomdoctor_here, "model.py", "--target-batch", "4", "--capacity", "1GiB")

    assert {path.name for path in tmp_path.iterdir()} <= {"model.py", "__pycache__"}


# Gradients of 64 MiB against samples of 256 KiB: accumulating costs as much as 256 samples.
HEAVY_WEIGHTS = """
import torch
from torch import nn


def build_model():
    return nn.Linear(4096, 4096, bias=False)


def make_batch(batch_size):
    return torch.zeros(batch_size, 16, 4096)


def training_step(model, batch):
    return model(batch).mean()


def build_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
"""


def test_a_target_that_fits_without_accumulation_is_found(tmp_path: Path, oomdoctor_here: Run) -> None:
    """The whole target in one micro-batch keeps no gradients alive, and may fit where one sample less does not."""
    (tmp_path / "heavy.py").write_text(HEAVY_WEIGHTS)
    accumulating = probe(oomdoctor_here, "heavy.py", "--target-batch", "4096", "--capacity", "256MiB")["result"]
    maximum = accumulating["micro_batch"]["maximum"]

    result = probe(oomdoctor_here, "heavy.py", "--target-batch", str(maximum + 20), "--capacity", "256MiB")["result"]

    assert result["micro_batch"]["maximum"] == maximum + 20
    assert result["micro_batch"]["limited_by"] == "target"
    assert result["accumulation"]["steps"] == 1
    assert any("with accumulation the largest is" in warning for warning in result["warnings"])


def test_without_a_target_the_answer_is_of_plain_steps(tmp_path: Path, oomdoctor_here: Run) -> None:
    """Nothing is accumulated then; with a target both answers are told where accumulating makes one smaller."""
    (tmp_path / "heavy.py").write_text(HEAVY_WEIGHTS)

    plain = probe(oomdoctor_here, "heavy.py", "--capacity", "256MiB")["result"]
    accumulating = probe(oomdoctor_here, "heavy.py", "--target-batch", "4096", "--capacity", "256MiB")["result"]

    assert plain["accumulation"] is plain["recommended_accumulation"] is plain["target_samples"] is None
    assert {trial["micro_batches_per_step"] for trial in plain["trials"]} == {1}
    assert plain["micro_batch"]["limited_by"] == "memory"
    assert plain["micro_batch"]["maximum"] > accumulating["micro_batch"]["maximum"]
    assert accumulating["micro_batch"]["plain_maximum"] == plain["micro_batch"]["maximum"]
    check_answer(accumulating, 4096)


def test_devices_need_a_target_to_share(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A world size without a target batch is refused."""
    write_target(tmp_path)

    ended = oomdoctor_here("probe", "model.py", "--world-size", "2", "--gpu", "t4")

    assert ended.returncode == 2
    assert "world size 2 shares a target batch, and none is given" in ended.stderr


def test_no_device_is_refused_before_a_missing_target(oomdoctor_here: Run) -> None:
    """What is wrong with a world size of 0 is the number, whatever else is missing."""
    ended = oomdoctor_here("probe", "gpt2", "--world-size", "0", "--gpu", "t4")

    assert ended.returncode == 2
    assert "world size 0 is not a number of devices" in ended.stderr


def test_a_card_that_this_torch_was_not_built_for_is_said(tmp_path: Path, oomdoctor_here: Run) -> None:
    """An answer for a card that the installed torch has no kernels for comes with a warning, others without."""
    write_target(tmp_path)
    warnings = {
        card: probe(oomdoctor_here, "model.py", "--target-batch", "4", "--gpu", card)["result"]["warnings"]
        for card in ("gtx-1080-ti", "rtx-5090")
    }

    assert ["not built for compute capability 6.1" in warning for warning in warnings["gtx-1080-ti"]] == [True]
    assert warnings["rtx-5090"] == []


def test_help_names_the_default_number_of_steps(oomdoctor: Run) -> None:
    """The command line repeats the number, since to import the question would slow down `--help`."""
    from oomdoctor.request import DEFAULT_STEPS

    shown = " ".join(oomdoctor("probe", "--help", COLUMNS="200").stdout.split())

    assert f"a trial of a command is ended. [default: {DEFAULT_STEPS}]" in shown


def test_a_size_that_batch_norm_refuses_is_not_what_runs_out(oomdoctor: Run, tmp_path: Path) -> None:
    """Where nothing fits, the headline and the error are those of the smallest size that ran out."""
    (tmp_path / "norm.py").write_text(
        "import torch\n"
        "def build_model(): return torch.nn.Sequential(torch.nn.Linear(70, 400000), torch.nn.BatchNorm1d(400000))\n"
        "def make_batch(batch_size): return torch.zeros(batch_size, 70)\n"
        "def training_step(model, batch): return model(batch).sum()\n"
    )

    ended = oomdoctor("probe", "norm.py", "--target-batch", "10", "--gpu", "t4", "--capacity", "300MiB", "-q")

    assert ended.returncode == 1
    assert "nothing fits; micro-batch 2 runs out" in " ".join(ended.stdout.split())
    assert "The error at micro-batch 2" in ended.stdout


@pytest.mark.parametrize("memory", ["1MiB", "5MiB"])
def test_a_capacity_below_one_block_is_an_answer(oomdoctor: Run, tmp_path: Path, memory: str) -> None:
    """Where not even PyTorch's first block fits, nothing fits."""
    write_target(tmp_path, MLP)

    ended = oomdoctor("probe", "model.py", "--target-batch", "4", "--gpu", "t4", "--capacity", memory, "-q")

    assert ended.returncode == 1
    assert "nothing fits; loading the model runs out of memory" in " ".join(ended.stdout.split())


def test_weights_below_a_tiny_capacity_are_not_called_too_large(oomdoctor_here: Run, tmp_path: Path) -> None:
    """What has no room is the allocator's block, and no sentence says otherwise."""
    (tmp_path / "tiny.py").write_text(
        "import torch\n"
        "def build_model(): return torch.nn.Linear(4, 4)\n"
        "def make_batch(batch_size): return torch.zeros(batch_size, 4)\n"
        "def training_step(model, batch): return model(batch).sum()\n"
    )

    ended = oomdoctor_here("probe", "tiny.py", "--capacity", "1MiB", "--engine", "null", "-q")

    text = " ".join(ended.stdout.split())
    assert ended.returncode == 1
    assert "the weights take 80 bytes of the capacity's 1.00 MiB" in text
    assert "PyTorch takes memory for them in blocks of 2 MiB and more" in text
    assert "weights alone do not fit" not in text


def test_a_dry_run_names_the_optimizer_that_was_asked_for(oomdoctor_here: Run, tmp_path: Path) -> None:
    """The default is not told where `--optimizer` names another."""
    write_target(tmp_path)

    ended = oomdoctor_here("probe", "model.py", "--dry-run", "--optimizer", "SGD", "--gpu", "t4", "--quiet")

    assert ended.returncode == 0, ended.stderr
    assert "build_optimizer  `--optimizer SGD`" in ended.stdout


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("check", "--help")])
def test_a_full_standard_output_is_said(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """What cannot be written is no bug of ours."""
    import subprocess

    command = [*INVOCATIONS["oomdoctor"], *arguments]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)

    assert ended.returncode == 2
    assert "standard output cannot be written" in ended.stderr
