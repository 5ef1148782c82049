"""Finding the files: what is passed over, in what order, and what names that are no files come to."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oomdoctor.errors import UsageError
from oomdoctor.lint.discovery import SKIPPED_FOLDERS, discover
from oomdoctor.lint.settings import LintSettings

NEEDS_GIT = pytest.mark.skipif(shutil.which("git") is None, reason="compares with git")


def make(root: Path, *names: str) -> None:
    """Empty files, with the folders that they lie in."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def found(*arguments: str, **options: object) -> list[str]:
    """What the files are called."""
    return [file.shown for file in discover(arguments or (".",), LintSettings(**options)).files]  # type: ignore[arg-type]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_gives_scripts_and_notebooks_by_name(here: Path) -> None:
    """Files and folders are gone through together, by name; other files are left."""
    make(here, "b.py", "a/z.py", "a/y.ipynb", "a.py", "c.txt", "README.md", "x.pyi", "a-b/c.py")
    assert found() == ["a/y.ipynb", "a/z.py", "a-b/c.py", "a.py", "b.py"]


def test_a_file_named_outright_is_linted_whatever_its_ending(here: Path) -> None:
    """Naming a file is enough, even one that is ignored."""
    make(here, "train", ".git/HEAD", "build/x.py")
    (here / ".gitignore").write_text("train\n")
    assert found("train", "build/x.py") == ["train", "build/x.py"]


@pytest.mark.parametrize("folder", sorted(SKIPPED_FOLDERS))
def test_folders_that_nobody_writes_by_hand_are_passed_over(here: Path, folder: str) -> None:
    """They are passed over at any depth, and gone through when they are named."""
    make(here, f"{folder}/a.py", f"src/{folder}/a.py", "src/b.py")
    assert found() == ["src/b.py"]
    assert found(folder) == [f"{folder}/a.py"]


def test_a_virtual_environment_of_any_name_is_passed_over(here: Path) -> None:
    """What tells one is its `pyvenv.cfg`."""
    make(here, "my-env/pyvenv.cfg", "my-env/lib/a.py", "b.py")
    assert found() == ["b.py"]


