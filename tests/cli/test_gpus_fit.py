"""`oomdoctor gpus --fit`: one table for all cards, whose answers are those that a probe of each card gives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from running import marked_processes, run_here
from targets_for_tests import MLP

import oomdoctor
from oomdoctor.engines.catalogue import find_card
from oomdoctor.multi_card.fit import fit_cards
from oomdoctor.multi_card.pool import probe_cards
from oomdoctor.progress import SilentProgress
from oomdoctor.request import ProbeRequest

pytestmark = pytest.mark.usefixtures("forked_workers")
SCHEMA = Path(oomdoctor.__file__).parent / "schemas" / "fit.schema.json"

# Attention, a sum over many rows, a dictionary: what differs from card to card and what does not.
ATTENDING = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(1000, 512)
        self.layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        self.out = torch.nn.Linear(512, 1000)

    def forward(self, x):
        return self.out(self.layer(self.words(x)))

def build_model():
    return Model()

def make_batch(size):
    return torch.randint(1000, (size, 1024))

def training_step(model, batch):
    return torch.nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
"""

# As above, but for sizes that are no line over the micro-batch: rows are filled up to a multiple of 32.
PADDING = ATTENDING.replace(
    "return torch.nn.functional.cross_entropy",
    "batch = torch.nn.functional.pad(batch, (0, 0, 0, -len(batch) % 32))\n    return torch.nn.functional.cross_entropy",
)

UNTRACEABLE = ATTENDING.replace(
    "return torch.nn.functional.cross_entropy",
    "chosen = torch.rand(len(batch), device=batch.device) > 0.5\n    batch += len(chosen.long().bincount())\n"
    "    return torch.nn.functional.cross_entropy",
)


def fitted(directory: Path, code: str, *options: str) -> dict[str, Any]:
    """What the command says of a target, by card."""
    (directory / "train.py").write_text(code)
    finished = run_here(["gpus", "--fit", "train.py", *options, "--json", "-q"], directory)
    assert finished.returncode == 0, finished.stderr
    document = json.loads(finished.stdout)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    return {card["gpu"]: card for card in document["result"]["cards"]}


def probed(directory: Path, gpu: str, engine: str, *options: str) -> tuple[dict[str, Any], Any]:
    """What a probe says of the same target."""
    arguments = ["probe", "train.py", "--gpu", gpu, "--engine", engine, *options, "--json", "-q"]
    finished = run_here(arguments, directory)
    assert finished.returncode == 0, finished.stderr
    result = json.loads(finished.stdout)["result"]
    return result["micro_batch"], result["accumulation"]


def agrees(card: dict[str, Any], answer: tuple[dict[str, Any], Any]) -> bool:
    """Whether a card's row is a probe's answer."""
    micro_batch, plan = answer
    return plan == card["accumulation"] and all(micro_batch[name] == size for name, size in card["micro_batch"].items())


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory, forked_workers: None) -> dict[str, Any]:
    """What the command says of a target with attention."""
    return fitted(tmp_path_factory.mktemp("fitted"), ATTENDING, "--target-batch", "600")


def test_every_card_has_the_answer_of_its_own_probe(cards: dict[str, Any], tmp_path: Path) -> None:
    """Cards of two generations agree with a probe of each."""
    (tmp_path / "train.py").write_text(ATTENDING)

    for gpu in ("gtx-1060-6gb", "rtx-3060-12gb"):
        assert agrees(cards[gpu], probed(tmp_path, gpu, "trace", "--target-batch", "600")), gpu
    question = ("--target-batch", "600", "--reserve", "3GiB")
    (reserved,) = fitted(tmp_path, ATTENDING, *question, "--gpu", "gtx-1060-6gb").values()
    assert agrees(reserved, probed(tmp_path, "gtx-1060-6gb", "trace", *question))
    assert reserved["capacity_bytes"] == cards["gtx-1060-6gb"]["capacity_bytes"] - 3 * 2**30
    assert [cards[gpu]["micro_batch"]["limited_by"] for gpu in ("gtx-1060-6gb", "h200")] == ["memory", "target"]


