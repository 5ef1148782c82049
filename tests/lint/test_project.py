"""Calls into other files of a repository."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from oomdoctor.lint.flow.events import Action, GradMode
from oomdoctor.lint.flow.runs import gradients_by_callers, runs_of
from oomdoctor.lint.module import Class, Function, parse
from oomdoctor.lint.project import Project

if TYPE_CHECKING:
    from pathlib import Path

    from oomdoctor.lint.module import Module

ENGINE = """
import torch
def train_step(model, x, optimizer):
    model(x).sum().backward()
    optimizer.step()
def evaluate(model, loader):
    model.eval()
    for x in loader:
        model(x)
class Trainer:
    pass
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a package."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from .engine import train_step, Trainer as Worker\n")
    (package / "engine.py").write_text(ENGINE)
    return tmp_path


def module(root: Path, name: str, text: str, overlay: dict[Path, bytes] | None = None) -> Module:
    """A file of the repository."""
    path = root / name
    path.write_text(dedent(text))
    return parse(path.read_text(), path, Project(root, overlay))


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from package.engine import train_step", "train_step"),
        ("from package import train_step as go", "go"),
        ("import package.engine", "package.engine.train_step"),
        ("from package import engine", "engine.train_step"),
    ],
)
def test_a_call_is_followed_into_another_file(root: Path, imports: str, call: str) -> None:
    """However a function is imported, what it does happens in the loop that calls it."""
    main = module(
        root, "main.py", f"{imports}\ndef main():\n    for x in loader:\n        {call}(model, x, optimizer)\n"
    )
    steps = [event for run in runs_of(main) for event in run.of(Action.STEP)]
    assert [(event.module.path.name, len(event.context.loops)) for event in steps] == [("engine.py", 1)]


def test_names_are_found_through_files_that_pass_them_on(root: Path) -> None:
    """A re-export leads to the definition, under another name too."""
    main = module(root, "main.py", "")
    project = main.project
    assert project is not None
    assert isinstance(project.definition("package.train_step", main), Function)
    assert isinstance(project.definition("package.Worker", main), Class)
    assert project.definition("package.missing_step", main) is None
    assert project.definition("elsewhere.train_step", main) is None


def test_what_is_to_be_written_is_read_instead_of_the_file(root: Path) -> None:
    """An overlay stands for the file."""
    path = (root / "package" / "engine.py").resolve()
    text = "from package.engine import train_step\nfor x in loader:\n    train_step(model, x, optimizer)\n"
    main = module(root, "main.py", text, {path: b"def train_step(model, x, optimizer):\n    pass\n"})
    assert not [event for run in runs_of(main) for event in run.of(Action.STEP)]


@pytest.mark.parametrize("broken", ["def train_step(:\n", "x = 1\n" * 200_000, "\0"])
def test_a_file_that_cannot_be_read_is_not_followed(root: Path, broken: str) -> None:
    """A broken, a huge and a binary file end the trail, and nothing else."""
    (root / "package" / "engine.py").write_text(f"def train_step(model):\n    pass\n{broken}")
    main = module(root, "main.py", "from package.engine import train_step\nfor x in loader:\n    train_step(x)\n")
    assert main.project is not None
    assert main.project.definition("package.engine.train_step", main) is None


@pytest.mark.parametrize(
    ("caller", "gradients"),
    [
        ("with torch.no_grad():\n        evaluate(model, loader)", GradMode.OFF),
        ("evaluate(model, loader)", GradMode.ON),
        ("pass", None),
    ],
)
def test_callers_in_other_files_say_whether_autograd_records(
    root: Path, caller: str, gradients: GradMode | None
) -> None:
    """An evaluation without `no_grad` of its own is judged by the files that call it."""
    (root / "main.py").write_text(
        f"import torch\nfrom package.engine import evaluate\ndef main(model):\n    {caller}\n"
    )
    engine = module(root, "package/engine.py", ENGINE)
    (forward,) = [event for run in runs_of(engine) for event in run.of(Action.FORWARD) if len(event.context.loops)]
    assert gradients_by_callers(forward) is gradients
