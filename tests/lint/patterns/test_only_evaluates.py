"""The decorator that switches gradients off is only offered on functions that surely need none."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.lint.engine import check_module
from oomdoctor.lint.module import parse
from oomdoctor.lint.rules import ALL

SCRIPT = """\
import numpy as np
import torch
import torch.nn.functional as F
from collections import defaultdict
from unknown import helper

KEPT = []

def {head}:
    model.eval()
    hits, kept, parts = 0, [], {{}}
    for x, y in loader:
        out = model(x.cuda())
        {use}
    return {returned}

def count(out, y):
    return (out.argmax(1).cpu() == y).sum().item()

def steps(out, y):
    loss = F.cross_entropy(out, y)
    loss.backward()

def stores(out, y):
    KEPT.append(out)
"""
HEAD = "evaluate(model, loader)"


def offered(use: str, returned: str = "hits", head: str = HEAD) -> bool:
    """Whether the evaluation is put right by an edit."""
    module = parse(SCRIPT.format(use=use, returned=returned, head=head), Path("x.py"))
    hits = [hit for rule, hit in check_module(module, ALL) if rule.code == "OOM101"]
    return bool(hits) and all(hit.edits for hit in hits)


@pytest.mark.parametrize(
    ("use", "returned"),
    [
        ("hits += int(count(out, y))", "hits / len(loader)"),
        ("hits += F.cross_entropy(out, y.cuda()).item()", "hits"),
        ("kept.append(out.detach().cpu())", "torch.cat(kept)"),
        ("kept.append(out.detach().cpu().numpy())", "np.concatenate(kept)"),
        ("kept.append(out); hits += 1", "hits"),
        ("kept.extend(out.argmax(1).tolist())", "{'n': hits, 'all': sorted(kept)}"),
        ("parts['a'] = out.sum().item(); print(f'{hits}')", "parts"),
        ("hits += out.argmax(1).eq(y.cuda()).sum().item()", "hits"),
    ],
)
def test_a_function_that_only_evaluates_gets_it(use: str, returned: str) -> None:
    """Calls of libraries, tensors, containers and harmless functions, and numbers returned, leave the edit offered."""
    assert offered(use, returned)


@pytest.mark.parametrize(
    ("use", "returned"),
    [
        ("helper(out, y)", "hits"),
        ("steps(out, y)", "hits"),
        ("stores(out, y)", "hits"),
        ("KEPT.append(out)", "hits"),
        ("model.last = out", "hits"),
        ("loader.kept[0] = out", "hits"),
        ("kept.append(out)", "kept"),
        ("kept.append(out.cpu())", "torch.cat(kept)"),
        ("hits = hits + out.mean()", "hits"),
        ("other = kept; kept.append(out)", "other"),
        ("getattr(model, 'tune')(out)", "hits"),
        ("y.register_hook(print)", "hits"),
        ("kept = KEPT; kept.append(out)", "hits"),
        ("max(kept, key=helper)", "hits"),
        ("yield out", "hits"),
        ("match out:\n            case kept: pass", "kept"),
        ("hits += (lambda o: o)(1)", "hits"),
    ],
)
def test_a_function_that_may_need_gradients_does_not(use: str, returned: str) -> None:
    """Unknown calls, hooks, generators, and outputs that leave the function take the edit away."""
    assert not offered(use, returned)


@pytest.mark.parametrize("head", ["evaluate(model, loader, helper)", "evaluate(model, loader, np)"])
def test_a_parameter_is_not_what_its_name_means_elsewhere(head: str) -> None:
    """A parameter that is named as a library or a function is unknown."""
    assert not offered("helper(out); np.sum(y)", head=head)


@pytest.mark.parametrize(("kept", "is_safe"), [("out.mean(0)", False), ("out.mean(0).detach()", True)])
def test_what_a_model_of_an_object_gives_is_not_kept_in_the_object(*, kept: str, is_safe: bool) -> None:
    """Prototypes that are kept with their graph may be trained through later."""
    text = f"""import torch

class Evaluator:
    def evaluate(self, loader):
        self.model.eval()
        for x in loader:
            out = self.model(x.cuda())
            self.prototypes = {kept}
"""
    hits = [hit for rule, hit in check_module(parse(text, Path("x.py")), ALL) if rule.code == "OOM101"]
    assert [bool(hit.edits) for hit in hits] == [is_safe]
