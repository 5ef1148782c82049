"""An answer is used again while nothing that it depended on has changed, and never after."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from oomdoctor.check.cache import Cache
from oomdoctor.progress import SilentProgress
from oomdoctor.request import ProbeRequest
from oomdoctor.results import Variant
from oomdoctor.trial.answer import ProbeRun
from oomdoctor.trial.probe import probe

pytestmark = pytest.mark.null_gpu

FILES = {
    "model.py": """
import colorsys
import importlib
import json
import os
from contextlib import suppress
from pathlib import Path

import torch
import torch.fx.experimental.symbolic_shapes
from torch import nn
from torch.utils.data import DataLoader, Dataset

from blocks import block

HERE = Path(__file__).parent

with suppress(ImportError):
    import fast_kernels


def build_model():
    settings = json.loads((HERE / "settings.json").read_text())
    width = int(os.environ.get("MODEL_WIDTH", settings["width"]))
    with suppress(OSError):
        width *= json.loads((HERE / "local.json").read_text())
    return nn.Sequential(*(block(width) for _ in (HERE / "layers").iterdir()))


class Samples(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return int(HERE.joinpath("length.txt").read_text())


def make_batch(batch_size):
    part = importlib.import_module("parts.batch")
    (length,) = DataLoader(Samples(), num_workers=1, multiprocessing_context="fork")
    with open(HERE / "batch.yaml") as file:
        return part.make(batch_size, int(length), file.read())


def training_step(model, batch):
    return model(batch).square().mean()
""",
    "blocks.py": "from torch.nn import Linear\n\n\ndef block(width):\n    return Linear(width, width)\n",
    "parts/__init__.py": "",
    "parts/batch.py": (
        "import torch\n\n\ndef make(batch_size, length, text):\n    return torch.zeros(batch_size, length, 64)\n"
    ),
    "settings.json": '{"width": 64}',
    "batch.yaml": "kind: random\n",
    "length.txt": "8",
    "layers/first": "",
    "layers/second": "",
    "README.md": "a project\n",
    "unused.py": "WIDTH = 1\n",
}


@dataclass(frozen=True)
class Kept:
    """A project whose answer is in the cache."""

    project: Path
    request: ProbeRequest
    environment: dict[str, str]
    cache: Cache
    answer: ProbeRun

    def reopened(self, **environment: str) -> Cache:
        """The cache, as a later check opens it."""
        return Cache(self.project / ".oomdoctor-cache", environment=self.environment | environment)

    def finds(self, request: ProbeRequest | None = None, **environment: str) -> bool:
        """Whether the answer would be used."""
        found = (self.reopened(**environment) if environment else self.cache).find(request or self.request)
        assert found is None or found == self.answer
        return found is not None


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """One real probe of a project that uses files in many ways."""
    project = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    request = ProbeRequest("model.py", project, target_batch=4, memory_bytes=2**30, engine="null", watched=True)
    environment = dict(os.environ)
    cache = Cache(project / ".oomdoctor-cache", environment=environment)
    assert cache.find(request) is None
    answer = probe(request, SilentProgress())
    assert answer.dependencies.unseen == ()
    cache.keep(request, answer)
    return Kept(project, request, environment, cache, answer)


@pytest.fixture
def project(kept: Kept) -> Iterator[Path]:
    """The project, to be changed; afterwards it is as it was, and the answer is found again."""
    before = {path: path.read_bytes() for path in kept.project.rglob("*") if path.is_file()}
    yield kept.project
    for path in sorted(kept.project.rglob("*"), reverse=True):
        if path.is_file() and path not in before:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    for path, content in before.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    assert kept.finds()


def test_an_unchanged_question_is_answered_from_the_cache(kept: Kept) -> None:
    """The answer is the one that was kept, with everything in it."""
    assert kept.reopened().find(kept.request) == kept.answer


@pytest.mark.parametrize(
    "name",
    ["model.py", "blocks.py", "parts/batch.py", "parts/__init__.py", "settings.json", "batch.yaml", "length.txt"],
)
def test_an_edit_of_what_was_used_is_noticed(kept: Kept, project: Path, name: str) -> None:
    """The target, what it imports at once or late, and what it or its data loader's process reads."""
    file = project / name
    times = file.stat()
    file.write_text(FILES[name].replace("64", "65").replace("8", "9") + "\n# edited\n")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as some tools that copy files do
    assert not kept.finds()


@pytest.mark.parametrize("name", ["settings.json", "blocks.py"])
def test_what_was_used_and_is_gone_is_noticed(kept: Kept, project: Path, name: str) -> None:
    """A file that the target could not read again."""
    (project / name).unlink()
    assert not kept.finds()


@pytest.mark.parametrize(
    "name",
    [
        "layers/third",  # in a directory that is listed
        "local.json",  # opened, and not there
        "fast_kernels.py",  # an import that failed
        "fast_kernels/__init__.py",
        "blocks/__init__.py",  # goes before `blocks.py`
        "colorsys.py",  # goes before what Python has
        "sympy.py",  # goes before what torch imports for itself
    ],
)
def test_a_file_that_comes_and_matters_is_noticed(kept: Kept, project: Path, name: str) -> None:
    """What was looked for and is there now, and what would now be found first."""
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_text("")
    assert not kept.finds()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MODEL_WIDTH", "128"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
        ("PYTHONPATH", "/elsewhere"),
    ],
)
def test_a_variable_that_matters_is_noticed(kept: Kept, name: str, value: str) -> None:
    """One that the target asked for, and those that native code reads unseen."""
    assert not kept.finds(**{name: value})
    assert kept.finds()


