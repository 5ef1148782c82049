"""`--fix`: edits at exact offsets, pass after pass, and everything else byte for byte as it was."""

from __future__ import annotations

import ast
import codecs
import json
import os
import resource
import stat
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oomdoctor.lint.engine import LintRun, lint
from oomdoctor.lint.fixing import MOST_PASSES, FixRun, fix, write
from oomdoctor.lint.rule import Hit, Rule, Subject
from oomdoctor.lint.settings import LintSettings
from oomdoctor.lint.source import Edit
from oomdoctor.results import Concern, Severity

HEAD = "import torch; loss.backward()\n"


def rule(code: str, check: Callable[[Subject], Iterator[Hit]]) -> Rule:
    """A rule that looks for what `check` finds."""
    return Rule(code, f"rule-{code}", Severity.ERROR, Concern.MEMORY, "", "", "", "", "", (), ("",), check)


def renames(old: str, new: str) -> Callable[[Subject], Iterator[Hit]]:
    """Finds each name `old`, which a fix makes to `new`; no comment and no string is touched."""

    def check(subject: Subject) -> Iterator[Hit]:
        for node in ast.walk(subject.module.tree):
            if isinstance(node, ast.Name) and node.id == old:
                start = (node.lineno, node.col_offset)
                edit = Edit(start, (start[0], start[1] + len(old.encode())), new)
                yield Hit(node, subject.module, "x", "y", edits=(edit,))

    return check


def fixed(root: Path, *rules: Rule, paths: tuple[str, ...] = (".",)) -> FixRun:
    """Fixes of these rules, written."""

    def ask(overlay: Mapping[Path | None, bytes]) -> LintRun:
        files = {path: data for path, data in overlay.items() if path is not None}
        return lint(paths, LintSettings(root=root), BytesIO(overlay.get(None, b"")), overlay=files, rules=rules)

    fixing = fix(ask)
    write(fixing, ask)
    return fixing


BAD = rule("OOM901", renames("bad", "good"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        b"import torch; loss.backward()\n@ = 1\n",
        b"import torch; loss.backward()\r\nx = 1\r\n@ = 1\r\n",
        b"import torch; loss.backward()\r@ = 1\r",
        b"import torch; loss.backward()\r\nx\n@ = 1\r",
        b"import torch; loss.backward()\n@",
        b"import torch; loss.backward()\n\x0c@ = 1\n",
        codecs.BOM_UTF8 + b"import torch; loss.backward(); @\n",
        HEAD.encode() + "'\u20ac\U0001f525', @, '\u20ac'\n".encode(),
        b"# coding: latin-1\nimport torch; loss.backward()\n'\xe9', @\n",
        b"import torch; loss.backward()\nif @:\n\t@; @  # bad\n",
    ],
)
def test_all_else_stays(folder: Path, text: bytes) -> None:
    """Line ends, byte order marks, encodings, tabs and comments are as they were."""
    (folder / "x.py").write_bytes(text.replace(b"@", b"bad"))
    fixing = fixed(folder, BAD)
    assert (folder / "x.py").read_bytes() == text.replace(b"@", b"good")
    assert fixing.linted.result.findings == ()
    assert fixing.fixed == text.count(b"@")


def test_new_lines_end_as_the_others(folder: Path) -> None:
    """A line that a fix adds ends as the file's lines do."""

    def check(subject: Subject) -> Iterator[Hit]:
        first = subject.module.tree.body[0]
        if "added" not in subject.module.text:
            yield Hit(first, subject.module, "x", "y", edits=(Edit((2, 0), (2, 0), "added = 1\nmore = 2\n"),))

    (folder / "x.py").write_bytes(b"import torch; loss.backward()\r\nx = 1\r\n")
    fixed(folder, rule("OOM902", check))
    assert (folder / "x.py").read_bytes() == b"import torch; loss.backward()\r\nadded = 1\r\nmore = 2\r\nx = 1\r\n"


def test_fixes_go_on_until_nothing_changes(folder: Path) -> None:
    """What a fix brings about is fixed in the next pass, and each is counted; a second run has nothing to do."""
    (folder / "x.py").write_text(HEAD + "a = 1\n")
    chain = [rule(f"OOM90{number}", renames(old, new)) for number, (old, new) in enumerate(("ab", "bc", "cd"))]
    assert fixed(folder, *chain).fixed == 3
    assert (folder / "x.py").read_text() == HEAD + "d = 1\n"
    before = (folder / "x.py").stat()
    again = fixed(folder, *chain)
    assert (again.fixed, again.changes, again.notes) == (0, {}, [])
    assert (folder / "x.py").stat() == before


