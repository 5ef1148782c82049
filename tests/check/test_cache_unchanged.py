"""Whether what an answer depended on is still as it was: files, variables, and what several workers saw."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.agent.dependencies import fingerprint
from oomdoctor.check import cache
from oomdoctor.check.cache import Fingerprints, digest_of
from oomdoctor.trial.dependencies import Dependencies


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a target."""
    (tmp_path / "model.py").write_text("def build_model(): ...\n")
    return tmp_path


def test_an_edit_between_two_questions_is_noticed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was read for one question, long after it was written, is read again for another."""
    looker, model = Fingerprints(), project / "model.py"
    seen = {f"content {model}": fingerprint("content", str(model))}
    monkeypatch.setattr(cache.time, "time", lambda: model.stat().st_mtime + 60)
    assert looker.sees(seen)
    times = model.stat()
    model.write_text("def build_model(): .. \n")
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not looker.sees(seen)


def test_a_file_that_has_just_been_changed_is_always_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two edits within one tick of the file system's clock look alike from outside."""
    looker, model = Fingerprints(), project / "model.py"
    seen = {f"content {model}": fingerprint("content", str(model))}
    monkeypatch.setattr(
        cache, "fingerprint", lambda way, path: "the same" if way == "signature" else fingerprint(way, path)
    )
    assert looker.sees(seen)
    model.write_text("def build_model(): .. \n")
    assert not looker.sees(seen)


def test_a_file_that_has_not_changed_is_read_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that share a project do not read it again each."""
    looker, model = Fingerprints(), project / "model.py"
    seen = {f"content {model}": fingerprint("content", str(model))}
    monkeypatch.setattr(cache.time, "time", lambda: model.stat().st_mtime + 60)
    assert looker.sees(seen)
    monkeypatch.setattr(
        cache, "fingerprint", lambda way, path: "read again" if way == "content" else fingerprint(way, path)
    )
    assert looker.sees(seen)


@given(
    names=st.lists(st.sampled_from(["A", "B", "C", "PWD"])),
    environment=st.dictionaries(st.sampled_from(["A", "B", "C", "PWD"]), st.sampled_from(["", "1", "2"])),
    other=st.dictionaries(st.sampled_from(["A", "B", "C", "PWD"]), st.sampled_from(["", "1", "2"])),
)
def test_variables_are_the_same_where_all_that_were_read_are(
    names: list[str], environment: dict[str, str], other: dict[str, str]
) -> None:
    """A variable that is not set is another thing than an empty one."""
    is_same = all(environment.get(name) == other.get(name) for name in names)
    assert (digest_of(names, environment) == digest_of(names, other)) is is_same


def test_a_copy_of_all_variables_depends_on_all_but_the_shells() -> None:
    """Which directory a shell is in does not make another environment of it."""
    names = ("*", "A", "PWD")
    assert digest_of(names, {"A": "1", "PWD": "/a"}) == digest_of(names, {"A": "1", "PWD": "/b", "SHLVL": "2"})
    assert digest_of(names, {"A": "1"}) != digest_of(names, {"A": "1", "B": "2"})


def test_what_two_workers_saw_differently_was_changed_between_them() -> None:
    """An answer to which both contributed is an answer to neither state."""
    one, two = Dependencies({"content /a": "1", "content /b": "1"}), Dependencies({"content /a": "2"}, ("A",))
    assert (one | two).unseen
    assert not (one | Dependencies({"content /a": "1"}, ("A",))).unseen
    assert (one | two).variables == ("A",)