@pytest.mark.parametrize(
    "change",
    [
        {"target": "model.py:build_model()"},
        {"target_batch": 8},
        {"world_size": 2},
        {"variant": Variant(precision="bf16")},
        {"variant": Variant(optimizer="SGD")},
        {"headroom": 0.1},
        {"gpu": "rtx-4090", "memory_bytes": None},
        {"memory_bytes": 2**31},
        {"profile_micro_batch": 2},
        {"trial_timeout_seconds": 60.0},
    ],
    ids=str,
)
def test_another_question_is_another(kept: Kept, change: dict[str, object]) -> None:
    """No option is left out of what an answer is known by."""
    assert not kept.finds(replace(kept.request, **change))  # type: ignore[arg-type]


def _touch(project: Path) -> None:
    for path in project.rglob("*"):
        path.touch()


def _compile(project: Path) -> None:
    (project / "__pycache__").mkdir(exist_ok=True)
    (project / "__pycache__" / "other.cpython-311.pyc").write_bytes(b"compiled")
    (project / "layers" / "__pycache__").mkdir()


CHANGES: dict[str, Callable[[Path], object]] = {
    "a touch": _touch,
    "a comment in a file that is not used": lambda project: (project / "unused.py").write_text("# a comment\n"),
    "a text that is not read": lambda project: (project / "README.md").write_text("another text\n"),
    "a new file that nobody looked for": lambda project: (project / "new.py").write_text("import torch\n"),
    "a new directory": lambda project: (project / "docs").mkdir(),
    "an edit in a directory of which only the names were read": lambda project: (
        project / "layers" / "first"
    ).write_text("x"),
    "what Python compiled": _compile,
    "a copy of the same content": lambda project: shutil.move(
        shutil.copy(project / "blocks.py", project / "copy.py"), project / "blocks.py"
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_does_not_matter_is_not_noticed(kept: Kept, project: Path, change: Callable[[Path], object]) -> None:
    """Times, files that nobody looked at, and what comes and goes by itself."""
    change(project)
    assert kept.finds()


def test_the_working_directory_does_not_matter_to_absolute_paths(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that is run from a subfolder finds the same answers."""
    monkeypatch.chdir(kept.project / "layers")
    assert kept.finds()


def test_a_variable_that_nobody_read_does_not_matter(kept: Kept) -> None:
    """Nor do those of shells and CI."""
    assert kept.finds(GITHUB_RUN_ID="7", COLUMNS="200", OLDPWD="/", SOMETHING="else")
