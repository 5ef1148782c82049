"""`oomdoctor init` of training scripts: read as text, taken over where they can be, else refused with the reason."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from running import Run

from oomdoctor.errors import TargetError
from oomdoctor.target.from_script import target_of_script

EPOCHS = """\
import argparse
import torch
import torch.nn.functional as F
from pathlib import Path
from torch.utils.data import DataLoader, Dataset

Path("ran").touch()
WIDTH = 28


class Digits(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.randn(1, WIDTH, WIDTH), index % 10


class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, width, 3)
        self.fc = torch.nn.Linear(width * 26 * 26, 10)

    def forward(self, x):
        return self.fc(F.relu(self.conv(x)).flatten(1))


def train(args, network, device, loader, optimizer, epoch):
    network.train()
    for index, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            output = network(data)
            loss = F.cross_entropy(output, target)
            loss = loss / args.accumulate
        loss.backward()
        optimizer.step()
        print(index, loss.item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=16)
    args = parser.parse_args()
    device = torch.device("cuda")
    kwargs = {"batch_size": args.batch_size}
    loader = DataLoader(Digits(), **kwargs)
    model = Net(args.width).to(device)
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    for epoch in range(2):
        train(args, model, device, loader, optimizer, epoch)


if __name__ == "__main__":
    main()
"""
BY_HAND = (
    EPOCHS[: EPOCHS.index("def train")].replace('Path("ran").touch()', "")
    + """
def build_model():
    return Net(16)


def make_batch(batch_size):
    return torch.randn(batch_size, 1, 28, 28), torch.randint(10, (batch_size,))


