"""An answer about a command is used again while nothing that the command used has changed, and never after."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from running import WITHOUT_COMPILER, run_command

from oomdoctor.check.cache import Cache, cache_folder
from oomdoctor.check.entries import DEFAULTS, chosen_entries
from oomdoctor.config.check import configure_check
from oomdoctor.config.schema import CheckKeys

pytestmark = pytest.mark.null_gpu

FILES = {
    "train.py": """
import argparse
import json
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from blocks import block

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
size = parser.parse_args().batch_size
width = json.loads(Path("settings.json").read_text())["width"] + int(os.environ.get("EXTRA_WIDTH", "0"))
try:
    width *= json.loads(Path("local.json").read_text())
except FileNotFoundError:
    pass


class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((width,), float(Path("value.txt").read_text()))


model = nn.Sequential(block(width), block(width)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if size > 1:
    Path("large.txt").read_text()
log = open("log.txt", "w")
for batch in DataLoader(Samples(), batch_size=size, num_workers=1):
    model(batch.cuda()).square().mean().backward()
    optimizer.step()
    print(size, file=log, flush=True)
""",
    "blocks.py": "from torch.nn import Linear\n\n\ndef block(width):\n    return Linear(width, width)\n",
    "settings.json": '{"width": 64}',
    "value.txt": "1.0",
    "large.txt": "",
    "unused.txt": "",
}
CONFIGURATION = """
capacity = "1GiB"
target-batch = 2

[[check]]
name = "plain"
command = {command}
fresh = {fresh}
"""
# `argparse` reads the columns, which a fixture of a module does not have as a test has them.
SAME = {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "COLUMNS": "80",
    "TERM": "dumb",
    **WITHOUT_COMPILER,
}
COMMAND = '["python", "train.py", "--batch-size", "{micro_batch}"]'


@dataclass(frozen=True)
class Project:
    """A folder with a command that is checked.

    Attributes:
        folder: Where it is.
        environment: Variables of its checks, beyond those of the tests.
    """

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def check(self, *options: str, **environment: str) -> tuple[bool, dict[str, object]]:
        """Whether the answer was known, and the entry."""
        finished = run_command(["check", "--json", *options], cwd=self.folder, **SAME, **environment)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        (entry,) = json.loads(finished.stdout)["result"]["entries"]
        return "plain: micro-batch 2 is the largest that fits, cached" in finished.stderr, entry

    def write(self, **files: str) -> None:
        """Write files, by names with `_` for `.`."""
        for name, text in files.items():
            (self.folder / name.replace("_", ".")).write_text(text)


def made(folder: Path, *, command: str = COMMAND, fresh: bool = False) -> Project:
    """A project that was not checked yet."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    configuration = CONFIGURATION.replace("{command}", command).replace("{fresh}", str(fresh).lower())
    (folder / "oomdoctor.toml").write_text(configuration)
    return Project(folder)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose answer is kept: what was seen is known, and no trial has to run to look."""
    project = made(tmp_path_factory.mktemp("kept"))
    is_known, entry = project.check()
    assert (is_known, entry["not_kept"]) == (False, None)
    return project


def seen(project: Project) -> set[str]:
    """What the one answer depends on."""
    (file,) = project.folder.glob(".oomdoctor-cache/*.json")
    used = json.loads(file.read_text())["dependencies"]
    return {*used["seen"], *(f"variable {name}" for name in used["variables"])}


def test_an_unchanged_command_is_known(kept: Project) -> None:
    """The second check finds the answer, from a subfolder too and whatever else is in the environment."""
    assert kept.check(SOMETHING="else", GITHUB_RUN_ID="7", OLDPWD="/")[0]


def test_what_every_process_of_every_trial_used_is_seen(kept: Project) -> None:
    """The script's modules, what a data loader's worker reads, what only a larger size reads, and what is not there."""
    found = {name.replace(f"{kept.folder}/", "") for name in seen(kept)}
    names = {"train.py", "blocks.py", "settings.json", "value.txt", "large.txt", "local.json"}
    assert {f"content {name}" for name in names} <= found
    assert {"variable EXTRA_WIDTH", "module blocks", "module torch"} <= found
    assert "content unused.txt" not in found
    assert "content log.txt" not in found
    assert "variable *" not in found


@pytest.mark.parametrize("name", ["train.py", "blocks.py", "settings.json", "value.txt", "large.txt", "local.json"])
def test_what_changed_is_asked_anew(kept: Project, tmp_path: Path, name: str) -> None:
    """Where any file that was used is another, or is there now and was not, the answer is not used."""
    path = kept.folder / name
    before = path.read_bytes() if path.exists() else None
    try:
        path.write_bytes((before or b"2") + b"\n")
        assert not _is_known(kept)
    finally:
        path.unlink() if before is None else path.write_bytes(before)
    assert _is_known(kept)
    assert not list(tmp_path.iterdir())


def test_another_environment_is_asked_anew(kept: Project) -> None:
    """A variable that the command read counts, and one that nobody read does not."""
    assert not _is_known(kept, EXTRA_WIDTH="8")
    assert _is_known(kept, NO_WIDTH="8")


def test_a_file_beside_the_script_that_hides_a_module_is_asked_anew(kept: Project) -> None:
    """A new `argparse.py` would be what the script imports."""
    path = kept.folder / "argparse.py"
    path.write_text("")
    try:
        assert not _is_known(kept)
    finally:
        path.unlink()


def _is_known(project: Project, **environment: str) -> bool:
    """Whether a check would find the answer, had from the cache itself."""
    variables = {**os.environ, **SAME, **environment}
    file = project.folder / "oomdoctor.toml"
    (entry,) = chosen_entries(configure_check(CheckKeys(), {}, config=file, defaults=DEFAULTS))
    request = replace(entry.request, watched=True)
    return Cache(cache_folder(file, variables), environment=variables).find(request) is not None


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ('import subprocess\nsubprocess.run(["cat", "settings.json"])\n', "the command started `cat`"),
        ('import os\nos.system("cat settings.json")\n', "the command started `cat settings.json`"),
        (
            'import subprocess, sys\nsubprocess.run([sys.executable, "-I", "-c", "open(\'settings.json\')"])\n',
            "which nobody watched",
        ),
        (
            'import subprocess, sys\nsubprocess.run([sys.executable, "-c", "open(\'settings.json\')"], env={})\n',
            "which nobody watched",
        ),
    ],
    ids=["program", "shell", "isolated", "bare"],
)
def test_what_nobody_sees_is_said_and_not_kept(tmp_path: Path, script: str, reason: str) -> None:
    """Where the command starts what is not watched, the next check asks anew, and the entry says why."""
    project = made(tmp_path, fresh=True)
    (tmp_path / "train.py").write_text(script + FILES["train.py"])
    is_known, entry = project.check()
    assert not is_known
    assert reason in str(entry["not_kept"])
    assert not list(tmp_path.glob(".oomdoctor-cache/*.json"))


def test_a_python_that_the_command_starts_is_watched(tmp_path: Path) -> None:
    """The same interpreter in the same environment says itself what it reads, and the answer is kept."""
    project = made(tmp_path, fresh=True)
    start = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'open(\"unused.txt\")'], check=True)\n"
    (tmp_path / "train.py").write_text(start + FILES["train.py"])
    assert project.check()[1]["not_kept"] is None
    assert f"content {tmp_path}/unused.txt" in seen(project)


def test_a_command_that_begins_with_a_shell_is_not_kept(tmp_path: Path) -> None:
    """Nobody sees what a shell reads; it is said, and the answer stands."""
    command = '["sh", "-c", "exec python train.py --batch-size {micro_batch}"]'
    _, entry = made(tmp_path, command=command, fresh=True).check()
    assert "the command starts with `sh`" in str(entry["not_kept"])


def test_a_launcher_that_starts_pythons_is_kept(tmp_path: Path) -> None:
    """`torchrun` copies its environment for the script, which decides nothing."""
    assert shutil.which("torchrun", path=str(Path(sys.executable).parent))
    command = '["torchrun", "--nproc-per-node", "1", "train.py", "--batch-size", "{micro_batch}"]'
    project = made(tmp_path, command=command, fresh=True)
    _, entry = project.check()
    assert entry["not_kept"] is None
    assert "variable *" not in seen(project)
    assert f"content {tmp_path}/settings.json" in seen(project)
