"""Patterns of `.gitignore`, held to what git does with them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oomdoctor.lint.discovery import Globs, wildcard

PATHS = (
    "a", "b", "ab", "a/b", "a/a/b", "b/a", "x.py", "a/x.py", "a-b", "[a]", "a b", "!a", "#a", "ba/ab/a", "B", "1",
    "aab", "\\a", "-", "]", "^",
)  # fmt: skip


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty repository, which lets git say what it ignores in it."""
    if shutil.which("git") is None:
        pytest.skip("compares with git")
    root = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def ignored_by_git(repository: Path, pattern: str) -> set[str]:
    """The paths that git ignores for one pattern."""
    (repository / ".gitignore").write_text(pattern + "\n", newline="\n")
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin", "-z"],
        cwd=repository, input="\0".join(PATHS), capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {name for name in done.stdout.split("\0") if name}


def ignored_by_us(pattern: str) -> set[str]:
    """The paths that the pattern fits, or a folder on the way to them."""
    found = wildcard(pattern)
    if found is None or not found.ignores:
        return set()

    def fits(path: str) -> bool:
        parts = path.rstrip("/").split("/")
        ways = ["/".join(parts[: end + 1]) for end in range(len(parts))]
        return any(found.fits(way, is_dir=way != path) for way in ways)

    return {path for path in PATHS if fits(path)}


@given(pattern=st.text("ab*?[]!^-/\\. x", min_size=1, max_size=7))
@example(pattern="**/b")
@example(pattern="a/**")
@example(pattern="a/**/b")
@example(pattern="a**b")
@example(pattern="[!a]b")
@example(pattern="[[:upper:]]")
@example(pattern="[[:nonsense:]a]")
@example(pattern="[]a]")
@example(pattern="[]?")
@example(pattern="[b-a]")
@example(pattern="\\!a")
@example(pattern="\\#a")
@example(pattern="a\\ b ")
@example(pattern="a\\")
@example(pattern="#a")
@example(pattern="/")
@example(pattern="//a")
@example(pattern="a\r")
@settings(max_examples=150, deadline=None)
def test_a_pattern_fits_what_git_ignores_by_it(repository: Path, pattern: str) -> None:
    """Whatever the pattern, the same paths are ignored."""
    assert ignored_by_us(pattern) == ignored_by_git(repository, pattern)


@pytest.mark.parametrize(
    ("glob", "path", "fits"),
    [
        ("tests/**", "tests/deep/a.py", True),
        ("tests/", "sub/tests/a.py", True),
        ("tests", "tests.py", False),
        ("*.py", "deep/a.py", True),
        ("/a.py", "deep/a.py", False),
        ("src/*.py", "src/deep/a.py", False),
        ("src/*.py", "src/a.py", True),
        ("!src/**", "src/a.py", False),
        ("!src/**", "tests/a.py", True),
        ("src/**/a.py", "src/a.py", True),
    ],
)
def test_a_glob_of_the_configuration_is_relative_to_its_root(tmp_path: Path, glob: str, path: str, fits: bool) -> None:
    """One without a slash fits at any depth, and one that begins with `!` fits all else."""
    assert Globs((glob,), tmp_path).fit(tmp_path / path) is fits


def test_a_glob_without_a_slash_fits_files_outside_the_root(tmp_path: Path) -> None:
    """What is tied to the root fits nothing outside it."""
    assert Globs(("*.py",), tmp_path / "here").fit(tmp_path / "there" / "a.py")
    assert not Globs(("there/*.py",), tmp_path / "here").fit(tmp_path / "there" / "a.py")
