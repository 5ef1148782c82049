"""The cache's folder: what is kept, what is passed over, and how it stays small."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from documents import gpt2
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.agent.dependencies import fingerprint
from oomdoctor.check import cache as folder_module
from oomdoctor.check.cache import Cache, cache_folder
from oomdoctor.request import ProbeRequest
from oomdoctor.results import ProbeDocument
from oomdoctor.results.saved import to_json
from oomdoctor.trial.answer import ProbeRun
from oomdoctor.trial.dependencies import Dependencies

RESULT = gpt2().result
RESULT = replace(RESULT, device=replace(RESULT.device, kind="null"))
VERSIONS = {"python": "3.11.7", "torch": "2.15.0+cu132"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a target."""
    (tmp_path / "model.py").write_text("def build_model(): ...\n")
    return tmp_path


@pytest.fixture
def folder(project: Path) -> Path:
    """The cache's folder, before anything is in it."""
    return project / ".oomdoctor-cache"


@pytest.fixture
def cache(folder: Path) -> Cache:
    """A cache without an answer."""
    return Cache(folder, environment={"MODEL_WIDTH": "8"})


def question(project: Path, **changes: object) -> ProbeRequest:
    """What is asked of the target."""
    return replace(ProbeRequest("model.py", project, target_batch=256, gpu="rtx-4090"), **changes)  # type: ignore[arg-type]


def answer(project: Path, **used: object) -> ProbeRun:
    """What a probe would have found, had it used the target and nothing else."""
    model = str(project / "model.py")
    seen = {f"content {model}": fingerprint("content", model)}
    return ProbeRun(RESULT, VERSIONS, replace(Dependencies(seen, ("MODEL_WIDTH",)), **used))  # type: ignore[arg-type]


def entries(folder: Path) -> list[Path]:
    """The files with answers."""
    return sorted(folder.glob("*.json"))


def test_what_is_kept_is_found(cache: Cache, project: Path) -> None:
    """The answer comes back equal, and renders to the same bytes."""
    kept = answer(project)
    cache.keep(question(project), kept)
    found = cache.find(question(project))
    assert found == kept
    documents = (ProbeDocument("probe", "fits", 0, each.versions, each.result) for each in (kept, found))
    assert len({to_json(document) for document in documents}) == 1


def test_nothing_is_found_before_anything_is_kept(cache: Cache, project: Path, folder: Path) -> None:
    """Nor is a folder made for that."""
    assert cache.find(question(project)) is None
    assert not folder.exists()


@pytest.mark.parametrize(
    "used",
    [{"unseen": ("the target started `git`",)}, {"working_directory": "/elsewhere"}],
    ids=lambda used: next(iter(used)),
)
def test_an_answer_that_may_depend_on_more_is_not_used(cache: Cache, project: Path, used: dict[str, object]) -> None:
    """What nobody saw may change, and relative paths are meant from where the target ran."""
    cache.keep(question(project), answer(project, **used))
    assert cache.find(question(project)) is None


def test_an_answer_of_a_real_gpu_is_not_kept(cache: Cache, project: Path, folder: Path) -> None:
    """It depends on who else used it."""
    kept = answer(project)
    device = replace(RESULT.device, kind="cuda")
    cache.keep(question(project), replace(kept, result=replace(RESULT, device=device)))
    assert not folder.exists()


def test_an_answer_is_not_kept_where_the_question_changed_meanwhile(cache: Cache, project: Path, folder: Path) -> None:
    """A package that was installed while the probe ran may or may not have been used."""
    environment = {"PYTORCH_ALLOC_CONF": ""}
    cache = Cache(folder, environment=environment)
    cache.find(question(project))
    environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    cache.keep(question(project), answer(project))
    assert not folder.exists()


def test_an_answer_is_not_kept_where_a_file_changed_meanwhile(cache: Cache, project: Path, folder: Path) -> None:
    """Some trials ran with the one, and some with the other."""
    kept = answer(project)
    (project / "model.py").write_text("def build_model(): return None\n")
    cache.keep(question(project), kept)
    assert not folder.exists()


def test_two_states_of_a_project_are_kept_side_by_side(cache: Cache, project: Path, folder: Path) -> None:
    """Somebody who goes back and forth between branches does not wait each time."""
    first, model = answer(project), project / "model.py"
    cache.keep(question(project), first)
    model.write_text("def build_model(): return None\n")
    assert cache.find(question(project)) is None
    second = answer(project)
    cache.keep(question(project), second)
    assert cache.find(question(project)) == second
    model.write_text("def build_model(): ...\n")
    assert cache.find(question(project)) == first
    assert len(entries(folder)) == 2


def test_only_the_latest_states_of_a_question_are_kept(cache: Cache, project: Path, folder: Path) -> None:
    """The one that was not used for longest goes first."""
    for number in range(8):
        (project / "model.py").write_text(f"WIDTH = {number}\n")
        cache.keep(question(project), answer(project))
        for position, path in enumerate(sorted(entries(folder), key=lambda path: path.stat().st_mtime_ns)):
            os.utime(path, (position, position))
    assert len(entries(folder)) == 4
    assert cache.find(question(project)) is not None