def test_overlapping_fixes_are_made_one_after_the_other(folder: Path) -> None:
    """Of two fixes of one place the first is made, and the other one where it still applies."""
    (folder / "x.py").write_text(HEAD + "bad = 1\n")
    other = rule("OOM902", renames("bad", "worse"))
    fixing = fixed(folder, BAD, other)
    assert (folder / "x.py").read_text() == HEAD + "good = 1\n"
    assert fixing.fixed == 1


def test_fixes_that_undo_each_other_end(folder: Path) -> None:
    """Two rules that contradict each other are stopped, and a note says so."""
    (folder / "x.py").write_text(HEAD + "a = 1\n")
    fixing = fixed(folder, rule("OOM901", renames("a", "b")), rule("OOM902", renames("b", "a")))
    assert fixing.notes == [f"`x.py` has fixes left after {MOST_PASSES} passes"]


def test_a_fix_that_breaks_the_code_is_not_made(folder: Path) -> None:
    """Where a fix would leave what does not parse the file stays, or has the other fixes made; a note says so."""
    breaking = rule("OOM902", renames("worse", "not good"))
    (folder / "x.py").write_text(HEAD + "worse = 1\n")
    fixing = fixed(folder, breaking)
    assert (folder / "x.py").read_text() == HEAD + "worse = 1\n"
    assert fixing.notes == ["`x.py` has a fix that was not applied: it would leave code that does not parse"]
    assert [finding.code for finding in fixing.linted.result.findings] == ["OOM902"]
    (folder / "x.py").write_text(HEAD + "worse = 1\nbad = 2\n")
    assert fixed(folder, BAD, breaking).fixed == 1
    assert (folder / "x.py").read_text() == HEAD + "worse = 1\ngood = 2\n"


def test_a_character_that_the_encoding_lacks(folder: Path) -> None:
    """A fix that the file's encoding cannot write is not made."""
    (folder / "x.py").write_bytes(b"# coding: latin-1\nimport torch; loss.backward()\nbad = '\xe9'\n")
    before = (folder / "x.py").read_bytes()
    fixing = fixed(folder, rule("OOM902", renames("bad", "\u03bb")))
    assert (folder / "x.py").read_bytes() == before
    assert (fixing.fixed, len(fixing.notes)) == (0, 1)


def test_silenced_findings_are_not_fixed(folder: Path) -> None:
    """What `# noqa` or the configuration silences stays."""
    text = HEAD + "bad = 1  # noqa: OOM901\nbad = 2\n"
    (folder / "x.py").write_text(text)
    fixed(folder, BAD)
    assert (folder / "x.py").read_text() == text.replace("bad = 2", "good = 2")


def test_a_mistake_in_another_file_is_fixed_once(folder: Path) -> None:
    """What the run of one file finds in another is put right there, once, and from its new text in the next pass."""

    def check(subject: Subject) -> Iterator[Hit]:
        if subject.module.project and subject.module.path.name == "a.py":
            called = subject.module.project.definition("b.train_step", subject.module)
            assert called is not None
            yield from renames("bad", "good, also")(Subject(called.module, ()))

    (folder / "a.py").write_text(HEAD + "from b import train_step\n")
    (folder / "b.py").write_text("def train_step():\n    bad, bad\n    return bad\n")
    fixing = fixed(folder, rule("OOM902", check))
    assert (folder / "b.py").read_text() == "def train_step():\n    good, also, good, also\n    return good, also\n"
    assert (fixing.fixed, fixing.linted.result.findings) == (3, ())


# --- standard input and notebooks ------------------------------------------------------------------------------------


def test_standard_input_is_fixed_in_memory(folder: Path) -> None:
    """The new content of standard input is there to be printed."""

    def ask(overlay: Mapping[Path | None, bytes]) -> LintRun:
        return lint(["-"], LintSettings(root=folder), BytesIO(overlay.get(None, HEAD.encode() + b"bad\n")), rules=[BAD])

    fixing = fix(ask)
    write(fixing, ask)
    assert fixing.overlay() == {None: HEAD.encode() + b"good\n"}
    assert list(folder.iterdir()) == []


