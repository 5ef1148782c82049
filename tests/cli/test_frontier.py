"""`oomdoctor probe --over` and `--largest`: each cell is a probe of its own, and the edge of a size is exact."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from running import Run
from test_sizes import LOOP, MODEL

import oomdoctor
from oomdoctor.errors import UsageError

pytestmark = [pytest.mark.null_gpu, pytest.mark.usefixtures("forked_workers")]

HUGE = str(2**63)
CARD = ("--gpu", "rtx-4090", "--capacity", "64MiB")
QUADRATIC = """\
import torch


def build_model():
    return torch.nn.Linear(64, 64)


def make_batch(batch_size, *, length=8):
    return torch.zeros(batch_size, length, 64)


def training_step(model, batch):
    if batch.shape[1] > 500:
        raise ValueError("a length above 500")
    mixed = model(batch)
    return (mixed @ mixed.transpose(1, 2)).softmax(-1).mean()
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file whose batch has a length and whose model and batch share a width."""
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_each_cell_is_a_probe_with_that_size(model: Path, oomdoctor_here: Run) -> None:
    """Two lengths and two widths are four cells, in order, each with the answer and the plan of its own probe."""
    over = ("--over", "length=16,64", "--over", "hidden=32,64")
    document = json.loads(oomdoctor_here("probe", model.name, *CARD, "--target-batch", "4096", *over, "--json").stdout)
    cells = document["result"]["cells"]

    assert document["status"] == "measured"
    assert [[axis["size"] for axis in cell["sizes"]] for cell in cells] == [[16, 32], [16, 64], [64, 32], [64, 64]]
    for cell in (cells[0], cells[3]):
        at = [text for axis in cell["sizes"] for text in ("--at", f"{axis['name']}={axis['size']}")]
        alone = oomdoctor_here("probe", model.name, *CARD, "--target-batch", "4096", *at, "--json")
        result = json.loads(alone.stdout)["result"]
        assert (cell["maximum"], cell["recommended"]) == (
            result["micro_batch"]["maximum"],
            result["micro_batch"]["recommended"],
        )
        assert cell["accumulation"] == result["accumulation"]
        assert cell["elements"] == cell["maximum"] * cell["sizes"][0]["size"] * cell["sizes"][1]["size"]


def fits(run: Run, name: str, micro_batch: int, *at: str) -> bool:
    """Whether a micro-batch fits plain steps at a size, by a probe of its own."""
    options = (*(word for text in at for word in ("--at", text)), "--json")
    result = json.loads(run("probe", name, *CARD, *options).stdout)["result"]
    return bool(result["micro_batch"]["maximum"] >= micro_batch)


@pytest.mark.parametrize("size", ["length", "hidden"])
def test_the_largest_size_fits_and_the_next_multiple_does_not(model: Path, oomdoctor_here: Run, size: str) -> None:
    """Whether the model is the same for all sizes or has the size too, the answer is the edge, in multiples."""
    ended = oomdoctor_here(
        "probe", model.name, *CARD, "--largest", size, "--micro-batch", "64", "--multiple-of", "16", "--json"
    )
    (cell,) = json.loads(ended.stdout)["result"]["cells"]

    assert cell["maximum"] % 16 == 0
    assert cell["limited_by"] == "memory"
    assert 0 < cell["recommended"] <= cell["maximum"]
    assert fits(oomdoctor_here, model.name, 64, f"{size}={cell['maximum']}")
    assert not fits(oomdoctor_here, model.name, 64, f"{size}={cell['maximum'] + 16}")


def test_the_limit_of_the_model_itself_ends_the_search(tmp_path: Path, oomdoctor_here: Run) -> None:
    """What raises above some length is told, and the largest length below it is the answer."""
    (tmp_path / "model.py").write_text(QUADRATIC)
    ended = oomdoctor_here("probe", "model.py", "--gpu", "rtx-4090", "--largest", "length", "--micro-batch", "4")

    assert ended.returncode == 0
    assert "`length` 500 is the largest that fits at micro-batch 4" in ended.stdout
    assert "a length above 500" in ended.stdout
    assert "a limit that is not memory" in ended.stdout


@pytest.mark.parametrize("engine", ["null", "trace"])
@pytest.mark.parametrize(("multiple", "largest"), [(200, 400), (500, 500)])
def test_the_first_size_tried_may_be_too_long(
    tmp_path: Path, oomdoctor_here: Run, engine: str, multiple: int, largest: int
) -> None:
    """Where four multiples are too long for the model, one is tried before the probe gives up."""
    (tmp_path / "model.py").write_text(QUADRATIC)
    question = (
        "--largest",
        "length",
        "--micro-batch",
        "4",
        "--multiple-of",
        str(multiple),
        "--engine",
        engine,
        "--json",
    )
    (cell,) = json.loads(oomdoctor_here("probe", "model.py", "--gpu", "rtx-4090", *question).stdout)["result"]["cells"]

    assert (cell["maximum"], cell["limited_by"]) == (largest, "limit")


def test_the_smallest_multiple_is_named_where_it_is_too_long(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A multiple that the model itself refuses is told as the one that fails, with what to do."""
    (tmp_path / "model.py").write_text(QUADRATIC)
    question = ("--largest", "length", "--micro-batch", "4", "--multiple-of", "501")
    ended = oomdoctor_here("probe", "model.py", "--gpu", "rtx-4090", *question)

    assert ended.returncode == 2
    assert "length 501 fails: the training step raised `ValueError: a length above 500`" in ended.stderr
    assert "only multiples of 501 are tried" in ended.stderr