def test_ignore_files_hold_without_a_repository_and_without_git(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No git has to be there to read what it would."""
    monkeypatch.setenv("PATH", "")
    make(here, "a.py", "data/b.py", "data/keep.py", "deep/data/c.py", "deep/d.py")
    (here / ".gitignore").write_text("data/*\n!data/keep.py\n")
    (here / "deep" / ".gitignore").write_text("d.py\n")
    assert found() == ["a.py", "data/keep.py", "deep/data/c.py"]


def test_ignore_files_above_the_folder_hold_up_to_the_root_of_the_repository(here: Path) -> None:
    """One above the repository says nothing about it."""
    make(here, "repo/.git/HEAD", "repo/a/b/keep.py", "repo/a/b/not.py", "repo/a/b/nor.py", "repo/a/b/all.py")
    (here / ".gitignore").write_text("*.py\n")
    (here / "repo" / ".gitignore").write_text("not.py\n")
    (here / "repo" / "a" / ".gitignore").write_text("/b/nor.py\n")
    assert found("repo/a/b") == ["repo/a/b/all.py", "repo/a/b/keep.py"]


def test_a_repository_may_ignore_files_for_one_person(here: Path) -> None:
    """`.git/info/exclude` holds, and gives way to a `.gitignore`."""
    make(here, ".git/info/exclude", "a.py", "b.py", "c.py")
    (here / ".git/info/exclude").write_text("a.py\nb.py\n")
    (here / ".gitignore").write_text("!b.py\n")
    assert found() == ["b.py", "c.py"]


def test_an_ignored_folder_that_is_named_is_gone_through(here: Path) -> None:
    """Whoever names it wants what is in it."""
    make(here, ".git/HEAD", "out/a.py", "out/deep/b.py", "c.py")
    (here / ".gitignore").write_text("out/\n")
    assert found() == ["c.py"]
    assert found("out") == ["out/a.py", "out/deep/b.py"]
    (here / ".gitignore").write_text("out/**\n")
    assert found() == ["c.py"]
    assert found("out/deep") == ["out/deep/b.py"]


@NEEDS_GIT
@given(
    patterns=st.lists(
        st.tuples(
            st.sampled_from(["", "a", "b", "a/b"]),
            st.sampled_from(
                [
                    "a",
                    "b/",
                    "*.py",
                    "!x.py",
                    "/a",
                    "a/b",
                    "**/b",
                    "a/**",
                    "!a/",
                    "x.*",
                    "!*",
                    "*",
                    "/*/b",
                    "[ab].py",
                    "# x",
                ]
            ),
        ),
        max_size=6,
    )
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_ignored_is_what_git_ignores(
    tmp_path_factory: pytest.TempPathFactory, patterns: list[tuple[str, str]]
) -> None:
    """Whatever the patterns in whatever folders, the files are those that git would list."""
    root = tmp_path_factory.mktemp("repo")
    make(root, *(f"{folder}{name}.py" for folder in ("", "a/", "b/", "a/b/", "a/a/") for name in ("x", "a", "b")))
    for folder, pattern in patterns:
        with (root / folder / ".gitignore").open("a") as stream:
            stream.write(pattern + "\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard", "-z", "*.py"],
        cwd=root, check=True, capture_output=True, text=True,
    )  # fmt: skip
    ours = discover([str(root)], LintSettings()).files
    assert {str(file.path) for file in ours} == {str(root / name) for name in listed.stdout.split("\0") if name}


def test_excluded_globs_are_passed_over_unless_named(here: Path) -> None:
    """They are relative to the root of the settings, and hold at any depth where they have no slash."""
    make(here, "sub/old/a.py", "old/b.py", "sub/c_generated.py", "d.py")
    options = {"exclude": ("sub/old", "*_generated.py"), "root": here}
    assert found(**options) == ["d.py", "old/b.py"]
    assert found("sub/c_generated.py", **options) == ["sub/c_generated.py"]


def test_a_file_is_given_once_however_often_it_is_named(here: Path) -> None:
    """The first mention says where."""
    make(here, "a/b.py", "a/c.py")
    assert found("a/c.py", ".", "a", "./a/../a/b.py") == ["a/c.py", "a/b.py"]


def test_what_lies_elsewhere_is_called_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path below the working directory is relative to it; another is absolute."""
    make(tmp_path, "here/a.py", "there/b.py")
    monkeypatch.chdir(tmp_path / "here")
    assert found("../there", str(tmp_path / "here" / "a.py")) == [str(tmp_path / "there" / "b.py"), "a.py"]


def test_links_in_a_circle_come_to_an_end(here: Path) -> None:
    """Links to folders are not followed, those to files are; broken ones are passed over."""
    make(here, "a/b.py", "outside.txt")
    (here / "a" / "loop").symlink_to(here)
    (here / "a" / "self.py").symlink_to("self.py")
    (here / "a" / "gone.py").symlink_to("nothing")
    (here / "a" / "other.py").symlink_to(here / "outside.txt")
    assert found() == ["a/b.py", "a/other.py"]


def test_a_linked_folder_that_is_named_is_followed(here: Path) -> None:
    """It keeps the name that it was given by."""
    make(here, "real/a.py")
    (here / "link").symlink_to("real")
    assert found("link") == ["link/a.py"]


def test_pipes_and_devices_in_a_folder_are_passed_over(here: Path) -> None:
    """Nothing waits for somebody to write to a pipe."""
    make(here, "a.py")
    os.mkfifo(here / "pipe.py")
    (here / "null.py").symlink_to("/dev/null")
    result: list[list[str]] = []
    thread = threading.Thread(target=lambda: result.append(found()), daemon=True)
    thread.start()
    thread.join(10)
    assert result == [["a.py"]]


def test_names_that_are_not_text_are_shown_as_bytes(here: Path) -> None:
    """A file's name need not be UTF-8; it is opened by its own name all the same."""
    name = os.fsdecode(b"caf\xe9.py")
    (here / name).write_text("import torch\n")
    (file,) = discover(["."], LintSettings()).files
    assert file.shown == r"caf\xe9.py"
    assert file.path is not None
    assert file.path.read_text() == "import torch\n"


def test_a_path_that_does_not_exist_is_answered_with_the_nearest(here: Path) -> None:
    """The question names the whole path."""
    make(here, "src/train.py", "src/model.py")
    with pytest.raises(UsageError, match=r"no such file or folder: `src/trian\.py`") as caught:
        found("src/trian.py")
    assert caught.value.hint == "did you mean `src/train.py`?"


@pytest.mark.parametrize("argument", ["nowhere/at/all.py", "", "a.py/b.py", "x\0y", "a" * 5000])
def test_a_path_that_cannot_be_is_a_usage_error(here: Path, argument: str) -> None:
    """It is never an error of Python's own, and no other file is suggested where none is near."""
    make(here, "a.py")
    with pytest.raises(UsageError) as caught:
        found(argument)
    assert "did you mean" not in (caught.value.hint or "")


def test_standard_input_may_be_named_once(here: Path) -> None:
    """It is called by the name that it is given."""
    make(here, "a.py")
    assert found("-", "a.py", stdin_filename="nb.ipynb") == ["nb.ipynb", "a.py"]
    assert found("-") == ["-"]
    with pytest.raises(UsageError, match="standard input is named twice"):
        found("-", "-")


def test_a_folder_that_may_not_be_listed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are gone through; one that is named itself is refused."""
    with TemporaryDirectory() as folder:  # pytest's own folders are closed to the user that the child becomes
        here = Path(folder)
        monkeypatch.chdir(here)
        make(here, "closed/a.py", "open/b.py")
        (here / "closed").chmod(0)
        here.chmod(0o755)
        assert _run_as_nobody(_reports_a_closed_folder) == 0
        (here / "closed").chmod(0o755)


def _reports_a_closed_folder() -> bool:
    result = discover(["."], LintSettings())
    problems = [(one.path, one.problem) for one in result.unreadable]
    fits = [file.shown for file in result.files] == ["open/b.py"]
    return fits and problems == [("closed", "cannot be listed: Permission denied")] and _refuses_a_closed_folder()


def _refuses_a_closed_folder() -> bool:
    try:
        discover(["open", "closed"], LintSettings())
    except UsageError as error:
        return error.message == "`closed` cannot be listed: Permission denied" and error.hint is not None
    return False


def _run_as_nobody(check: Callable[[], bool]) -> int:
    """The exit code of a child that may not read everything: 0 where the check holds."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            if os.geteuid() == 0:
                os.setegid(65534)
                os.seteuid(65534)
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