def training_step(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def build_optimizer(model):
    return torch.optim.Adadelta(model.parameters())
"""
)
STEPS = """\
import torch

BATCH_SIZE = 32
model = torch.nn.Linear(100, 10).cuda()
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler()
for step in range(100):
    x = torch.randn(BATCH_SIZE, 100, device="cuda")
    y = torch.randint(0, 10, (BATCH_SIZE,)).cuda()
    x[:, 0] = 1
    loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
"""
STEPS_TARGET = '''\
"""Target of oomdoctor, of the parts of `train.py` that train; see that its batch is the largest."""

import torch
criterion = torch.nn.CrossEntropyLoss()


def build_model():
    model = torch.nn.Linear(100, 10)
    return model


def make_batch(batch_size):
    x = torch.randn(batch_size, 100)
    y = torch.randint(0, 10, (batch_size,))
    x[:, 0] = 1
    return x, y


def training_step(model, batch):
    x, y = batch
    loss = criterion(model(x), y)
    return loss


def build_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
'''
REFUSED = {
    "it makes no optimizer of `model.parameters()`": "trainer.train()",
    "it makes several optimizers": STEPS.replace("scaler =", "other = torch.optim.SGD(model.parameters())\nscaler ="),
    "it has no `for` loop over batches": STEPS.replace("scaler.scale(loss).backward()", "pass"),
    "it calls `backward()` in several places": STEPS + "    loss.backward()\n",
    "no name in it is called as a batch size": STEPS.replace("BATCH_SIZE", "N"),
    "no name in it is called as a batch": STEPS.replace('    x = torch.randn(BATCH_SIZE, 100, device="cuda")', "")
    .replace("    y = torch.randint(0, 10, (BATCH_SIZE,)).cuda()", "    x, y = get_batch('train')")
    .replace("for step", "def get_batch(split):\n    return load(split)\n\n\nfor step"),
    "the loss of `step_of(batch).backward()` has no name": STEPS.replace("scaler.scale(loss)", "step_of(batch)"),
    "the loss is not computed from the model": STEPS.replace("criterion(model(x), y)", "criterion(x, y)"),
    "where `weights` is from cannot be seen": STEPS.replace("Loss()", "Loss(weights)"),
    "`step` is set in a loop": STEPS.replace("criterion(model(x), y)", "criterion(model(x), y) * step"),
    "the loop goes over `batches`, which is no `DataLoader`": STEPS.replace("range(100)", "batches").replace(
        "scaler =", "batches = list(load())\nscaler ="
    ),
    "`model` is used in a part that is made without the model": STEPS.replace("Loss()", "Loss(model.weight)"),
    "`train` is called in 3 places": EPOCHS + "    train()\n    train()\n",
}


def _written(tmp_path: Path, source: str) -> Path:
    path = tmp_path / "train.py"
    path.write_text(source)
    return path


@pytest.mark.null_gpu
def test_a_script_gives_the_target_of_its_parts(oomdoctor_here: Run, tmp_path: Path) -> None:
    """The file that is written answers as one by hand, through functions and wrappers; the script never runs."""
    _written(tmp_path, EPOCHS)
    (tmp_path / "by_hand.py").write_text(BY_HAND)
    ended = oomdoctor_here("init", "train.py", "-o", "model.py")
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "ran").exists()

    options = ("--gpu", "rtx-4090", "--capacity", "100MiB", "--json", "--quiet")
    made, expected = (
        json.loads(oomdoctor_here("probe", file, *options).stdout)["result"] for file in ("model.py", "by_hand.py")
    )
    assert made["micro_batch"] == expected["micro_batch"]
    assert not (tmp_path / "ran").exists()


def test_a_batch_that_the_loop_makes_is_told_from_its_step(tmp_path: Path) -> None:
    """What does not depend on the model is `make_batch`, with the batch size in the place of the script's own."""
    assert target_of_script(_written(tmp_path, STEPS)) == STEPS_TARGET


@pytest.mark.parametrize(
    ("context", "told"),
    [
        ('torch.autocast("cuda")', "runs under `torch.autocast('cuda')` there: give `--precision` `fp16`"),
        ("torch.amp.autocast('cuda', torch.bfloat16)", "give `--precision` `bf16`"),
        ("torch.cuda.amp.autocast(dtype=kind)", "give `--precision` what `kind` is"),
        ("torch.no_grad()", None),
    ],
)
def test_the_precision_of_the_step_is_told(tmp_path: Path, context: str, told: str | None) -> None:
    """A step under autocast is written without it, and the file says with which option to ask about it."""
    source = STEPS.replace(
        "    loss = criterion(model(x), y)", f"    with {context}:\n        loss = criterion(model(x), y)"
    )
    written = target_of_script(_written(tmp_path, source))
    about = " ".join((ast.get_docstring(ast.parse(written)) or "").split())
    assert (told or "largest.") in about
    assert ("--precision" in about) == (told is not None)


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_told_is_refused_with_the_reason(tmp_path: Path, why: str) -> None:
    """Half a target is none: the reason is told, and the command to probe instead."""
    with pytest.raises(TargetError) as caught:
        target_of_script(_written(tmp_path, REFUSED[why]))
    assert why in caught.value.message
    assert "oomdoctor probe " in (caught.value.hint or "")


@pytest.mark.parametrize("given", ["dataset", 'dataset["train"]', 'splits["train"]'])
def test_a_data_set_keeps_its_own_name(tmp_path: Path, given: str) -> None:
    """`make_batch` reads the module's `dataset` where the script's loader has that or a part of it."""
    loop = "for x, y in torch.utils.data.DataLoader(GIVEN):\n    loss = criterion(model(x), y)\n    loss.backward()\n"
    source = STEPS[: STEPS.index("for step")] + loop
    whole = 'splits = {"train": [([1.0], 2)]}\ndataset = splits["train"] if GIVEN_IS_WHOLE else splits\n'
    whole = whole.replace("GIVEN_IS_WHOLE", str(given == "dataset"))
    made = target_of_script(_written(tmp_path, source.replace("for x", whole + "for x").replace("GIVEN", given)))
    names: dict[str, Any] = {}
    exec(made.replace("torch.utils.data.default_collate", "list"), names)  # noqa: S102 - the file that is written

    assert names["make_batch"](3) == [([1.0], 2)] * 3


def test_other_files_are_no_scripts(tmp_path: Path) -> None:
    """A target, text that is no Python, and a path that leads nowhere are refused each in their own words."""
    for source, why in ((BY_HAND, "is a target already"), ("def", "is not Python")):
        with pytest.raises(TargetError, match=why):
            target_of_script(_written(tmp_path, source))
    (tmp_path / "a folder").mkdir()
    with pytest.raises(TargetError) as caught:
        target_of_script(_written(tmp_path / "a folder", BY_HAND))
    assert (caught.value.hint or "").endswith("/a folder/train.py'`")
    with pytest.raises(TargetError, match="No such file"):
        target_of_script(tmp_path / "nowhere.py")


def test_reading_a_script_imports_no_torch(oomdoctor: Run, tmp_path: Path) -> None:
    """The parent reads text: torch stays away."""
    _written(tmp_path, STEPS)
    ended = oomdoctor("init", "train.py", "--quiet", PYTHONPROFILEIMPORTTIME="1")
    assert ended.stdout == STEPS_TARGET
    assert not any(line.split("|")[-1].strip() == "torch" for line in ended.stderr.splitlines())


def test_what_has_no_end_is_refused(oomdoctor_here: Run) -> None:
    """A device is no script, and is not read until memory runs out."""
    ended = oomdoctor_here("init", "/dev/zero", "-q")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "`/dev/zero` is larger than 4 MiB, which no script is" in ended.stderr
