"""A user's file, edited: at the right places, in the file's own style, or not at all."""

from __future__ import annotations

import ast

import pytest

from oomdoctor.errors import NotApplicableError
from oomdoctor.remedies.file_edit import FileEdit, code_by_place, diff_of, merged, patched

FILE = '''\
"""A model — with an em dash."""

from __future__ import annotations

import torch
from torch import nn


def build_model(depth=2):
    if depth == 0:
        return nn.Linear(4, 4)
    model = nn.Sequential(
        nn.Linear(4, 4),
    )
    return model


def make_batch(size):
    return (
        torch.randn(size, 4),
        "ß", torch.randn(size),
    )


def training_step(model, batch):
    return model(batch[0]).mean()


if __name__ == "__main__":
    print(build_model())
'''
EVERYTHING = FileEdit(
    imports=("import torch", "import functools"),
    top=("import os", 'os.environ["A"] = "b"'),
    definitions=("KEPT = []",),
    model=("model.half()",),
    batch=("batch = batch",),
    decorators=("torch.no_grad()",),
    keywords=("fused=True",),
)


def test_every_place_is_edited() -> None:
    """Lines stand before each `return`, above the step, with the imports and before what uses them."""
    after = patched(FILE, EVERYTHING, "build_model", "AdamW")
    diff = diff_of("model.py", FILE, after)
    assert diff.startswith("--- a/model.py\n+++ b/model.py\n")
    removed = [line for line in diff.splitlines() if line.startswith("-") and line != "--- a/model.py"]
    assert removed == ["-        return nn.Linear(4, 4)", "-    return ("]
    ast.parse(after)
    lines = after.splitlines()
    assert lines.index('os.environ["A"] = "b"') < lines.index("import torch")
    assert lines.index("KEPT = []") < lines.index("def build_model(depth=2):")
    assert lines.count("        model.half()") == lines.count("    model.half()") == 1
    assert after.count("import torch\n") == 1
    assert lines[lines.index("def training_step(model, batch):") - 1] == "@torch.no_grad()"
    assert '        "ß", torch.randn(size),\n    )\n    batch = batch\n    return batch\n' in after
    assert after.endswith(
        "    return torch.optim.AdamW([parameter for parameter in model.parameters() "
        "if parameter.requires_grad], fused=True)\n"
    )


@pytest.mark.parametrize(
    ("call", "edited"),
    [
        ("torch.optim.SGD(model.parameters(), lr=1)", "torch.optim.SGD(model.parameters(), lr=1, fused=True)"),
        (
            "torch.optim.SGD(\n        net.parameters(),\n    )",
            "torch.optim.SGD(\n        net.parameters(), fused=True)",
        ),
    ],
)
def test_the_files_own_optimizer_is_edited(call: str, edited: str) -> None:
    """A keyword is added to its call, and a class goes around it."""
    source = f"import torch\n\ndef build_optimizer(net):\n    return {call}\n"
    assert edited in patched(source, FileEdit(keywords=("fused=True",)), "build_model", "SGD")
    around = patched(source, FileEdit(optimizer="Around({optimizer})"), "build_model", "SGD")
    assert f"    return Around({call})\n" in around
    other = patched(source, FileEdit(optimizer="Other({parameters})"), "build_model", "SGD")
    assert "    return Other([parameter for parameter in net.parameters() if parameter.requires_grad])\n" in other


@pytest.mark.parametrize(
    ("source", "edit", "reason"),
    [
        ("build_model = make", FileEdit(model=("x",)), "defines no function `build_model`"),
        (
            "def build_model():\n    if True: return 1",
            FileEdit(model=("x",)),
            "line 2 does not stand on a line of its own",
        ),
        ("def build_model():\n    pass", FileEdit(model=("x",)), "has no `return` of a value"),
        ("x = 1", FileEdit(decorators=("x",)), "defines no function `training_step`"),
        ("from a import build_optimizer", FileEdit(keywords=("fused=True",)), "not defined in this file"),
        ("def build_optimizer(m):\n    return o", FileEdit(keywords=("fused=True",)), "does not return the call"),
        (
            "def build_optimizer(m):\n    return O(m, foreach=False)",
            FileEdit(keywords=("fused=True",)),
            "sets `foreach` itself",
        ),
        ("x = 1", FileEdit(loop=("del batch",)), "`del batch` belongs into the training loop"),
    ],
)
def test_what_has_no_place_is_refused(source: str, edit: FileEdit, reason: str) -> None:
    """The reason names the line or the function."""
    with pytest.raises(NotApplicableError, match=reason):
        patched(source, edit, "build_model", "AdamW")


def test_returns_of_inner_functions_are_left_alone() -> None:
    """Only what the builder itself returns is the model."""
    source = "def net(a):\n    def inner():\n        return 1\n    return (lambda: 2) and inner\n"
    after = patched(source, FileEdit(model=("model.half()",)), "net", "AdamW")
    assert after.count("model.half()") == 1
    assert "        return 1\n" in after


def test_edits_are_shown_by_their_places() -> None:
    """Imports of several are named once; each place has its lines."""
    edit = merged([EVERYTHING, FileEdit(imports=("import torch",), loop=("del loss",))])
    shown = dict(code_by_place(edit, "make_net", "SGD"))
    assert shown["with the imports"] == ("import torch", "import functools")
    assert shown["at the end of `make_net`, where `model` is the model"] == ("model.half()",)
    assert shown["above `training_step`"] == ("@torch.no_grad()",)
    assert shown["in the training loop"] == ("del loss",)
    assert "torch.optim.SGD(" in shown["in `build_optimizer`"][0]


def test_a_body_on_the_line_of_its_def_gets_lines_of_its_own() -> None:
    """As people write short functions; what stands behind it stays."""
    after = patched("def build_model(): return 1  # short\n", FileEdit(model=("model.half()",)), "build_model", "AdamW")
    assert after == "def build_model():\n    model = 1\n    model.half()\n    return model  # short\n"
