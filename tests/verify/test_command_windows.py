"""Windows of micro-batches: placeholders that are ignored, cached gradients, lists of samples, windows in a buffer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recorded_scripts import judged
from torch import nn

from oomdoctor.errors import TargetError
from oomdoctor.verification.counts import list_size
from oomdoctor.verification.remedies import normalisation_remedy

HEAD = """\
import sys

import torch
from torch import nn

micro, steps = map(int, sys.argv[1:])
torch.manual_seed(0)
"""
IGNORES = (
    HEAD
    + """\
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for part in torch.randn(80, 3).split(8):
    for _ in range({steps}):
        model(part).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)
CACHED = (
    HEAD
    + """\
model = nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.randn(80, 6).split(micro * steps):
    parts = batch.split(micro)
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in parts]).requires_grad_()
    nn.functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs))).backward()
    for part, gradient in zip(parts, outputs.grad.split(micro)):
        model(part).backward(gradient)
    optimizer.step()
    optimizer.zero_grad()
"""
)
TWICE = (
    HEAD
    + """\
model = nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.randn(80, 6).split(micro * steps):
    for part in batch.split(micro):
        outputs = model(part)
        (outputs.square().mean() / steps).backward(retain_graph=True)
        (outputs.mean() / steps).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)
LISTS = (
    HEAD
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, images, targets):
        return torch.stack([self.layer(image).sum() * len(target["boxes"]) for image, target in zip(images, targets)])


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
images = [torch.randn({shape}, 6) for index in range(80)]
targets = [{{"boxes": torch.randn(1 + index % 3, 4)}} for index in range(80)]
for first in range(0, 80, micro * steps):
    for begin in range(first, first + micro * steps, micro):
        outputs = model(images[begin : begin + micro], targets[begin : begin + micro])
        (outputs.square().mean() / {divisor}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)
BUFFERED = (
    HEAD
    + """\
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(420, 6), batch_size=micro, shuffle=True, drop_last=True)
for epoch in range(2):
    window = []
    for batch in loader:
        window.append(batch)
        if len(window) == steps:
            for part in window:
                (model(part).square().mean() / steps).backward()
            optimizer.step()
            optimizer.zero_grad()
            window = []
"""
)


def script(tmp_path: Path, source: str) -> Path:
    """The source in a file."""
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("steps", "told"),
    [("1", "ignores `{micro_batch}` and `{accumulation_steps}`"), ("steps", "ignores `{micro_batch}`: ")],
)
def test_ignored_placeholders_are_an_error(tmp_path: Path, steps: str, told: str) -> None:
    """Two runs on the same batches accumulate nothing that could be equal."""
    with pytest.raises(TargetError) as raised:
        judged(script(tmp_path, IGNORES.replace("{steps}", steps)))
    assert told in str(raised.value)


@pytest.mark.parametrize("source", [CACHED, TWICE])
def test_backwards_are_not_taken_for_micro_batches(tmp_path: Path, source: str) -> None:
    """A backward of cached gradients, and several of one micro-batch, are equal with no cause."""
    result = judged(script(tmp_path, source))
    assert (result.verdict, result.causes) == ("equal", ())
    assert result.errors[0].sizes == (2, 2, 2, 2)


@pytest.mark.parametrize(
    ("shape", "divisor", "verdict", "causes"),
    [
        ("1", "steps", "equal", []),
        ("1 + index % 3", "steps", "equal", []),
        ("2", "steps", "cannot_tell", ["samples"]),
        ("3", "1", "different", ["division"]),
    ],
)
def test_lists_with_an_item_a_sample_are_compared(
    tmp_path: Path, shape: str, divisor: str, verdict: str, causes: list[str]
) -> None:
    """Inputs in lists are the same samples in both runs; where two columns and two samples look alike, none is sure."""
    result = judged(script(tmp_path, LISTS.format(shape=shape, divisor=divisor)))
    assert (result.verdict, [cause.id for cause in result.causes]) == (verdict, causes)


def test_samples_that_are_lost_in_a_buffer_are_told(tmp_path: Path) -> None:
    """Whole windows that are collected first lose the end of an epoch, which does not run on."""
    result = judged(script(tmp_path, BUFFERED))
    assert result.verdict == "equal"
    (note,) = result.notes
    assert note.startswith("the last 2 micro-batches of an epoch, fewer than 4, get no optimizer step and are lost")


def test_remedies_name_what_the_user_has() -> None:
    """A group norm has groups that divide the channels, and `accumulate` is told the length of a list of samples."""
    for norm, told in (
        (nn.BatchNorm1d(30), "num_groups=6, num_channels=30)  # in place of BatchNorm1d(30)"),
        (nn.BatchNorm3d(256), "num_groups=32, num_channels=256)  # in place of BatchNorm3d(256)"),
        (nn.BatchNorm2d(3), "num_groups=1, num_channels=3)  # in place of BatchNorm2d(3)"),
    ):
        assert told in normalisation_remedy(norm).code
    images = [torch.ones(3, 4 + index) for index in range(8)]
    assert list_size({"images": images, "boxes": torch.ones(8, 4)}, 8) == "len(batch['images'])"
    assert list_size((torch.ones(8), torch.ones(8)), 8) is None
