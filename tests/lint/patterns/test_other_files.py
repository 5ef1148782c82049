"""Evaluations whose gradients another file of the repository needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oomdoctor.lint.engine import check_module
from oomdoctor.lint.module import parse
from oomdoctor.lint.project import Project
from oomdoctor.lint.rules import ALL

if TYPE_CHECKING:
    from pathlib import Path

CALLING = """\
import torch
from tune import {name}

def evaluate(model, loader, opt):
    model.eval()
    hits = 0
    for x, y in loader:
        {name}(model, x.cuda(), opt)
        hits += (model(x.cuda()).argmax(1).cpu() == y).sum().item()
    return hits
"""
TUNING = """\
def {name}(model, x, opt):
    loss = model(x).pow(2).mean()
    opt.zero_grad()
    {then}
    opt.step()
"""
RETURNING = """\
import torch

def validate(model, loader, criterion):
    model.eval()
    total = 0
    for x, y in loader:
        total = total + criterion(model(x.cuda()), y.cuda())
    return total / len(loader)
"""
CALLER = """\
import torch
from val import validate

def fit(model, loader, criterion, optimizer):
    for epoch in range(10):
        outer = validate(model, loader, criterion)
        optimizer.zero_grad()
        {then}
        optimizer.step()
"""


def found(folder: Path, name: str, files: dict[str, str]) -> list[bool]:
    """For each evaluation that is reported in one of several files, whether an edit is offered."""
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    module = parse(files[name], (folder / name).resolve(), Project(folder.resolve()))
    return [bool(hit.edits) for rule, hit in check_module(module, ALL) if rule.code == "OOM101"]


@pytest.mark.parametrize("name", ["finetune", "adapt", "update_step"])
def test_a_function_of_another_file_that_makes_a_backward_pass_is_an_answer(name: str, tmp_path: Path) -> None:
    """The loop calls a function that trains in another file, and nothing is said of it."""
    tuning = TUNING.format(name=name, then="loss.backward()")
    assert found(tmp_path, "ev.py", {"ev.py": CALLING.format(name=name), "tune.py": tuning}) == []
    tuning = TUNING.format(name=name, then="pass").replace("opt.zero_grad()", "pass").replace("opt.step()", "pass")
    assert found(tmp_path, "ev.py", {"ev.py": CALLING.format(name=name), "tune.py": tuning}) == [False]


def test_a_backward_pass_of_what_is_returned_is_an_answer(tmp_path: Path) -> None:
    """The loss that a validation returns is trained on in another file; without that it is reported, with no edit."""
    files = {"val.py": RETURNING, "main.py": CALLER.format(then="outer.backward()")}
    assert found(tmp_path, "val.py", files) == []
    files["main.py"] = CALLER.format(then="print(outer)")
    assert found(tmp_path, "val.py", files) == [False]


COLLECTING = """\
import torch

def evaluate(model, loader):
    model.eval()
    return torch.cat([model(x.cuda()).argmax(1) for x, _ in loader])

class Evaluator:
    def __init__(self, model):
        self.model = model

    def evaluate(self, loader):
        self.model.eval()
        return torch.cat([self.model(x.cuda()).argmax(1) for x, _ in loader])
"""
FITTING = """\
import torch
{imported}

def fit(model, loader, test_loader, optimizer):
    for x, y in loader:
        model(x.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with {manager}:
        print({call})
        print({method})
"""


@pytest.mark.parametrize(
    ("imported", "prefix"),
    [
        ("from ev import Evaluator, evaluate", ""),
        ("from ev import Evaluator as Ev_, evaluate as ev_", "short"),
        ("import ev", "ev."),
        ("import ev as e", "e."),
    ],
)
def test_callers_that_switch_recording_off_are_an_answer(imported: str, prefix: str, tmp_path: Path) -> None:
    """Whatever name a caller imports a function or a class by; one that records is no answer."""
    call, method = f"{prefix}evaluate(model, test_loader)", f"{prefix}Evaluator(model).evaluate(test_loader)"
    if prefix == "short":
        call, method = "ev_(model, test_loader)", "Ev_(model).evaluate(test_loader)"
    for manager, expected in (("torch.no_grad()", []), ("torch.autocast('cuda')", [True, True])):
        text = FITTING.format(imported=imported, manager=manager, call=call, method=method)
        assert found(tmp_path, "ev.py", {"ev.py": COLLECTING, "fit.py": text}) == expected