# A length beside the batch, above which its model cannot be built.
SIZED = ATTENDING.replace(
    "(size):\n    return torch.randint(1000, (size, 1024))",
    """(size, *, length=64):
    return torch.randint(1000, (size, length))""",
).replace(
    "def build_model():\n",
    """def build_model(*, length=64):
    if length > 512:
        raise ValueError(f"{length} positions")
""",
)


def test_cards_by_lengths(tmp_path: Path) -> None:
    """Each card at each length has the answer of its own probe; a length that the model cannot have has none."""
    (tmp_path / "train.py").write_text(SIZED)
    gpus = [word for gpu in ("gtx-1060-6gb", "rtx-3060-12gb") for word in ("--gpu", gpu)]
    question = ["gpus", "--fit", "train.py", *gpus, "--over", "length=256,512,1024", "--target-batch", "600", "-q"]
    finished = run_here([*question, "--json"], tmp_path)
    document = json.loads(finished.stdout)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert (finished.returncode, document["status"], document["exit_code"]) == (2, "incomplete", 2)
    rows = document["result"]["cards"]
    assert [row["gpu"] for row in rows] == [gpu for gpu in gpus[1::2] for _ in range(3)]
    for row in (rows[0], rows[4]):
        at = "--at=length=" + str(row["at_sizes"][0]["size"])
        assert agrees(row, probed(tmp_path, row["gpu"], "trace", "--target-batch", "600", at))
        (alone,) = fitted(tmp_path, SIZED, "--target-batch", "600", "--gpu", row["gpu"], at).values()
        assert {**alone, "at_sizes": row["at_sizes"]} == row
    assert [row["micro_batch"]["limited_by"] for row in rows[2::3]] == ["unknown"] * 2
    assert "1024 positions" in rows[2]["notes"][0]


WIDER = SIZED.replace("length > 512", "length > 100_000")
OF_BATCH = WIDER.replace("def build_model(*, length=64)", "def build_model()").replace("length > 100_000", "False")


@pytest.mark.parametrize(
    ("code", "engine"),
    [(SIZED, "trace"), (WIDER, "trace"), (OF_BATCH, "trace"), pytest.param(WIDER, "null", marks=pytest.mark.null_gpu)],
    ids=["limited", "model and batch", "batch", "probed"],
)
def test_cards_by_the_largest_length(tmp_path: Path, code: str, engine: str) -> None:
    """Each card has the largest length of its own probe, of a model that has the length too or not, and its limit."""
    gpus = [word for gpu in ("gtx-1060-6gb", "rtx-3060-12gb") for word in ("--gpu", gpu)]
    question = ("--largest", "length", "--micro-batch", "64", "--multiple-of", "32", "--target-batch", "128")
    rows = fitted(tmp_path, code, *gpus, *question, "--engine", engine)
    for gpu, row in rows.items():
        probed = run_here(["probe", "train.py", "--gpu", gpu, "--engine", engine, *question, "--json", "-q"], tmp_path)
        (cell,) = json.loads(probed.stdout)["result"]["cells"]
        assert row["micro_batch"] == {name: cell[name] for name in ("maximum", "recommended", "limited_by")}
        assert (row["notes"], row["accumulation"]) == (cell["notes"], None)
        assert row["micro_batch"]["maximum"] % 32 == 0 < row["micro_batch"]["recommended"]
    text = run_here(["gpus", "--fit", "train.py", *gpus, *question, "--engine", engine, "-q"], tmp_path).stdout
    assert "largest: the largest length at micro-batch 64" in text
    assert "steps" not in text.splitlines()[0]


POSITIONS = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(100, 16), nn.Embedding(512, 16)
        self.head = nn.Linear(16, 100)

    def forward(self, x):
        return self.head(self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device)))


def build_model():
    return Model()


def make_batch(batch_size, *, length=64):
    return torch.zeros(batch_size, length, dtype=torch.long), torch.zeros(batch_size, length, dtype=torch.long)


