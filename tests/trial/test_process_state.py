"""What the functions of a target's file leave in their process is seen, so that no other model begins with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from targets_for_tests import write_target

from oomdoctor.target.importing import load_target
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial import process_state
from oomdoctor.trial.process_state import ProcessState

FILE = """
import functools

import torch

KEPT = {}
SEEN = []


class Model(torch.nn.Linear):
    built = 0


@functools.cache
def cached(width):
    return object()


def build_model(width=4):
    return Model(width, 1)


def make_batch(batch_size):
    return torch.zeros(batch_size, 4)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The file, imported as a worker does."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(process_state, "has_compiled", lambda: False)  # what other tests have compiled
    monkeypatch.delitem(sys.modules, "kept_state", raising=False)
    target = load_target(parse_reference(write_target(tmp_path, FILE, "kept_state.py"), directory=tmp_path))
    module = sys.modules["kept_state"]
    assert vars(module)["make_batch"] is target.make_batch
    return module


def test_building_and_stepping_leaves_nothing(module: Any, tmp_path: Path) -> None:
    """A model that is built and trained, and a library that is imported meanwhile, change nothing."""
    import torch._dynamo

    state = ProcessState((tmp_path,))
    model = module.build_model()
    model(module.make_batch(2)).sum().backward()
    torch.optim.SGD(model.parameters()).step()
    sys.modules["imported_late"] = ModuleType("imported_late")
    del sys.modules["imported_late"]
    assert state.is_unchanged()


CHANGES: dict[str, Callable[[Any, pytest.MonkeyPatch], object]] = {
    "a dict": lambda module, _: module.KEPT.update(width=4),
    "a list": lambda module, _: module.SEEN.append(4),
    "a cache": lambda module, _: module.cached(4),
    "a name": lambda module, _: setattr(module, "width", 4),
    "an attribute of a class": lambda module, _: setattr(module.Model, "built", 1000),
    "an attribute of a function": lambda module, _: setattr(module.build_model, "calls", 1),
    "a patched method": lambda _, patch: patch.setattr(torch.nn.Linear, "forward", lambda *_: None),
    "a patched function": lambda _, patch: patch.setattr(torch.nn.functional, "gelu", torch.relu),
    "a variable": lambda _, patch: patch.setitem(os.environ, "OOMDOCTOR_TESTED", "1"),
    "a switch": lambda _, patch: patch.setattr(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark),
    "compiled": lambda _, patch: patch.setattr(process_state, "has_compiled", lambda: True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_stays_is_seen(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """State of the file, a patch of a library, a variable and a setting of PyTorch are each told from nothing."""
    state = ProcessState((tmp_path,))
    CHANGES[change](module, monkeypatch)
    assert not state.is_unchanged()


def test_a_default_is_seen(module: Any, tmp_path: Path) -> None:
    """A default type that a function sets, and does not set back, is seen."""
    state = ProcessState((tmp_path,))
    torch.set_default_dtype(torch.bfloat16)
    seen = not state.is_unchanged()
    torch.set_default_dtype(torch.float32)
    assert seen
    assert state.is_unchanged()


def test_the_files_of_the_target_are_named(module: Any, tmp_path: Path) -> None:
    """Files that were imported, and no library's, are told with the time of their last change."""
    (path,) = ProcessState((tmp_path,)).sources((tmp_path,)).items()
    assert path == (str(tmp_path / "kept_state.py"), (tmp_path / "kept_state.py").stat().st_mtime_ns)


def test_a_file_that_is_imported_does_not_run_again(module: Any, tmp_path: Path) -> None:
    """Its functions are those of the module that is there, whose registrations cannot be made twice."""
    reference = parse_reference("kept_state.py:build_model(width=8)", directory=tmp_path)
    assert load_target(reference, is_imported=True).make_batch is module.make_batch
    assert load_target(reference).make_batch is not module.make_batch