def test_notebooks_are_fixed_cell_by_cell(folder: Path) -> None:
    """In a notebook the sources change, and outputs, indent and order of the rest stay."""
    notebook = {
        "nbformat": 4,
        "cells": [
            {
                "cell_type": "code",
                "outputs": [{"text": "bad"}],
                "source": ["import torch; loss.backward()\n", "%time x\n", "bad = 1"],
            },
            {"cell_type": "markdown", "source": "bad"},
            {"cell_type": "code", "outputs": [], "source": ["broken (\n"]},
            {"cell_type": "code", "outputs": [], "source": ["print(bad)"]},
        ],
        "metadata": {},
    }
    text = json.dumps(notebook, indent=3) + "\n\n"
    (folder / "x.ipynb").write_text(text)
    assert fixed(folder, BAD).fixed == 2
    expected = text.replace('"bad = 1"', '"good = 1"').replace("print(bad)", "print(good)")
    assert (folder / "x.ipynb").read_text() == expected


def test_a_fix_that_breaks_a_cell_is_not_made(folder: Path) -> None:
    """A cell that a fix would break keeps what it has."""
    notebook = {
        "nbformat": 4,
        "cells": [{"cell_type": "code", "source": "import torch; loss.backward()\nbad = 1"}],
        "metadata": {},
    }
    (folder / "x.ipynb").write_text(json.dumps(notebook))
    assert fixed(folder, rule("OOM902", renames("bad", "not good"))).fixed == 0
    assert json.loads((folder / "x.ipynb").read_text()) == notebook


# --- files -----------------------------------------------------------------------------------------------------------


def test_mode_and_links_stay(folder: Path) -> None:
    """A link stays a link, what it leads to keeps its mode, and nothing is left beside it."""
    (folder / "real").mkdir()
    target = folder / "real/x.py"
    target.write_text(HEAD + "bad = 1\n")
    target.chmod(0o751)
    (folder / "link.py").symlink_to(target)
    assert fixed(folder, BAD).fixed == 2  # under both of its names
    assert (folder / "link.py").is_symlink()
    assert target.read_text() == HEAD + "good = 1\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o751
    assert os.listdir(folder / "real") == ["x.py"]  # noqa: PTH208 - the names alone


def test_what_cannot_be_written_stays_and_is_found_again(folder: Path) -> None:
    """A full disk leaves the file whole, nothing beside it, a note, and its findings."""
    (folder / "x.py").write_text(HEAD + "bad = 1\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        fixing = fixed(folder, BAD)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (folder / "x.py").read_text() == HEAD + "bad = 1\n"
    assert fixing.notes == ["`x.py` is left as it was: it cannot be written: File too large"]
    assert (fixing.fixed, len(fixing.linted.result.findings)) == (0, 1)
    assert [path.name for path in folder.iterdir()] == ["x.py"]


def test_what_was_changed_meanwhile_is_left_alone(folder: Path) -> None:
    """What an editor has saved since the file was read is not overwritten."""
    (folder / "x.py").write_text(HEAD + "bad = 1\n")

    def ask(overlay: Mapping[Path | None, bytes]) -> LintRun:
        files = {path: data for path, data in overlay.items() if path is not None}
        return lint(["."], LintSettings(root=folder), overlay=files, rules=[BAD])

    fixing = fix(ask)
    (folder / "x.py").write_text("mine\n")
    write(fixing, ask)
    assert (folder / "x.py").read_text() == "mine\n"
    assert fixing.notes == ["`x.py` is left as it was: it was changed while it was linted"]


_line_ends = st.sampled_from(["\n", "\r\n", "\r"])
_lines = st.sampled_from(["bad = 1", "x = 'bad'  # bad", "if bad: bad", "'\u20ac', bad", "", "\x0c", "x = '''", "'''"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=st.lists(st.tuples(_lines, _line_ends), max_size=8), marked=st.booleans())
def test_only_the_edits_are_made(folder: Path, lines: list[tuple[str, str]], *, marked: bool) -> None:
    """Whatever its lines and their ends, a file differs only where the edits are, and a second run changes nothing."""
    text = HEAD + "".join(line + end for line, end in lines)
    data = codecs.BOM_UTF8 * marked + text.encode()
    (folder / "x.py").write_bytes(data)
    fixing = fixed(folder, BAD)
    after = (folder / "x.py").read_bytes()
    assert after.replace(b"good", b"bad") == data
    assert after.count(b"good") == fixing.fixed
    assert fixed(folder, BAD).fixed == 0
    assert (folder / "x.py").read_bytes() == after