def test_the_folder_stays_small(cache: Cache, project: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that were not used for longest make room; the newest one stays."""
    monkeypatch.setattr(folder_module, "MOST_BYTES", 100_000)
    for batch in range(1, 40):
        cache.keep(question(project, target_batch=batch), answer(project))
    assert 1 < len(entries(folder)) < 39
    assert sum(path.stat().st_size for path in entries(folder)) <= 100_000
    assert cache.find(question(project, target_batch=39)) is not None


def test_an_answer_that_is_used_stays_longest(cache: Cache, project: Path, folder: Path) -> None:
    """Finding it makes it the newest."""
    cache.keep(question(project), answer(project))
    (path,) = entries(folder)
    os.utime(path, (1, 1))
    cache.find(question(project))
    assert path.stat().st_mtime > 1


def test_git_and_backups_pass_the_folder_over(cache: Cache, project: Path, folder: Path) -> None:
    """Nothing in it is committed, and it is marked as a cache."""
    cache.keep(question(project), answer(project))
    assert (folder / ".gitignore").read_text() == "*\n"
    assert (folder / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")


def test_values_of_variables_are_not_written(folder: Path, project: Path) -> None:
    """A token that the target reads does not end up in a file."""
    cache = Cache(folder, environment={"MODEL_WIDTH": "hunter2-secret"})
    cache.keep(question(project), answer(project))
    (path,) = entries(folder)
    assert "hunter2" not in path.read_text()
    assert cache.find(question(project)) is not None


@pytest.mark.parametrize("place", ["/proc/self", "/proc/self/cache"])
def test_a_folder_that_cannot_be_written_is_no_error(project: Path, place: str) -> None:
    """There is no cache then."""
    cache = Cache(Path(place), environment={})
    cache.keep(question(project), answer(project))
    assert cache.find(question(project)) is None


def test_a_folder_that_cannot_be_made_is_no_error(cache: Cache, project: Path, folder: Path) -> None:
    """A file of that name is left alone."""
    folder.write_text("mine")
    cache.keep(question(project), answer(project))
    assert cache.find(question(project)) is None
    assert folder.read_text() == "mine"


def _in(*path: str) -> Callable[[str, object], str]:
    def changed(text: str, value: object) -> str:
        data = json.loads(text)
        place = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return json.dumps(data)

    return changed


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: "",
        lambda text: text[: len(text) // 2],
        lambda _: "null",
        lambda _: "[" * 100_000,
        lambda _: '{"dependencies": 1}',
        lambda text: "\ufeff" + text,
        lambda text: _in("dependencies", "seen")(text, {"nonsense": "x"}),
        lambda text: _in("dependencies", "seen")(text, {"content": "x"}),
        lambda text: _in("dependencies", "seen")(text, {"content \0": "x"}),
        lambda text: _in("dependencies", "seen")(text, {"content /dev/zero": "x"}),
        lambda text: _in("dependencies", "variables")(text, "*"),
        lambda text: _in("variables")(text, 7),
        lambda text: _in("result", "micro_batch", "maximum")(text, "19"),
        lambda text: _in("result", "micro_batch", "maximum")(text, -1),
        lambda text: _in("result", "capacity_bytes")(text, float("nan")),
        lambda text: _in("versions")(text, {"torch": 2}),
    ],
)
def test_a_file_that_is_no_answer_is_passed_over(
    cache: Cache, project: Path, folder: Path, spoil: Callable[[str], str]
) -> None:
    """What was cut short, or made up by somebody, is as good as nothing; the next answer replaces it."""
    cache.keep(question(project), answer(project))
    (path,) = entries(folder)
    path.write_text(spoil(path.read_text()))
    assert cache.find(question(project)) is None
    cache.keep(question(project), answer(project))
    assert cache.find(question(project)) is not None


def test_bytes_that_are_no_text_and_directories_are_passed_over(cache: Cache, project: Path, folder: Path) -> None:
    """Whatever has the name of an answer."""
    cache.keep(question(project), answer(project))
    (path,) = entries(folder)
    (folder / f"{path.name[:41]}0.json").write_bytes(b"\xff\xfe\0")
    (folder / f"{path.name[:41]}1.json").mkdir()
    assert cache.find(question(project)) is not None
    path.unlink()
    assert cache.find(question(project)) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_passed_over(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """No content of a file is an error."""
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)
    from oomdoctor.check.cache import _read

    assert _read(path) is None


def test_parallel_checks_share_a_folder(project: Path, folder: Path) -> None:
    """Many that keep and find at once neither fail nor find half an answer."""
    kept = answer(project)

    def work(number: int) -> bool:
        cache = Cache(folder, environment={"MODEL_WIDTH": "8"})
        for batch in range(1, 6):
            cache.keep(question(project, target_batch=batch), kept)
        return cache.find(question(project, target_batch=number % 5 + 1)) == kept

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))
    assert len(entries(folder)) == 5
    assert not list(folder.glob("*.tmp"))


def test_a_target_that_is_not_there_has_no_answer(cache: Cache, project: Path) -> None:
    """That is for the probe to say."""
    assert cache.find(question(project, target="missing.py")) is None


def test_the_folder_lies_beside_the_configuration_or_where_it_is_told(tmp_path: Path) -> None:
    """`OOMDOCTOR_CACHE_DIR` goes first; an empty one says nothing."""
    beside = tmp_path / ".oomdoctor-cache"
    assert cache_folder(tmp_path / "pyproject.toml", {}) == beside
    assert cache_folder(tmp_path / "pyproject.toml", {"OOMDOCTOR_CACHE_DIR": ""}) == beside
    assert cache_folder(tmp_path / "pyproject.toml", {"OOMDOCTOR_CACHE_DIR": "/caches/a"}) == Path("/caches/a")