PARTS = """\
import torch


def build_model():
    return torch.nn.Linear(8, 8)


def make_batch(batch_size, *, length=1):
    if length > 40:
        raise ValueError("no more data")
    return torch.zeros(batch_size, length, 8)


def training_step(model, batch):
    return model(batch).mean()


def evaluation_step(model, batch):
    if batch.shape[1] > 20:
        raise ValueError("no evaluation of that")
    return model(batch)
"""


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("train", "41: `make_batch` raised `ValueError: no more data`"),
        ("eval", "21: the evaluation raised `ValueError: no evaluation of that`"),
    ],
)
def test_the_part_that_raised_is_named(tmp_path: Path, oomdoctor_here: Run, mode: str, told: str) -> None:
    """A batch that cannot be made and an evaluation that raises are not called the training step."""
    (tmp_path / "model.py").write_text(PARTS)
    ended = oomdoctor_here("probe", "model.py", *CARD, "--largest", "length", "--micro-batch", "1", "--mode", mode)

    assert ended.returncode == 0
    assert told in ended.stdout


MODEL_WITH_LENGTH = """\
import torch


def build_model(length=8):
    if length > 500:
        raise ValueError("a length above 500")
    return torch.nn.Linear(64, 64)
"""
BATCH = "    return torch.zeros(batch_size, length, 64)"


@pytest.mark.parametrize(
    "source",
    [
        QUADRATIC.replace(BATCH, f"    if length > 500:\n        raise ValueError('a length above 500')\n{BATCH}"),
        MODEL_WITH_LENGTH + QUADRATIC.partition("\n\n\n")[2].partition("\n\n\n")[2],
    ],
    ids=["make_batch", "build_model"],
)
def test_a_size_that_cannot_be_made_ends_the_search_too(tmp_path: Path, oomdoctor_here: Run, source: str) -> None:
    """What `make_batch` or `build_model` raises above some size is the limit, as what the step raises is."""
    (tmp_path / "model.py").write_text(source)
    ended = oomdoctor_here("probe", "model.py", "--gpu", "rtx-4090", "--largest", "length", "--micro-batch", "4")

    assert ended.returncode == 0, ended.stderr
    assert "`length` 500 is the largest that fits at micro-batch 4" in ended.stdout
    assert "a length above 500" in ended.stdout


def test_nothing_above_the_bound_is_tried(model: Path, oomdoctor_here: Run) -> None:
    """`--up-to` ends the search where everything below fits."""
    ended = oomdoctor_here(
        "probe", model.name, *CARD, "--largest", "length", "--micro-batch", "1", "--up-to", "100", "--json"
    )
    (cell,) = json.loads(ended.stdout)["result"]["cells"]

    assert (cell["maximum"], cell["limited_by"]) == (100, "target")


def test_a_size_that_the_model_cannot_have_is_its_cells_problem(tmp_path: Path, oomdoctor_here: Run) -> None:
    """The other cells have their answers, and the exit code is that of an error; without any, the error is all."""
    (tmp_path / "model.py").write_text(QUADRATIC)
    some = oomdoctor_here("probe", "model.py", *CARD, "--over", "length=100,900", "--output", "found.json")
    document = json.loads((tmp_path / "found.json").read_text())
    printed = oomdoctor_here("report", "found.json").stdout
    none = oomdoctor_here("probe", "model.py", *CARD, "--over", "length=800,900")

    assert (some.returncode, document["status"], document["exit_code"]) == (2, "incomplete", 2)
    assert document["result"]["cells"][0]["maximum"] > 0
    assert "no answer" in printed
    assert "a length above 500" in printed
    assert none.returncode == 2
    assert "a length above 500" in none.stderr


