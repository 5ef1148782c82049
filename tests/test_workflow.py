"""The documented workflow: copied into an empty repository it passes, and fails on a change that costs memory."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from documentation import FILES, page
from github_runner import ACTION, Ended, Runner, steps_of
from running import ROOT, run_command

from oomdoctor import load_result
from oomdoctor.results import CheckDocument

WORKFLOW = ".github/workflows/memory.yml"
COMMANDS = re.findall(r"^\$ (oomdoctor check.*)$", page("commands/check.md"), re.MULTILINE)

# Actions of others, which bring the checkout and take the report away; they are not run here.
_FOREIGN = re.compile(r"actions/(checkout|setup-python|upload-artifact)@v\d+")
_OURS = re.compile(r"OWNER/oomdoctor@v\d+\.\d+\.\d+")


def _git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def _commit(folder: Path) -> None:
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--allow-empty", "--message", "as it stands")


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """No answer of an earlier run is taken for one of this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the example, the documented settings and workflow, and the baseline that its commands write."""
    folder = tmp_path_factory.mktemp("repository")
    _git(folder, "init", "--quiet")
    shutil.copy(ROOT / "oomdoctor" / "examples" / "gpt2.py", folder / "model.py")
    for name in ("pyproject.toml", WORKFLOW):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(FILES[name])
    assert COMMANDS[:2] == ["oomdoctor check --update", "oomdoctor check"]
    for command in COMMANDS[:2]:
        ended = run_command(shlex.split(command)[1:], cwd=folder)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    _commit(folder)
    return folder


@pytest.fixture
def checkout(repository: Path, tmp_path: Path) -> Path:
    """A fresh clone, as a runner's checkout is."""
    _git(tmp_path, "clone", "--quiet", str(repository), "checkout")
    return tmp_path / "checkout"


def _run_workflow(checkout: Path) -> Ended:
    """Run the steps of the documented job that are ours, in the checkout."""
    temporary = checkout.parent / "runner"
    temporary.mkdir(exist_ok=True)
    runner = Runner(checkout, temporary)
    ours = [step for step in steps_of((checkout / WORKFLOW).read_text(), "memory") if _is_ours(step)]
    assert [step["id"] for step in ours] == ["memory"]
    return runner.use(ACTION, ours[0]["with"])


def _is_ours(step: dict[str, Any]) -> bool:
    uses = step["uses"]
    assert _FOREIGN.fullmatch(uses) or _OURS.fullmatch(uses), f"{uses} is not pinned"
    return bool(_OURS.fullmatch(uses))


@pytest.mark.null_gpu
@pytest.mark.slow
def test_the_workflow_passes(checkout: Path) -> None:
    """In a repository as the documentation has it set up, the workflow passes, with outputs, a report and a summary."""
    ended = _run_workflow(checkout)

    assert (ended.code, ended.outputs["exit-code"]) == (0, "0"), ended.log
    document = load_result(ended.outputs["report"])
    assert isinstance(document, CheckDocument)
    (entry,) = document.result.entries
    assert entry.probe is not None
    assert ended.outputs["micro-batch"] == str(entry.probe.micro_batch.maximum)
    assert ended.outputs["accumulation-steps"] == str(document.plan.steps)
    assert "pretrain" in ended.summary
    assert "<svg" in (checkout / "memory.html").read_text(encoding="utf-8")
    assert not [command for command in ended.commands if command.startswith("::error")]


@pytest.mark.null_gpu
@pytest.mark.slow
def test_the_workflow_fails_on_a_regression(checkout: Path) -> None:
    """A change that fits still and costs memory fails the workflow, which says what grew; an update accepts it."""
    model = checkout / "model.py"
    model.write_text(model.read_text().replace("layers: int = 12", "layers: int = 14"))
    _commit(checkout)
    failed = _run_workflow(checkout)
    updated = run_command(shlex.split(COMMANDS[0])[1:], cwd=checkout)
    _commit(checkout)
    passed = _run_workflow(checkout)

    assert (failed.code, failed.outputs["exit-code"]) == (1, "1"), failed.log
    assert any(command.startswith("::error") and "pretrain" in command for command in failed.commands)
    assert "activations" in failed.summary
    assert "blocks.*" in failed.summary
    assert updated.returncode == 0, updated.stderr
    assert passed.code == 0, passed.log


def test_the_page_names_the_actions_own_inputs_and_outputs() -> None:
    """Each input and output of `action.yml` is in the page's tables, and no other."""
    import yaml

    described = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    for kind in ("inputs", "outputs"):
        table = page("ci.md").partition(f"| {kind.removesuffix('s')} | meaning |")[2].partition("\n\n")[0]
        names = re.findall(r"`([a-z-]+)`", "".join(line.split(" | ")[0] for line in table.splitlines()))
        assert sorted(names) == sorted(described[kind])


def test_the_page_names_the_hooks_that_there_are() -> None:
    """The documented configuration of pre-commit has the hooks of `.pre-commit-hooks.yaml`."""
    import yaml

    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    (repo,) = yaml.safe_load(FILES[".pre-commit-config.yaml"])["repos"]
    assert [hook["id"] for hook in repo["hooks"]] == [hook["id"] for hook in hooks]


def test_the_workflow_may_only_read() -> None:
    """The documented workflow asks for no permission that it does not need, and runs for pull requests."""
    import yaml

    workflow = yaml.safe_load(FILES[WORKFLOW])
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow[True] == ["pull_request"]  # YAML 1.1 takes `on` for true
    assert json.dumps(workflow["jobs"]).count("run") == len(re.findall("runs-on", FILES[WORKFLOW]))
