"""What findings about losses call things."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.lint.engine import check_module
from oomdoctor.lint.module import parse
from oomdoctor.lint.rules import ALL

RULES = {rule.code: rule for rule in ALL}
ACCUMULATING = """\
import torch


def train(net, loader, optimizer, criterion, scaler, k):
    for i, (x, y) in enumerate(loader):
        error = criterion(net(x), y)
        {backward}
        if (i + 1) % {period} == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
RETAINING = """\
import torch


def train(net, loader, optimizer, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        error = criterion(net(x), y)
        {backward}
        optimizer.step()
"""


def words(code: str, text: str) -> tuple[str, str]:
    """Message and help of the one finding of a rule."""
    ((_, hit),) = check_module(parse(text, Path("train.py")), [RULES[code]])
    return hit.message, hit.help or ""


@pytest.mark.parametrize(
    ("backward", "period", "expected"),
    [
        ("error.backward()", "k", "divide before `backward()`: `(error / k).backward()`"),
        ("scaler.scale(error).backward()", "k", "divide it before: `error / k`"),
        ("criterion(net(x), y).backward()", "k", "divide the loss by `k` before `backward()`"),
        ("error.backward()", "(k * 2)", "divide before `backward()`: `(error / (k * 2)).backward()`"),
    ],
)
def test_an_undivided_loss_is_divided_under_its_own_name(backward: str, period: str, expected: str) -> None:
    """The help has the user's variable and the user's period in it."""
    assert words("OOM202", ACCUMULATING.format(backward=backward, period=period))[1] == expected


@pytest.mark.parametrize(
    ("backward", "message", "help_"),
    [
        ("error.backward(retain_graph=True)", "`error` keeps its graph with `retain_graph=True`", "`retain_graph`"),
        ("error.backward(None, True)", "`error` keeps its graph with `backward(None, True)`", "`True`"),
    ],
)
def test_a_kept_graph_is_told_in_the_words_of_the_call(backward: str, message: str, help_: str) -> None:
    """An argument that is given by position is not called by a keyword that is not there."""
    told, advice = words("OOM104", RETAINING.format(backward=backward))
    assert told.startswith(message)
    assert advice.startswith(f"leave {help_} out")


@pytest.mark.parametrize(
    ("code", "net", "criterion"),
    [
        ("OOM207", "Net()", "torch.nn.CrossEntropyLoss(ignore_index=pad_id)"),
        ("OOM209", "torch.nn.Sequential(torch.nn.BatchNorm1d(8))", "torch.nn.CrossEntropyLoss()"),
    ],
)
def test_what_only_running_can_prove_names_the_command(code: str, net: str, criterion: str) -> None:
    """Such a finding's help has the line of `verify` for its own script."""
    text = ACCUMULATING.format(backward="(error / k).backward()", period="k")
    text = text.replace("    for i,", f"    net = {net}\n    criterion = {criterion}\n    for i,", 1)
    line = "`oomdoctor verify -- python train.py --batch-size {micro_batch} --grad-accum {accumulation_steps}`"
    assert line in words(code, text)[1]
