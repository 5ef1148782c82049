"""`# noqa` comments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomdoctor.lint.reporting import Suppressions
from oomdoctor.lint.rule import Rule
from oomdoctor.results.lint import Concern, Severity

RUFF = Path(sys.executable).with_name("ruff")


def rule(code: str, name: str) -> Rule:
    """A rule that finds nothing."""
    return Rule(code, name, Severity.NOTE, Concern.MEMORY, "", "", "", "", "", (), (), lambda _: iter(()))


OOM101 = rule("OOM101", "keeps-graph")


def silences(text: str, line: int = 1, end: int | None = None) -> bool:
    """Whether OOM101 is silenced on a line."""
    return Suppressions(text).silences(OOM101, line, end or line)


@pytest.mark.parametrize(
    "comment",
    [
        "# noqa", "#noqa", "# NOQA", "# NoQA", "#\tnoqa", "## noqa", "# x # noqa", "# type: ignore # noqa",
        "# noqa: OOM101", "# noqa:OOM101", "# noqa : OOM101", "# noqa: E501, OOM101", "# noqa: E501,OOM101",
        "# noqa: E501 OOM101", "# noqa: E501,,OOM101", "# noqa: OOM101 - it is small", "# noqa: OOM101 because of E5",
        "# noqa: keeps-graph", "# noqa: E501, keeps-graph", "# noqa because it is small", "# noqa: OOM101E501",
        "# noqa: OOM101# more", "# noqa: oom101", "# noqa: E501, oom101 - it is small",
    ],
)  # fmt: skip
def test_a_comment_silences(comment: str) -> None:
    """With the code, the rule's name, or no list at all."""
    assert silences(f"x = 1  {comment}\n")


@pytest.mark.parametrize(
    "comment",
    [
        "# noqa: E501", "# noqa: OOM1", "# noqa: oom1", "# noqa: Oom101", "# noqa:", "# noqa: because",
        "# noqa: because OOM101", "# noqaOOM101", "# noqa.", "# noqa,OOM101", "# noqa: OOM101.", "# noqa: E501;OOM101",
        "# xnoqa", "# x noqa", "# noqa: other-name", "# oomdoctor: noqa", "# noqa: E501 # noqa: OOM101", "'# noqa'",
        "# noqa: OOM1011",
    ],
)  # fmt: skip
def test_a_comment_does_not_silence(comment: str) -> None:
    """Another code, no code after the colon, or no directive at all."""
    assert not silences(f"x = 1; {comment}\n")


@given(comment=st.text("#noqaNOQA: ,;-.EF5401\t", min_size=1, max_size=6).map("# noqa".__add__))
@settings(max_examples=40, deadline=None)
@pytest.mark.skipif(not RUFF.exists(), reason="compares with ruff")
def test_comments_are_read_as_ruff_reads_them(comment: str) -> None:
    """Whatever follows `# noqa`, what is silenced is what ruff silences."""
    text = f"import os  {comment}\n"
    done = subprocess.run(
        [RUFF, "check", "--isolated", "--select", "F401", "--output-format", "json", "-"],
        input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip
    ours = Suppressions(text).silences(rule("F401", "unused-import"), 1, 1)
    assert ours == (json.loads(done.stdout) == [])


def test_a_comment_counts_where_the_finding_begins_or_ends() -> None:
    """Not between, and not on other lines."""
    call = "x = f(  {}\n    a,  {}\n    b,\n)  {}\ny = 1\n"
    note = "# noqa: OOM101"
    assert silences(call.format(note, "", ""), 1, 4)
    assert silences(call.format("", "", note), 1, 4)
    assert not silences(call.format("", note, ""), 1, 4)
    assert not silences(call.format("", "", note), 5)


def test_a_comment_after_a_string_over_lines_counts_for_all_of_it() -> None:
    """A comment cannot stand inside one; f-strings and joined lines are the same."""
    assert silences('x = g(a, """\nb\nc""")  # noqa: OOM101\n', 1)
    assert silences('x = g(a, f"""\n{b}\nc""")  # noqa: OOM101\n', 1)
    assert silences("x = a + \\\n    b + \\\n    c  # noqa: OOM101\n", 1)
    assert not silences("x = a + \\\n    b\nc  # noqa: OOM101\n", 1)


def test_what_looks_like_a_comment_in_a_string_is_none() -> None:
    """Only comments count."""
    assert not silences('x = """\n# noqa\n"""\n', 2)
    assert not silences("x = '# noqa: OOM101'\n")
    assert not silences('"""\n# oomdoctor: noqa\n"""\nx = 1\n', 4)


@pytest.mark.parametrize(
    ("comment", "silenced"),
    [
        ("# oomdoctor: noqa", True),
        ("#oomdoctor:noqa", True),
        ("    # oomdoctor: noqa", True),
        ("# oomdoctor: noqa: OOM101", True),
        ("# oomdoctor: noqa: OOM201, keeps-graph", True),
        ("# oomdoctor: noqa - all of it", True),
        ("# oomdoctor: noqa: OOM201", False),
        ("# oomdoctor: noqa:", False),
        ("y = 1  # oomdoctor: noqa", False),
        ("# x oomdoctor: noqa", False),
        ("# ruff: noqa", False),
        ("# flake8: noqa", False),
    ],
)
def test_a_line_of_its_own_silences_the_file(comment: str, silenced: bool) -> None:
    """Wherever it stands in the file."""
    assert silences(f"x = 1\n\n{comment}\n", 1) is silenced


def test_several_comments_for_the_file_add_up() -> None:
    """Each names what it silences."""
    text = "# oomdoctor: noqa: OOM201\n# oomdoctor: noqa: OOM101\nx = 1\n"
    assert silences(text, 3)
    assert Suppressions(text).silences(rule("OOM201", "other"), 3, 3)


def test_line_ends_of_all_kinds_are_counted() -> None:
    """Lines are those of the parser."""
    assert silences("a = 1\rb = 2  # noqa\r\nc = 3\n", 2)
    assert not silences("a = 1\rb = 2  # noqa\r\nc = 3\n", 3)
    assert silences("a = 1\n\fb = 2  # noqa\n", 2)


@pytest.mark.parametrize("broken", ["x = (\n", "'''\n", "  x\n y\n", "x = 1 \\", "\x00", "$", "\ud800"])
def test_a_text_that_has_no_tokens_is_read_by_lines(broken: str) -> None:
    """Nothing is raised, and comments count all the same."""
    assert silences(f"a = 1  # noqa: OOM101\n{broken}", 1)


@given(st.text("x=()'\"#noqa: OOM101\\\n\r\t f{}", max_size=60))
def test_any_text_is_read(text: str) -> None:
    """Nothing is raised whatever the text."""
    for line in range(1, 4):
        silences(text, line)
