"""Globs moved to a folder above match what they matched where they were."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from oomdoctor.config.lint import below

_names = st.text(alphabet="ab*[]!#? \\", min_size=1, max_size=3).filter(lambda name: name not in {".", ".."})
_globs = st.text(alphabet="ab*/?", min_size=1, max_size=6).filter(lambda glob: glob.strip("/*") and "***" not in glob)
_paths = st.lists(st.text(alphabet="ab", min_size=1, max_size=2), min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("glob", "moved"),
    [
        ("*.py", "a/b/**/*.py"),
        ("tests/", "a/b/**/tests/"),
        ("tests/**", "a/b/tests/**"),
        ("/x.py", "a/b/x.py"),
        ("!x.py", "!a/b/**/x.py"),
    ],
)
def test_forms(glob: str, moved: str) -> None:
    """A glob with a slash counts from its folder, one without at any depth below it."""
    assert below(PurePosixPath("a/b"), glob) == moved
    assert below(PurePosixPath(), glob) == glob


@given(st.lists(_names, min_size=1, max_size=2), _globs, _paths)
def test_it_matches_the_same(folder: list[str], glob: str, path: str) -> None:
    """Below the folder the moved glob matches what the glob itself matches in it, and beside the folder nothing."""
    moved = GitIgnoreSpec.from_lines([below(PurePosixPath(*folder), glob)])
    assert moved.match_file("/".join([*folder, path])) == GitIgnoreSpec.from_lines([glob]).match_file(path)
    assert not moved.match_file(f"zz/{path}")