def test_a_smaller_size_that_needs_more_is_told(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A length below 32 that is padded to 128 fits fewer samples than 64."""
    padded = MODEL.replace("batch_size, length,", "batch_size, 128 + length if length < 32 else length,")
    (tmp_path / "model.py").write_text(padded)
    ended = oomdoctor_here("probe", "model.py", *CARD, "--over", "length=16,64")

    assert "Length 16 needs more than 64:" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--over", "length=1,2", "--at", "length=3"), "`length` is asked about twice"),
        (("--over", "length"), "`--over length` gives no size"),
        (("--over", "length=4,4"), "`--over` gives `length=4` twice"),
        (("--largest", "length"), "`--largest length` needs a micro-batch"),
        (("--micro-batch", "8"), "`--micro-batch` is for `--largest`, which is missing"),
        (("--largest", "length", "--micro-batch", "0"), "`--micro-batch` is 0"),
        (
            ("--largest", "length", "--micro-batch", "1048577"),
            "`--micro-batch` is 1048577, and nothing above 1,048,576",
        ),
        (("--largest", "length", "--micro-batch", HUGE), f"`--micro-batch` is {HUGE}, and nothing above 1,048,576"),
        (("--largest", "length", "--micro-batch", "1", "--multiple-of", HUGE), f"`--multiple-of` is {HUGE}"),
        (("--largest", "length", "--micro-batch", "1", "--up-to", HUGE), f"`--up-to` is {HUGE}"),
        (("--with-eval", "--eval-batch", HUGE), f"`--eval-batch` is {HUGE}"),
        (("--mode", "generate", "--prompt", HUGE, "--new-tokens", "1"), f"`--prompt` is {HUGE}"),
        (("--mode", "generate", "--prompt", "1", "--new-tokens", HUGE), f"`--new-tokens` is {HUGE}"),
        (("--largest", "length", "--micro-batch", "3", "--target-batch", "2"), "the target gives each device only 2"),
        (("--largest", "len", "--micro-batch", "3"), "did you mean `length`?"),
        (("--largest", "length", "--micro-batch", "8", "--multiple-of", "9", "--up-to", "8"), "no multiple of 9"),
        (("--over", "length=" + ",".join(map(str, range(1, 300)))), "299 cells are asked about"),
        (("--over", "length=8", "--dry-run"), "`--dry-run` tries one question"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    model: Path, oomdoctor_here: Run, arguments: tuple[str, ...], error: str
) -> None:
    """Each error says what was wrong before anything runs."""
    ended = oomdoctor_here("probe", model.name, *CARD, *arguments)

    assert ended.returncode == 2
    assert error in ended.stderr


def test_the_function_gives_the_commands_document(model: Path, oomdoctor_here: Run) -> None:
    """`oomdoctor.frontier` finds what the command writes."""
    written = json.loads(oomdoctor_here("probe", model.name, *CARD, "--over", "length=64", "--json").stdout)
    document = oomdoctor.frontier(model, over={"length": [64]}, gpu="rtx-4090", capacity="64MiB")

    assert document.result.cells[0].maximum == written["result"]["cells"][0]["maximum"]


def test_sizes_are_texts_too_and_what_is_none_is_refused(model: Path) -> None:
    """A function takes one text or several as the command does; what is neither text nor a mapping is an error."""
    card = {"gpu": "rtx-4090", "capacity": "64MiB"}
    cells = [
        oomdoctor.frontier(model, over=given, at="hidden=32", **card).result.cells
        for given in ("length=64", ["length=64"], {"length": 64})
    ]  # type: ignore[arg-type]
    assert cells[0] == cells[1] == cells[2]
    for given in (5, [5], {"length": 1.5}, {"length": True}):
        with pytest.raises(UsageError, match=r"`at( length=|`)"):
            oomdoctor.probe(model, at=given, **card)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="`buckets` is `'bins'`"):
        oomdoctor.frontier(model, over="length=64", buckets="bins", **card)  # type: ignore[arg-type]


def test_the_function_asks_about_evaluations_too(model: Path, oomdoctor_here: Run) -> None:
    """`mode` and `with_eval` are options of `oomdoctor.frontier` as of the command, and the result says so."""
    card = {"gpu": "rtx-4090", "capacity": "64MiB"}
    evaluated = oomdoctor.frontier(model, over={"length": [64]}, at={"hidden": 32}, mode="eval", **card).result
    between = oomdoctor.frontier(model, over={"length": [64]}, with_eval=True, eval_batch=100_000, **card).result
    plain = oomdoctor.frontier(model, over={"length": [64]}, **card).result
    text = oomdoctor_here(
        "probe", model.name, *CARD, "--over", "length=64,32", "--with-eval", "--at", "hidden=32"
    ).stdout

    assert evaluated.variant is not None
    assert (evaluated.variant.mode, evaluated.variant.sizes) == ("eval", {"hidden": 32})
    assert evaluated.cells[0].maximum > plain.cells[0].maximum
    assert between.cells[0].maximum == 0
    assert "model.py, hidden 32, fp32, AdamW, plain steps, evaluation between steps." in text


def test_a_commands_frontier_names_the_command_as_given(model: Path, oomdoctor_here: Run) -> None:
    """The placeholder of the size stays in the command that the answer names, since each cell fills in another one."""
    model.with_name("train.py").write_text(f"{MODEL}{LOOP}")
    command = ("--", sys.executable, "train.py", "{micro_batch}", "{length}")
    ended = oomdoctor_here("probe", *CARD, "--over", "length=128,256", "--json", *command)

    assert json.loads(ended.stdout)["result"]["target"] == f"{sys.executable} train.py {{micro_batch}} {{length}}"