def training_step(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())
"""


@pytest.mark.parametrize("engine", ["trace", pytest.param("null", marks=pytest.mark.null_gpu)])
def test_a_length_beyond_a_table_of_positions_ends_the_search(tmp_path: Path, engine: str) -> None:
    """A model with 512 positions has 512 as its largest length, and 513 fails by the index, on either engine."""
    question = ("--largest", "length", "--micro-batch", "1", "--engine", engine)
    (row,) = fitted(tmp_path, POSITIONS, "--gpu", "t4", *question).values()
    assert row["micro_batch"] == {"maximum": 512, "recommended": 512, "limited_by": "limit"}
    assert "index 512 is out of range for the 512 rows of an embedding's table" in row["notes"][0]
    at = run_here(["gpus", "--fit", "train.py", "--gpu", "t4", "--at", "length=600", "--engine", engine], tmp_path)
    assert (at.returncode, "index 599 is out of range" in at.stderr) == (2, True)


def test_cards_by_lengths_and_the_largest_width(tmp_path: Path) -> None:
    """With another size varied, each column is its largest; what only `--fit` or `--largest` has is refused alone."""
    wide = OF_BATCH.replace(
        "length=64):\n    return torch.randint(1000, (size, length))",
        "length=64, rows=1):\n    return torch.randint(1000, (size * rows, length))",
    )
    gpu = ("--gpu", "gtx-1060-6gb", "--largest", "length", "--micro-batch", "8", "--multiple-of", "64")
    (tmp_path / "train.py").write_text(wide)
    both = run_here(["gpus", "--fit", "train.py", *gpu, "--over", "rows=1,4", "--json", "-q"], tmp_path)
    small, large = (row["micro_batch"]["maximum"] for row in json.loads(both.stdout)["result"]["cards"])
    (alone,) = fitted(tmp_path, wide, *gpu, "--at", "rows=4").values()
    assert small > large == alone["micro_batch"]["maximum"] > 0
    refused = run_here(["gpus", "--largest", "length"], tmp_path)
    assert (refused.returncode, "`--largest` is for `--fit`" in refused.stderr) == (2, True)
    refused = run_here(["gpus", "--fit", "train.py", "--largest", "length"], tmp_path)
    assert (refused.returncode, "needs a micro-batch" in refused.stderr) == (2, True)


def test_a_size_that_fits_no_option_is_refused(tmp_path: Path) -> None:
    """A size that no function takes is the target's fault at every size; without `--fit` sizes mean nothing."""
    (tmp_path / "train.py").write_text(SIZED)
    finished = run_here(["gpus", "--fit", "train.py", "--gpu", "t4", "--over", "width=1,2", "-q"], tmp_path)
    assert (finished.returncode, "`make_batch` takes no `width`" in finished.stderr) == (2, True)
    finished = run_here(["gpus", "--at", "length=8"], tmp_path)
    assert (finished.returncode, "`--at` is for `--fit`" in finished.stderr) == (2, True)


# Keeps its last five outputs, so that memory grows for some steps.
KEEPING = "from collections import deque\nKEPT = deque(maxlen=5)\n" + MLP.replace(
    "    return model(batch)", "    KEPT.append(model(batch).detach())\n    return model(batch)"
)


@pytest.mark.parametrize("target", [MLP, KEEPING], ids=["plain", "keeping"])
def test_plain_steps_have_the_answer_of_their_own_probe(target: str, tmp_path: Path) -> None:
    """Without a target batch, at the edge and where memory grows from step to step, a card has its probe's answer."""
    (card,) = fitted(tmp_path, target, "--gpu", "gtx-1060-6gb").values()

    assert agrees(card, probed(tmp_path, "gtx-1060-6gb", "trace"))
    assert card["accumulation"] is None
    assert any("growth ends" in note for note in card["notes"]) == (target is KEEPING)


