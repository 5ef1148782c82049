"""Which file counts, from a folder upwards, and what a file that cannot be used is answered with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oomdoctor.config.files import find_configuration, read_configuration
from oomdoctor.config.schema import Configuration, LintTable
from oomdoctor.errors import UsageError

SECTION = '[tool.oomdoctor.lint]\nselect = ["OOM1"]\n'
OWN = '[lint]\nselect = ["OOM2"]\n'


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in which a folder two levels down is the working directory."""
    (tmp_path / "repository/.git").mkdir(parents=True)
    (tmp_path / "repository/a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repository/a/b")
    return tmp_path / "repository"


def selected(directory: Path) -> tuple[str, ...] | None:
    """What the configuration that counts in `directory` selects."""
    found = find_configuration(directory)
    return None if found is None else found.values.lint.select


def test_the_nearest_file_counts(repository: Path) -> None:
    """A file further down hides the one above it, whichever of the two names they have."""
    assert find_configuration(Path()) is None
    (repository / "pyproject.toml").write_text(SECTION)
    assert selected(Path()) == ("OOM1",)
    (repository / "a/oomdoctor.toml").write_text(OWN)
    assert selected(Path()) == ("OOM2",)
    (repository / "a/b/pyproject.toml").write_text(SECTION)
    found = find_configuration(Path())
    assert found is not None
    assert (found.name, found.folder) == ("pyproject.toml", repository / "a/b")


def test_a_file_above_is_named_from_here_and_its_globs_are_its_own(repository: Path) -> None:
    """The name leads from the working directory to the file, and the folder is the file's."""
    (repository / "pyproject.toml").write_text(SECTION)
    found = find_configuration(Path())
    assert found is not None
    assert (found.name, found.folder) == ("../../pyproject.toml", repository)


def test_a_pyproject_of_others_is_passed_over(repository: Path) -> None:
    """A `pyproject.toml` without our section does not end the search."""
    (repository / "a/b/pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    (repository / "a/pyproject.toml").write_text("tool = 3\n")
    (repository / "pyproject.toml").write_text(SECTION)
    assert selected(Path()) == ("OOM1",)


@pytest.mark.parametrize("is_worktree", [False, True])
def test_the_search_ends_at_the_repository(repository: Path, *, is_worktree: bool) -> None:
    """What lies above the repository, or above a worktree with its `.git` file, is none of its business."""
    (repository.parent / "oomdoctor.toml").write_text(OWN)
    if is_worktree:
        (repository / ".git").rmdir()
        (repository / ".git").write_text("gitdir: elsewhere\n")
    assert find_configuration(Path()) is None
    (repository / "pyproject.toml").write_text(SECTION)
    assert selected(Path()) == ("OOM1",)


def test_without_a_repository_the_search_goes_on(repository: Path) -> None:
    """Where there is no repository every folder above is looked into."""
    (repository / ".git").rmdir()
    (repository.parent / "oomdoctor.toml").write_text(OWN)
    assert selected(Path()) == ("OOM2",)


def test_our_own_file_comes_before_pyproject(repository: Path) -> None:
    """Of two in one folder `oomdoctor.toml` counts, and a note says that the other does not."""
    (repository / "oomdoctor.toml").write_text(OWN)
    (repository / "pyproject.toml").write_text("[tool.ruff]\n")
    found = find_configuration(Path())
    assert found is not None
    assert (found.values.lint.select, found.notes) == (("OOM2",), ())
    (repository / "pyproject.toml").write_text(SECTION)
    found = find_configuration(Path())
    assert found is not None
    assert found.values.lint.select == ("OOM2",)
    assert found.notes == ("`oomdoctor.toml` comes before the `[tool.oomdoctor]` of `../../pyproject.toml` beside it",)
    (repository / "pyproject.toml").write_text("[tool.")
    assert selected(Path()) == ("OOM2",)


def test_folders_and_pipes_of_that_name_are_passed_over(repository: Path) -> None:
    """A folder `oomdoctor.toml` and a pipe `pyproject.toml` are no configuration, and nobody waits for the pipe."""
    (repository / "a/oomdoctor.toml").mkdir()
    os.mkfifo(repository / "a/pyproject.toml")
    (repository / "pyproject.toml").write_text(SECTION)
    assert selected(Path()) == ("OOM1",)


def test_a_named_file_counts_whatever_it_is_called(repository: Path) -> None:
    """`--config` takes any name; globs in it are relative to the working directory."""
    (repository / "strict.toml").write_text("\ufeff" + OWN.replace("\n", "\r\n"))
    found = read_configuration(Path("../../strict.toml"))
    assert found.values == Configuration(lint=LintTable(select=("OOM2",)))
    assert (found.name, found.folder) == ("../../strict.toml", Path.cwd())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.toml", None, "the configuration `none.toml` does not exist"),
        ("pyproject.toml", "[project]\n", "`pyproject.toml` has no `[tool.oomdoctor]`"),
        ("pyproject.toml", "[tool]\noomdoctor = 3\n", "`tool.oomdoctor` in `pyproject.toml` is `3`, not a table"),
        ("x.toml", "[lint]\nselect = [\n", "`x.toml` is not TOML, line 3, column 1: invalid value"),
        ("x.toml", "[lint]\nselect 3\n", "`x.toml` is not TOML, line 2, column 8: expected '=' after a key"),
        ("x.toml", '\n"x', "`x.toml` is not TOML, line 2, column 3: unterminated string"),
        ("x.toml", b"\n\xff", "`x.toml` is not TOML: byte 1 is not UTF-8"),
        ("x.toml", "x = " + "[" * 9999, "`x.toml` is nested too deeply"),
        ("x.toml", "x = " + "1" * 9999, "`x.toml` holds a value that cannot be read: Exceeds the limit"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    repository: Path, name: str, content: str | bytes | None, message: str
) -> None:
    """The message has the file, what is wrong, and the line and column where there is one."""
    if content is not None:
        (repository / "a/b" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as caught:
        read_configuration(Path(name))
    assert caught.value.message.startswith(message)


def test_a_folder_is_no_configuration() -> None:
    """`--config` with a folder is refused."""
    with pytest.raises(UsageError, match=r"the configuration `\.\.` is not a file"):
        read_configuration(Path(".."))


def test_a_file_that_may_not_be_read_is_named(repository: Path) -> None:
    """The system's reason is passed on."""
    (repository / "x.toml").symlink_to("/proc/self/mem")
    with pytest.raises(UsageError, match=r"`\.\./\.\./x.toml` cannot be read: "):
        read_configuration(Path("../../x.toml"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(content=st.binary(max_size=40) | st.text(alphabet='[]{}=",.\\\n#"tolinseco 0', max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(repository: Path, content: bytes) -> None:
    """Whatever a file holds, it is a configuration or a usage error that names it."""
    (repository / "x.toml").write_bytes(content)
    try:
        read_configuration(repository / "x.toml")
    except UsageError as error:
        named = "x.toml" in error.message
    else:
        named = True
    assert named
