"""Edits of the rules about memory: they are given where they are safe, and only there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from oomdoctor.lint.engine import check_module
from oomdoctor.lint.module import parse
from oomdoctor.lint.patterns.edits import with_keyword, with_method_call, with_no_grad
from oomdoctor.lint.rules import ALL
from oomdoctor.lint.source import Edit

EVALUATE = """\
import torch

{decorators}
def {name}(model, loader):
    model.eval()
    {extra}
    return [model(x.cuda()).argmax(1).tolist() for x in loader]
"""


def decorator_for(name: str = "evaluate", decorators: str = "", extra: str = "pass", head: str = "") -> bool:
    """Whether a function that evaluates can be given the decorator."""
    text = head + EVALUATE.format(name=name, decorators=decorators, extra=extra)
    if head:
        text = text.replace("import torch\n", "", 1)
    return bool(with_no_grad(parse(text, Path("x.py")).functions[0]))


def test_a_function_of_its_own_is_decorated() -> None:
    """A plain function under `import torch` gets the decorator, on a line of its own."""
    assert decorator_for()
    assert decorator_for(decorators="@staticmethod")


@pytest.mark.parametrize(
    "case",
    [
        {"name": "main"},
        {"decorators": "@torch.jit.script"},
        {"decorators": "@cached"},
        {"extra": "torch.set_grad_enabled(True)"},
        {"head": "from torch import nn\n"},
    ],
)
def test_a_decorator_that_may_do_something_else_is_not_put_on(case: dict[str, str]) -> None:
    """No edit for `main`, under other decorators, where the function switches itself, and without the name `torch`."""
    assert not decorator_for(**case)


def keyword_edit(text: str) -> str | None:
    """A call with `map_location` put into it; None where no edit is given."""
    module = parse(text, Path("x.py"))
    call = next(node for node in ast.walk(module.tree) if isinstance(node, ast.Call))
    edits = with_keyword(call, "map_location", '"cpu"', module)
    return applied(text, edits) if edits else None


def applied(text: str, edits: tuple[Edit, ...]) -> str:
    """A text of one line with edits made."""
    data = text.encode()
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        data = data[: edit.start[1]] + edit.text.encode() + data[edit.end[1] :]
    return data.decode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("load(path)", 'load(path, map_location="cpu")'),
        ("load(path, weights_only=True)", 'load(path, weights_only=True, map_location="cpu")'),
        ("load('ä', map_location=None)", "load('ä', map_location=\"cpu\")"),
        ("load(path ,)", 'load(path, map_location="cpu" ,)'),
        ("load((path))", None),
        ("load()", None),
    ],
)
def test_a_keyword_goes_behind_the_last_argument(text: str, expected: str | None) -> None:
    """The argument is added or replaced, and nothing is done where a parenthesis is in the way."""
    assert keyword_edit(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss", "loss.detach()"),
        ("a + b", "(a + b).detach()"),
        ("f(x)[0]", "f(x)[0].detach()"),
        ("-ä", "(-ä).detach()"),
    ],
)
def test_a_call_on_an_expression_has_parentheses_where_it_needs_them(text: str, expected: str) -> None:
    """A sum is put in parentheses, a name is not."""
    node = ast.parse(text, mode="eval").body
    assert applied(text, with_method_call(node, "detach()")) == expected


LOADED = """\
import torch


def main(model, path):
    torch.distributed.init_process_group("nccl")
    state = torch.load(path)
    {use}
    return model.cuda()
"""


@pytest.mark.parametrize(
    ("use", "is_safe"),
    [
        ("model.load_state_dict(state)", True),
        ("model.load_state_dict(state['model']); print(state['epoch'])", True),
        ("model.load_state_dict(state['model']) if 'model' in state else None", True),
        ("model.load_state_dict(state, assign=True)", False),
        ("model.load_state_dict(state); model.mean = state['mean']", False),
        ("model.load_state_dict(state); keep(state)", False),
        ("model.load_state_dict(state['model']); best = state['best_acc'].cuda()", False),
    ],
)
def test_a_location_is_only_added_where_nothing_else_uses_the_checkpoint(*, use: str, is_safe: bool) -> None:
    """`map_location="cpu"` is given where all goes into `load_state_dict` that copies, and numbers are read besides."""
    module = parse(LOADED.format(use=use), Path("x.py"))
    hits = [hit for rule, hit in check_module(module, ALL) if rule.code == "OOM111"]
    assert [bool(hit.edits) for hit in hits] == [is_safe]


RESUMED = """\
def {name}(net, loader, opt):
    ck = torch.load("x.pt", map_location="cuda")
    net.load_state_dict(ck["m"])
    for x in loader:
        opt.zero_grad(); net(x.cuda()).sum().backward(); opt.step()
"""


@pytest.mark.parametrize(
    ("file", "text", "is_safe"),
    [
        ("x.py", RESUMED, True),
        ("x.ipynb", RESUMED, False),
        ("x.py", RESUMED.replace("def {name}(net, loader, opt):", "if {name}:"), False),
    ],
)
def test_a_checkpoint_is_only_deleted_inside_functions_of_scripts(*, file: str, text: str, is_safe: bool) -> None:
    """A name of a module or in a notebook may be used from elsewhere, and is left alone."""
    head = "import torch\nnet = torch.nn.Linear(3, 3).cuda(); opt = torch.optim.Adam(net.parameters())\n"
    module = parse(head + text.format(name="main"), Path(file))
    hits = [hit for rule, hit in check_module(module, ALL) if rule.code == "OOM112"]
    assert [bool(hit.edits) for hit in hits] == [is_safe]


@pytest.mark.parametrize("how", ["state, **how", "state, True, True", "state, assign=True"])
def test_nothing_is_said_of_copying_where_the_tensors_may_be_assigned(how: str) -> None:
    """Neither an edit nor a word of moving where the model may take the loaded tensors for its own."""
    module = parse(LOADED.format(use=f"how = {{}}; model.load_state_dict({how})"), Path("x.py"))
    hits = [hit for rule, hit in check_module(module, ALL) if rule.code == "OOM111"]
    assert [(bool(hit.edits), "load_state_dict" in hit.help) for hit in hits] == [(False, False)]
