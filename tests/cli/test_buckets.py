"""`oomdoctor probe --over --buckets`: cells that one process trains on in turn, for the tool that reads them."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from running import Run
from test_sizes import MODEL

pytestmark = [pytest.mark.null_gpu, pytest.mark.usefixtures("forked_workers")]

CARD = ("--gpu", "rtx-4090", "--capacity", "64MiB")
OVER = ("--over", "length=64,16,32")
REMEMBERS = MODEL.replace(
    "    return model(batch).mean()",
    "    masks = vars(model).setdefault('masks', {})\n"
    "    if batch.shape[1] not in masks:\n"
    "        masks[batch.shape[1]] = torch.zeros(16 * 2**20, dtype=torch.uint8, device=batch.device)\n"
    "    return model(batch).mean()",
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file whose batch has a length."""
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def lines_of(text: str, start: str) -> list[str]:
    """Return the printed lines from the first that begins so, up to an empty one."""
    lines = text.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith(start))
    return lines[first : lines.index("", first)]


def test_nemo_reads_its_buckets(model: Path, oomdoctor_here: Run) -> None:
    """The lines are settings that NeMo's configuration takes, ascending; a loop over all of them fits the card."""
    from omegaconf import OmegaConf

    found = model.with_name("found.json")
    oomdoctor_here("probe", model.name, *CARD, *OVER, "--buckets", "nemo", "--output", str(found))
    cells = {cell["sizes"][0]["size"]: cell["recommended"] for cell in json.loads(found.read_text())["result"]["cells"]}
    printed = oomdoctor_here("report", str(found)).stdout
    settings = OmegaConf.from_dotlist(lines_of(printed, "bucket_duration_bins"))
    model.with_name("loop.py").write_text(
        "import torch\nfrom model import build_model, make_batch, training_step\nmodel = build_model().cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        f"for length, size in {[*cells.items()] * 3}:\n"
        "    training_step(model, make_batch(size, length=length).cuda()).backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()\n"
    )
    trained = oomdoctor_here("run", "--gpu", "rtx-4090", "--capacity", "61MiB", "--", sys.executable, "loop.py")

    assert settings.bucket_duration_bins == [16, 32, 64]
    assert settings.bucket_batch_size == [cells[length] for length in (16, 32, 64)]
    assert "each has the size that is recommended for it alone" in printed
    assert trained.returncode == 0, trained.stdout + trained.stderr


