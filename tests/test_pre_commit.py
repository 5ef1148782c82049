"""The hooks, run by pre-commit itself in a repository that has just been made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT
from targets_for_tests import LEAKING_LOOP, MLP, write_target

_WHAT_A_CLONE_NEEDS = (".pre-commit-hooks.yaml", "pyproject.toml", "README.md", "LICENSE", "oomdoctor")
_BIN = str(Path(sys.executable).parent)

_ENTRY = """\
gpu = "t4"
capacity = "192MiB"

[[check]]
name = "digits"
target = "model.py"
target-batch = 256
min-micro-batch = 64
"""


def _git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def _commit(folder: Path) -> None:
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", "as it stands")


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the hooks as they stand in this one."""
    folder = tmp_path_factory.mktemp("hooks")
    for name in _WHAT_A_CLONE_NEEDS:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)
    _git(folder, "init", "--quiet")
    _commit(folder)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository of a user's, without a commit."""
    folder = tmp_path / "project"
    folder.mkdir()
    _git(folder, "init", "--quiet")
    return folder


def _pre_commit(project: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pre_commit", *words, "--color=never"],
        cwd=project,
        env={
            **os.environ,
            "PATH": os.pathsep.join([_BIN, os.environ["PATH"]]),
            "PRE_COMMIT_HOME": str(project.parent / "pre-commit"),
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_lint_hook_stops_a_commit_with_a_finding(project: Path, hooks: Path) -> None:
    """`oomdoctor-lint` fails on a commit that keeps graphs, names the line, and passes once it is put right."""
    (project / "train.py").write_text(LEAKING_LOOP)
    (project / "notes.txt").write_text(LEAKING_LOOP)
    _git(project, "add", "--all")
    found = _pre_commit(project, "try-repo", str(hooks), "oomdoctor-lint")
    (project / "train.py").write_text(LEAKING_LOOP.replace("+= loss", "+= loss.item()"))
    _git(project, "add", "--all")
    fixed = _pre_commit(project, "try-repo", str(hooks), "oomdoctor-lint")

    assert (found.returncode, fixed.returncode) == (1, 0), found.stdout + found.stderr + fixed.stdout
    assert "train.py:10" in found.stdout
    assert "notes.txt" not in found.stdout
    assert "Passed" in fixed.stdout


def test_the_lint_hook_reads_notebooks_and_passes_over_the_rest(project: Path, hooks: Path) -> None:
    """The lint hook is given Python files and notebooks, and is skipped for a commit that has neither."""
    (project / "README.md").write_text("# a project\n")
    _git(project, "add", "--all")
    skipped = _pre_commit(project, "try-repo", str(hooks), "oomdoctor-lint")
    cell = f'{{"cell_type": "code", "metadata": {{}}, "outputs": [], "source": {_lines(LEAKING_LOOP)}}}'
    (project / "train.ipynb").write_text(f'{{"cells": [{cell}], "metadata": {{}}, "nbformat": 4, "nbformat_minor": 5}}')
    _git(project, "add", "--all")
    found = _pre_commit(project, "try-repo", str(hooks), "oomdoctor-lint")

    assert (skipped.returncode, "no files to check" in skipped.stdout) == (0, True)
    assert (found.returncode, "train.ipynb" in found.stdout) == (1, True), found.stdout


def _lines(text: str) -> str:
    import json

    return json.dumps(text.splitlines(keepends=True))


@pytest.mark.null_gpu
def test_the_check_hook_stops_a_push_that_does_not_fit(project: Path, hooks: Path) -> None:
    """`oomdoctor-check` runs before a push, passes what fits, and fails once a limit is broken."""
    write_target(project)
    (project / "oomdoctor.toml").write_text(_ENTRY)
    _git(project, "add", "--all")
    words = ["try-repo", str(hooks), "oomdoctor-check", "--all-files", "--hook-stage", "pre-push"]
    passed = _pre_commit(project, *words)
    write_target(project, MLP.replace("4 * width", "16 * width"))
    _git(project, "add", "--all")
    failed = _pre_commit(project, *words)

    assert (passed.returncode, failed.returncode) == (0, 1), passed.stdout + failed.stdout
    assert "Passed" in passed.stdout
    assert "failed   digits" in failed.stdout


def test_the_check_hook_is_no_matter_of_each_commit(project: Path, hooks: Path) -> None:
    """A commit does not run `oomdoctor-check`: it is for pushes."""
    _configure(project, hooks, "oomdoctor-check")
    (project / "model.py").write_text("no model\n")
    _git(project, "add", "--all")
    committing = _pre_commit(project, "run", "--all-files")
    pushing = _pre_commit(project, "run", "--all-files", "--hook-stage", "pre-push")

    assert (committing.returncode, "oomdoctor check" in committing.stdout) == (0, False)
    assert (pushing.returncode, "oomdoctor check" in pushing.stdout) == (1, True)


def _configure(project: Path, hooks: Path, *lines: str) -> None:
    """Have the project use a hook, as a user's configuration does."""
    rev = subprocess.run(["git", "rev-parse", "HEAD"], cwd=hooks, capture_output=True, text=True, check=True).stdout
    hook = "\n        ".join(lines)
    (project / ".pre-commit-config.yaml").write_text(
        f"repos:\n  - repo: {hooks}\n    rev: {rev.strip()}\n    hooks:\n      - id: {hook}\n"
    )


@pytest.mark.slow
def test_the_lint_hook_runs_in_an_environment_of_pre_commits_own(project: Path, hooks: Path) -> None:
    """With `language: python` pre-commit builds and installs oomdoctor by itself, and lint runs there without torch.

    What oomdoctor depends on is found here instead of being downloaded once more, apart from torch, which is not found.
    """
    _configure(project, hooks, "oomdoctor-lint", "language: python")
    (project / "train.py").write_text(LEAKING_LOOP)
    _git(project, "add", "--all")
    ended = _pre_commit(
        project,
        "run",
        PATH=os.environ["PATH"],  # no oomdoctor on it
        PYTHONPATH=str(_without_torch(project.parent)),
        PIP_NO_DEPS="1",
        PIP_NO_BUILD_ISOLATION="0",  # which is how pip is told so
    )

    assert (ended.returncode, "train.py:10" in ended.stdout) == (1, True), ended.stdout + ended.stderr
    installed = list((project.parent / "pre-commit").rglob("bin/oomdoctor"))
    assert len(installed) == 1


def _without_torch(folder: Path) -> Path:
    """A folder that leads to every installed module except for torch and oomdoctor."""
    links = folder / "modules"
    links.mkdir()
    for module in Path(pytest.__file__).parents[1].iterdir():
        if not module.name.lower().startswith(("torch", "oomdoctor", "_oomdoctor", "__pycache__", "pip", "nvidia-c")):
            (links / module.name).symlink_to(module)
    return links
