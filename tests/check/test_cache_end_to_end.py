"""`oomdoctor check` asks once, and says the same again from its cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import run_command
from targets_for_tests import write_target

pytestmark = pytest.mark.null_gpu

CONFIGURATION = """
capacity = "1GiB"
target-batch = 4

[[check]]
name = "mlp"
target = "model.py"
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that was checked once; `first.json` has what was found."""
    folder = tmp_path_factory.mktemp("checked")
    write_target(folder)
    (folder / "oomdoctor.toml").write_text(CONFIGURATION)
    (folder / "src").mkdir()
    finished = run_command(["check", "-o", "first.json"], cwd=folder)
    assert finished.returncode == 0, finished.stderr
    assert "cached" not in finished.stderr
    return folder


def test_a_second_check_says_the_same_from_the_cache(project: Path) -> None:
    """The document is the same to the byte, its times included."""
    finished = run_command(["check", "-o", "second.json"], cwd=project)
    assert "cached" in finished.stderr
    assert (project / "second.json").read_bytes() == (project / "first.json").read_bytes()


def test_a_check_from_a_subfolder_finds_the_answer(project: Path) -> None:
    """The cache lies beside the configuration, wherever the command runs."""
    finished = run_command(["check", "--json"], cwd=project / "src")
    assert "cached" in finished.stderr
    result, first = json.loads(finished.stdout)["result"], json.loads((project / "first.json").read_text())["result"]
    assert result["entries"] == first["entries"]
    assert not (project / "src" / ".oomdoctor-cache").exists()


def test_a_check_that_is_told_not_to_use_the_cache_does_not(project: Path) -> None:
    """It asks anew and finds the same, apart from times; a cache elsewhere has nothing in it."""
    before = sorted(project.glob(".oomdoctor-cache/*"))
    finished = run_command(["check", "--json", "--no-cache"], cwd=project, OOMDOCTOR_CACHE_DIR=str(project / "other"))
    assert "cached" not in finished.stderr
    anew, first = json.loads(finished.stdout), json.loads((project / "first.json").read_text())
    for document in (anew, first):
        for trial in document["result"]["entries"][0]["probe"]["trials"]:
            del trial["seconds"]
    assert anew == first
    assert sorted(project.glob(".oomdoctor-cache/*")) == before
    assert not (project / "other").exists()