def test_lhotse_batches_by_its_buckets(model: Path, oomdoctor_here: Run) -> None:
    """The lines run as they stand, and a sampler made by them gives batches of those sizes; the budget fits all."""
    from lhotse.cut import MonoCut

    # Whose data set is made up: of each length so many that its bucket is filled once.
    oomdoctor_here("probe", model.name, *CARD, *OVER, "--buckets", "lhotse", "--output", "found.json")
    found = json.loads((model.parent / "found.json").read_text())["result"]["buckets"]
    rows = {row["sizes"][0]["size"]: row["micro_batch"] for row in found["rows"]}
    cuts = [
        MonoCut(f"{length}-{number}", start=0.0, duration=float(length), channel=0)
        for length, micro_batch in rows.items()
        for number in range(micro_batch)
    ]
    printed = oomdoctor_here("report", "found.json").stdout
    pasted = [line for line in printed.splitlines() if line.startswith(("from ", "constraint", "sampler"))]
    names: dict[str, object] = {"cuts": cuts}
    exec("\n".join(pasted), names)  # noqa: S102 - what a user would paste

    batches = {int(batch[0].duration): len(batch) for batch in names["sampler"]}  # type: ignore[attr-defined]
    assert batches == rows
    budget = found["token_budget"]
    assert all(budget // length <= micro_batch for length, micro_batch in rows.items())
    assert any((budget + 1) // length > micro_batch for length, micro_batch in rows.items())


def test_buckets_that_hold_memory_together_become_smaller(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A model that keeps a mask for each length fits each alone; together both sizes shrink until two masks fit."""
    (tmp_path / "model.py").write_text(REMEMBERS)
    asked = ("probe", "model.py", *CARD, "--over", "length=16,64", "--buckets", "json")
    oomdoctor_here(*asked, "--output", "found.json")
    result = json.loads((tmp_path / "found.json").read_text())["result"]
    buckets, cells = result["buckets"], result["cells"]
    printed = oomdoctor_here("report", "found.json").stdout

    assert 0 < buckets["percent"] < 100
    sizes = [cell["recommended"] * buckets["percent"] // 100 for cell in cells]
    assert [row["micro_batch"] for row in buckets["rows"]] == sizes
    (pasted,) = lines_of(printed, "[{")
    assert json.loads(pasted) == [
        {"length": length, "micro_batch": size} for length, size in zip((16, 64), sizes, strict=True)
    ]
    assert f"so each has {buckets['percent']} % of them" in printed


def test_a_budget_of_two_sizes_is_of_their_product(model: Path, oomdoctor_here: Run) -> None:
    """As pixels are: every bucket takes the samples that the budget allows, and one more would be too many for one."""
    model.write_text(
        MODEL.replace("*, length=8", "*, height=8, length=8").replace("size, length", "size, height * length")
    )
    over = ("--over", "length=16,64", "--over", "height=4,8")
    oomdoctor_here("probe", model.name, *CARD, *over, "--buckets", "json", "--output", "found.json")
    found = json.loads((model.parent / "found.json").read_text())["result"]["buckets"]
    rows = [(math.prod(size["size"] for size in row["sizes"]), row["micro_batch"]) for row in found["rows"]]
    budget = found["token_budget"]

    assert len(rows) == 4
    assert all(1 <= budget // elements <= micro_batch for elements, micro_batch in rows)
    assert any((budget + 1) // elements > micro_batch for elements, micro_batch in rows)
    assert f"{budget:,} is the most samples x length x height" in " ".join(
        oomdoctor_here("report", "found.json").stdout.split()
    )


@pytest.mark.parametrize(
    ("form", "over", "why"),
    [
        ("lhotse", ("length=16,4096",), "a sample of the largest is 4,096"),
        ("nemo", ("length=8,16", "kind=1,2"), "nemo's budget is of one size, and the buckets differ by 2"),
    ],
)
def test_why_there_is_no_budget_is_told(
    model: Path, oomdoctor_here: Run, form: str, over: tuple[str, ...], why: str
) -> None:
    """Where samples need the same whatever their length, a budget that suits the short ones has no long sample."""
    model.write_text(
        MODEL.replace("batch_size, length, hidden", "batch_size, length + kind, hidden").replace(
            "return model(batch).mean()",
            "return model(batch).mean() + torch.zeros(len(batch), 2**19, device=batch.device).sigmoid().mean()",
        )
    )
    axes = [word for each in over for word in ("--over", each)]
    ended = oomdoctor_here("probe", model.name, *CARD, *axes, "--buckets", form)

    assert ended.returncode == 0, ended.stderr
    assert f"no budget of samples x {' x '.join(each.split('=')[0] for each in over)} is told: " in " ".join(
        ended.stdout.lower().split()
    )
    assert why in " ".join(ended.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--buckets", "nemo"), "`--buckets nemo` needs the sizes of the buckets"),
        (("--buckets", "nemo", "--largest", "length", "--micro-batch", "4"), "has a micro-batch for each size"),
        (("--buckets", "lhotse", "--over", "length=8,16", "--over", "hidden=8,16"), "by 1 of 2 sizes only"),
        (("--buckets", "nemo", "--over", "length=8,999999999"), "no micro-batch is recommended at length 999999999"),
        (("--buckets", "nemo", "--over", "length=8", "--dry-run"), "`--dry-run` tries one question"),
    ],
)
def test_what_has_no_buckets_is_refused(
    model: Path, oomdoctor_here: Run, arguments: tuple[str, ...], error: str
) -> None:
    """Each error says what was wrong."""
    ended = oomdoctor_here("probe", model.name, *CARD, *arguments)

    assert ended.returncode == 2
    assert error in ended.stderr


def test_buckets_of_several_models_are_refused(model: Path, oomdoctor_here: Run) -> None:
    """A width that the model has too cannot vary in one training run; the error names the bucket that fails."""
    ended = oomdoctor_here("probe", model.name, *CARD, "--over", "hidden=32,64", "--buckets", "json")

    assert ended.returncode == 2
    assert "training on all buckets in turn fails: in the bucket of hidden 32: " in ended.stderr
    assert "all buckets share one model, built at their largest sizes" in ended.stderr


def test_a_command_has_no_buckets(oomdoctor_here: Run) -> None:
    """Its batches are its own, so that nothing can train on all sizes in turn."""
    command = ("python", "loop.py", "{micro_batch}", "{length}")
    ended = oomdoctor_here("probe", *CARD, "--over", "length=8,16", "--buckets", "nemo", "--", *command)

    assert ended.returncode == 2
    assert "`--buckets nemo` is for files, and a command is probed" in ended.stderr


def test_a_budget_is_tried_at_all_lengths_between(model: Path, oomdoctor_here: Run) -> None:
    """A length that is not listed and needs far more than its neighbours makes the budget smaller."""
    needy = MODEL.replace(
        "return model(batch).mean()",
        "return model(batch.repeat(1, 2 if batch.shape[1] == 48 else 1, 1)).mean()",
    )
    budgets = []
    for name, code in (("model.py", MODEL), ("needy.py", needy)):
        model.with_name(name).write_text(code)
        over = ("--over", "length=32,16,64", "--buckets", "json", "--json")
        budgets.append(
            json.loads(oomdoctor_here("probe", name, *CARD, *over).stdout)["result"]["buckets"]["token_budget"]
        )
    assert budgets[1] < budgets[0]