@pytest.mark.slow
def test_a_search_goes_the_way_of_its_own_probe(tmp_path: Path) -> None:
    """Where a larger size fits again above one that does not, the same of the two is found."""
    question = ("vit_b16", "--target-batch", "4096", "--precision", "bf16", "--json", "-q")

    fit = run_here(["gpus", "--fit", *question, "--gpu", "rtx-4090"], tmp_path)
    probe = run_here(["probe", *question, "--gpu", "rtx-4090", "--engine", "trace"], tmp_path)

    (card,) = [card for card in json.loads(fit.stdout)["result"]["cards"] if card["gpu"] == "rtx-4090"]
    result = json.loads(probe.stdout)["result"]
    assert agrees(card, (result["micro_batch"], result["accumulation"]))


@pytest.mark.null_gpu
def test_a_card_has_the_answer_of_pytorch_itself(cards: dict[str, Any], tmp_path: Path) -> None:
    """A card's maximum and plan are those of PyTorch on a null GPU."""
    (tmp_path / "train.py").write_text(ATTENDING)
    card = cards["gtx-1060-6gb"]

    micro_batch, plan = probed(tmp_path, "gtx-1060-6gb", "null", "--target-batch", "600")

    assert (micro_batch["maximum"], plan) == (card["micro_batch"]["maximum"], card["accumulation"])


@pytest.mark.null_gpu
def test_probes_of_cards_make_the_table_that_a_trace_makes(tmp_path: Path) -> None:
    """By a probe on a null GPU two cards have the rows that they have by a trace, but for what was warned of."""
    (tmp_path / "train.py").write_text(ATTENDING)
    request = ProbeRequest(target="train.py", directory=tmp_path, target_batch=600, engine="null")
    cards = [find_card("gtx-1060-6gb"), find_card("h200")]

    found = probe_cards(request, cards, SilentProgress())
    traced = fit_cards(replace(request, engine="trace"), cards, SilentProgress())

    assert [replace(row, notes=()) for row in found.rows] == [replace(row, notes=()) for row in traced.rows]
    assert (found.weights_bytes, found.versions) == (traced.weights_bytes, traced.versions)


def test_sizes_that_are_no_line_over_the_micro_batch_are_traced_each(tmp_path: Path) -> None:
    """A step that fills its batch up to a multiple gets the same maximum and plan as from a probe."""
    card = fitted(tmp_path, PADDING, "--target-batch", "100")["gtx-1060-6gb"]
    micro_batch, plan = probed(tmp_path, "gtx-1060-6gb", "trace", "--target-batch", "100")
    assert (card["micro_batch"]["maximum"], card["accumulation"]) == (micro_batch["maximum"], plan)
    assert card["micro_batch"]["limited_by"] == "memory"


def test_the_table_has_a_line_for_every_card(tmp_path: Path) -> None:
    """A card on which the model alone does not fit says so, and a card with room names its steps."""
    extra = "self.extra = torch.nn.Parameter(torch.empty(1_100_000_000), requires_grad=False)"
    code = ATTENDING.replace("        self.out =", f"        {extra}\n        self.out =")
    (tmp_path / "train.py").write_text(code)
    finished = run_here(["gpus", "--fit", "train.py", "--target-batch", "4"], tmp_path, COLUMNS="100")
    lines = {line.split()[0]: line for line in finished.stdout.splitlines() if line}
    assert finished.returncode == 0, finished.stderr
    assert lines["gtx-1650"].endswith("-            -      -  the model alone does not fit")
    assert lines["b200"].split()[3:] == ["4", "4", "1", "target", "batch"]
    assert "train.py, fp32, a target batch of 4; " in finished.stdout


