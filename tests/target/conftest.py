"""Targets as real files, and a process that is as it was after each test."""

from __future__ import annotations

import sys
from textwrap import dedent
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from oomdoctor.errors import TargetError
from oomdoctor.target.importing import load_target
from oomdoctor.target.reference import parse_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oomdoctor.target.contract import Target

GOOD = """
    import torch

    def build_model(width=4):
        return torch.nn.Linear(3, width)

    def make_batch(batch_size):
        return torch.zeros(batch_size, 3)
"""


@pytest.fixture(autouse=True)
def _same_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Undo what an import of a target does to the interpreter."""
    monkeypatch.setattr(sys, "argv", ["oomdoctor", "--target-batch", "256"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "model", raising=False)  # another test's: the file would get another name
    yield
    for name, module in list(sys.modules.items()):
        if name.startswith("own_") or str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file below the test's directory."""

    def write_file(name: str, text: str = GOOD) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def load(tmp_path: Path, write: Callable[[str, str], Path]) -> Callable[..., Target]:
    """Load a target from the test's directory; with `source`, `model.py` is written first."""

    def load_text(text: str = "model.py", source: str | None = None) -> Target:
        if source is not None:
            write("model.py", source)
        return load_target(parse_reference(text, directory=tmp_path))

    return load_text


@pytest.fixture
def refuse(load: Callable[..., Target]) -> Callable[..., SimpleNamespace]:
    """Load a target that is at fault; what was said about it."""

    def refuse_text(text: str = "model.py", source: str | None = None) -> SimpleNamespace:
        with pytest.raises(TargetError) as caught:
            load(text, source)
        error = caught.value
        assert error.__context__ is None, "the error keeps the user's frames alive"
        return SimpleNamespace(message=error.message, hint=error.hint or "", details=error.details or "")

    return refuse_text
