"""Whether a graph is used once its iteration is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.lint.flow.events import Action
from oomdoctor.lint.flow.runs import runs_of
from oomdoctor.lint.module import parse
from oomdoctor.lint.patterns.graphs import is_used_later

SCRIPT = """\
import torch


def train(loader, criterion, thing, table):
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    kept = []
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        out = net(x)
        loss = criterion(out, y)
        loss.backward(retain_graph=True)
        {within}
        optimizer.step()
    {after}
"""


def is_used(within: str, after: str) -> bool:
    """What is said of the script with these two lines."""
    (run,) = [
        run for run in runs_of(parse(SCRIPT.format(within=within, after=after), Path("train.py"))) if run.function
    ]
    backward = next(run.of(Action.BACKWARD))
    return is_used_later(run, backward, list(run.of(Action.FORWARD, within=backward.loop)))


@pytest.mark.parametrize(
    ("within", "after"),
    [
        ("kept.append((i, out))", "pass"),
        ("table[i] = {'out': out}", "pass"),
        ("table.update(out=out)", "pass"),
        ("thing.out = out", "pass"),
        ("thing(loss=loss)", "pass"),
        ("thing([out * 2])", "pass"),
        ("thing(-out[0])", "pass"),
        ("thing(lambda: out.sum())", "pass"),
        ("parts = out[:, 0]; thing(parts)", "pass"),
        ("yield loss", "pass"),
        ("pass", "return {'loss': loss}"),
        ("pass", "(loss * 2).backward()"),
        ("pass", "return torch.autograd.grad(loss, net.parameters())"),
        ("pass", "thing(loss)"),
    ],
)
def test_what_outlives_the_iteration_is_used_later(within: str, after: str) -> None:
    """Kept, returned, given to a function that is not in sight, or gone through after the loop."""
    assert is_used(within, after)


@pytest.mark.parametrize(
    ("within", "after"),
    [
        ("pass", "pass"),
        ("kept.append(loss.item())", "return kept"),
        ("kept.append(out.detach())", "pass"),
        ("thing(loss.detach(), out.shape)", "pass"),
        ("number = loss.item(); thing(number)", "return number"),
        ("print(loss)", "return net"),
        ("pass", "criterion(net(x), y).backward()"),
    ],
)
def test_what_is_off_the_graph_is_not(within: str, after: str) -> None:
    """Numbers, detached tensors, what is only printed, and a pass through a graph of its own."""
    assert not is_used(within, after)