def test_a_step_that_cannot_be_traced_is_one_clear_error(tmp_path: Path) -> None:
    """The operator is named, and the engine that can run it."""
    (tmp_path / "train.py").write_text(UNTRACEABLE)
    finished = run_here(["gpus", "--fit", "train.py", "--target-batch", "64", "-q"], tmp_path)
    assert finished.returncode == 3, finished.stderr
    assert "bincount" in finished.stderr
    assert "--engine null" in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--fit", "nowhere.py", "--target-batch", "8"), "nowhere.py"),
        (("--fit", "gpt2", "--reserve", "64GiB"), "gtx-1060-6gb: `--reserve` leaves nothing"),
        (("--fit", "gpt2", "--target-batch", "9", "--world-size", "2"), "does not divide"),
        (("--fit", "gpt2", "--target-batch", "8", "--known"), "exclude each other"),
        (("--target-batch", "8"), "is for `--fit`"),
        (("--known", "--gpu", "t4"), "`--gpu` is for `--fit`"),
        (("--known", "--html"), "`html` is a format of `--fit` alone"),
        (("--fit", "gpt2", "--target-batch", "8", "--gpu", "rtx-4091"), "did you mean `rtx-4090`"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    """The error says what is wrong, with exit code 2."""
    finished = run_here(["gpus", *arguments], tmp_path)
    assert finished.returncode == 2
    assert says in finished.stderr


def test_an_interrupt_ends_it_and_leaves_no_process(tmp_path: Path) -> None:
    """Ctrl-C while the target is being loaded exits with 130, and the worker is gone."""
    (tmp_path / "train.py").write_text(
        f"import time, pathlib\npathlib.Path('begun').touch()\ntime.sleep(60)\n{ATTENDING}"
    )
    command = [sys.executable, "-m", "oomdoctor", "gpus", "--fit", "train.py", "--target-batch", "8"]
    mark = f"fit-{os.getpid()}"
    environment = os.environ | {"OOMDOCTOR_TEST_MARK": mark}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert not marked_processes(mark)


def test_cards_are_chosen_by_name_and_in_every_format(tmp_path: Path) -> None:
    """`--gpu` asks about those cards alone, in their order; a saved table renders again, to a file by its ending."""
    (tmp_path / "train.py").write_text(ATTENDING)
    question = ["gpus", "--fit", "train.py", "--target-batch", "600", "--gpu", "h200", "--gpu", "gtx-1060-6gb", "-q"]
    finished = run_here([*question, "-o", "fit.json"], tmp_path)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "Wrote fit.json\n")
    saved = json.loads((tmp_path / "fit.json").read_text())
    jsonschema.validate(saved, json.loads(SCHEMA.read_text()))
    assert [card["gpu"] for card in saved["result"]["cards"]] == ["h200", "gtx-1060-6gb"]

    again = run_here(["report", "fit.json"], tmp_path)
    assert again.returncode == 0, again.stderr
    assert [line.split()[0] for line in again.stdout.splitlines()[2:4]] == ["h200", "gtx-1060-6gb"]
    assert "<h1>train.py fits 2 of 2 cards</h1>" in run_here(["report", "fit.json", "--html"], tmp_path).stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--mode", "eval"), "train.py, fp32, evaluation; 2 cards"),
        # With 64 on the second card, 391 and 434 fit and sizes between do not: each is an edge, and not the same one.
        (("--with-eval", "--eval-batch", "32"), "train.py, fp32, evaluation of 32 between steps, plain steps; 2 cards"),
    ],
)
def test_an_evaluation_is_fitted_as_it_is_probed(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    """Each card's row is a probe's answer to the same question, and the table says what it is of."""
    cards = {"t4", "rtx-4090"}
    asked = [word for card in sorted(cards) for word in ("--gpu", card)]
    found = fitted(tmp_path, ATTENDING, *options, *asked)

    assert found.keys() == cards
    assert all(agrees(found[card], probed(tmp_path, card, "trace", *options)) for card in cards)
    assert told in run_here(["gpus", "--fit", "train.py", *options, *asked, "-q"], tmp_path).stdout


def test_what_is_done_besides_training_is_for_a_table_of_a_target(tmp_path: Path) -> None:
    """Without a target there is nothing to evaluate or to generate with."""
    for options in (("--mode", "eval"), ("--with-eval",), ("--prompt", "8"), ("--eval-batch", "8")):
        finished = run_here(["gpus", *options], tmp_path)
        assert (finished.returncode, f"`{options[0]}` is for `--fit`" in finished.stderr) == (2, True)
