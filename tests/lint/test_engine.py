"""From paths to findings: what is looked at, what is said of each place, and what is silenced."""

from __future__ import annotations

import ast
import gc
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomdoctor.errors import UsageError
from oomdoctor.lint.engine import LintRun, lint
from oomdoctor.lint.rule import Hit, Rule, Subject
from oomdoctor.lint.settings import LintSettings
from oomdoctor.lint.source import Edit, UnreadableError, resolved
from oomdoctor.results.lint import Concern, Finding, Severity, Unreadable

IMPORT = "import torch  # loss.backward()\n"
"""Rules are only asked about files in which something of training is written."""


def _calls(name: str, subject: Subject) -> Iterator[Hit]:
    """Each call of a function of this name, which an edit would rename."""
    for node in ast.walk(subject.module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            start = (node.lineno, node.col_offset)
            edit = Edit(start, (start[0], start[1] + len(name)), "good")
            yield Hit(node, subject.module, f"`{name}` is called", "call `good`", edits=(edit,))


def rule(code: str, name: str, check: object, **options: object) -> Rule:
    """A rule of the tests."""
    words = options.pop("words", (name,))
    return Rule(
        code, name, Severity.WARNING, Concern.MEMORY, "", "", "", "", "", (), words, check, **options  # type: ignore[arg-type]
    )  # fmt: skip


BAD = rule("OOM901", "bad", lambda subject: _calls("bad", subject))
WORSE = rule("OOM902", "worse", lambda subject: _calls("worse", subject))
RULES = (BAD, WORSE)


def run(*paths: str, stdin: bytes | None = None, rules: tuple[Rule, ...] = RULES, **options: object) -> LintRun:
    """Lint with the rules of the tests."""
    overlay = options.pop("overlay", None)
    given = None if stdin is None else io.BytesIO(stdin)
    return lint(paths or (".",), LintSettings(**options), given, overlay=overlay, rules=rules)  # type: ignore[arg-type]


def places(linted: LintRun) -> list[tuple[str, int, int, str]]:
    """Where which rule fires."""
    return [(one.path, one.line, one.column, one.code) for one in linted.result.findings]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_finding_says_all_of_its_place(here: Path) -> None:
    """Columns are characters from 1, the end is the first after it, and the function is named in full."""
    (here / "pkg").mkdir()
    text = IMPORT + "class Trainer:\n    def train(self):\n        def inner():\n            x = 'é😀'; bad(\n 1)\n"
    (here / "pkg" / "a.py").write_text(text)
    (finding,) = run().result.findings
    assert finding == Finding(
        code="OOM901", name="bad", path="pkg/a.py", line=5, column=23, end_line=6, end_column=4,
        severity=Severity.WARNING, concern=Concern.MEMORY, message="`bad` is called", help="call `good`",
        function="Trainer.train.inner", source="            x = 'é😀'; bad(", cell=None, fixable=True,
    )  # fmt: skip


def test_of_an_endless_line_only_its_beginning_is_kept(here: Path) -> None:
    """Columns still count in it, and what lies behind it is shown without its line."""
    (here / "a.py").write_text(f"{IMPORT}x = 'é'; bad(); y = '{'z' * 5000}'; bad()\n")
    first, last = run().result.findings
    assert (len(first.source), first.source[first.column - 1 : first.end_column - 1]) == (2000, "bad()")
    assert (last.source, last.column > 5000) == ("", True)


def test_findings_come_by_path_line_column_and_code(here: Path) -> None:
    """Whatever the order of the arguments."""
    (here / "b.py").write_text(IMPORT + "worse(bad()); bad()\nbad()\n")
    (here / "a.py").write_text(IMPORT + "bad()\n")
    assert places(run("b.py", "a.py")) == [
        ("a.py", 2, 1, "OOM901"),
        ("b.py", 2, 1, "OOM902"),
        ("b.py", 2, 7, "OOM901"),
        ("b.py", 2, 15, "OOM901"),
        ("b.py", 3, 1, "OOM901"),
    ]


def test_files_and_lines_are_counted(here: Path) -> None:
    """Those that have nothing to do with torch apart."""
    (here / "a.py").write_text(IMPORT + "bad()\n")
    (here / "b.py").write_text("bad(\n")
    (here / "c.py").write_text(IMPORT + "x = (\n")
    result = run().result
    assert (result.files, result.skipped_files, result.lines, result.rules) == (1, 1, 2, ("OOM901", "OOM902"))


def test_what_cannot_be_read_does_not_stop_the_others(here: Path) -> None:
    """It is listed with the line, the column and Python's reason."""
    (here / "a.py").write_text(IMPORT + "x = (\n")
    (here / "b.py").write_bytes(b"\xff\xfeimport torch")
    (here / "c.py").write_text(IMPORT + "print 'x'\n")
    (here / "d.py").write_text(IMPORT + "bad()\n")
    linted = run()
    assert places(linted) == [("d.py", 2, 1, "OOM901")]
    assert linted.result.unreadable == (
        Unreadable("a.py", 2, 5, "'(' was never closed"),
        Unreadable("b.py", 1, 1, "written in UTF-16, which Python does not read"),
        Unreadable("c.py", 2, 1, "missing parentheses in call to 'print'. Did you mean print(...)?"),
    )


DEEP = {
    "parentheses": "x = " + "(" * 50_000 + ")" * 50_000,
    "minus": "x = " + "-" * 50_000 + "1",
    "not": "x = " + "not " * 50_000 + "1",
    "attributes": "x = a" + ".a" * 40_000,
    "attributes that parse": "x = a" + ".a" * 2500,
    "calls": "x = a" + "()" * 2500,
    "sum": "x = 1" + "+1" * 40_000,
    "sum that parses": "x = 1" + "+1" * 2500,
    "sum that people write": "x = bad()" + "+1" * 500,
    "powers": "x = 1" + "**1" * 20_000,
    "ifs": "".join(" " * i + "if 1:\n" for i in range(99)) + " " * 99 + "pass",
    "elifs": "if 1:\n pass\n" + "elif 1:\n pass\n" * 10_000,
    "f-strings": "x = " + "f'{" * 150 + "1" + "}'" * 150,
    "conditions": "x = " + "1 if 1 else " * 9_000 + "1",
    "lambdas": "x = " + "lambda:" * 20_000 + "1",
    "strings": "x = " + "'a' " * 20_000,
    "comparisons": "x = 1" + "<1" * 40_000,
    "targets": "x = " * 30_000 + "1",
    "decorators": "@a\n" * 20_000 + "def f(): pass",
}


@pytest.mark.parametrize("name", DEEP)
def test_code_that_is_nested_too_deeply_is_listed_or_linted(here: Path, name: str) -> None:
    """It never ends the run, and what people write is linted."""
    (here / "a.py").write_text(IMPORT + "def f(model, loader):\n    model.eval()\n" + DEEP[name] + "\n")
    from oomdoctor.lint.rules import ALL

    result = run(rules=(*RULES, *ALL)).result
    assert len(result.unreadable) + result.files >= 1
    if name == "sum that people write":
        assert [finding.code for finding in result.findings] == ["OOM901"]


def test_a_rule_that_fails_names_the_file(here: Path) -> None:
    """A bug is not hidden, one that does not end included."""

    def broken(_: Subject) -> Iterator[Hit]:
        raise KeyError("bug")

    def endless(subject: Subject) -> Iterator[Hit]:
        return endless(subject)

    (here / "a.py").write_text(IMPORT + "x()\n")
    for check, kind in ((broken, KeyError), (endless, RecursionError)):
        with pytest.raises(kind) as caught:
            run(rules=(rule("OOM903", "broken", check, words=("x",)),))
        assert caught.value.__notes__ == ["while linting a.py"]
    assert (gc.isenabled(), gc.get_freeze_count(), sys.getrecursionlimit() < 3000) == (True, 0, True)


def test_standard_input_is_called_by_its_name() -> None:
    """Its ending tells a notebook."""
    assert places(run("-", stdin=f"{IMPORT}bad()\n".encode())) == [("-", 2, 1, "OOM901")]
    assert places(run("-", stdin=f"{IMPORT}bad()\n".encode(), stdin_filename="x/y.py")) == [("x/y.py", 2, 1, "OOM901")]
    whole = {"cells": [{"cell_type": "code", "source": IMPORT + "bad()"}], "nbformat": 4}
    linted = run("-", stdin=json.dumps(whole).encode(), stdin_filename="n.ipynb")
    assert linted.result.findings[0].cell == 1
    too_much = run("-", stdin=b" " * (5 << 20)).result.unreadable
    assert too_much == (Unreadable("-", None, None, "too large: more than 4 MiB"),)


def test_a_notebook_is_linted_by_cell(here: Path) -> None:
    """Lines are those of the cell, and the line that is shown is the author's."""
    cells = [IMPORT, "# x", "!ls\n%time bad()\n", ")(", "bad(\n)"]
    whole = {"cells": [{"cell_type": "code", "source": one} for one in cells], "nbformat": 4}
    (here / "n.ipynb").write_text(json.dumps(whole))
    linted = run()
    assert [(one.cell, one.line, one.column, one.end_line, one.end_column) for one in linted.result.findings] == [
        (3, 2, 7, 2, 12),
        (5, 1, 1, 2, 2),
    ]
    assert linted.result.findings[0].source == "%time bad()"
    assert linted.result.unreadable == (Unreadable("n.ipynb", 1, 1, "unmatched ')'", 4),)


def test_comments_and_the_configuration_silence(here: Path) -> None:
    """What is silenced is counted, and cannot be fixed."""
    (here / "a.py").write_text(IMPORT + "bad()  # noqa: OOM901\nworse()  # noqa: OOM901\nbad()  # noqa: worse\n")
    (here / "b.py").write_text("# oomdoctor: noqa\n" + IMPORT + "bad()\n")
    (here / "c.py").write_text(IMPORT + "bad()\nworse()\n")
    linted = run(per_file_ignores={"c.*": ("OOM901",), "[ab].py": ()}, root=here)
    assert places(linted) == [("a.py", 3, 1, "OOM902"), ("a.py", 4, 1, "OOM901"), ("c.py", 3, 1, "OOM902")]
    assert linted.result.suppressed == 3
    assert [(one.file.shown, len(one.edits)) for one in linted.fixable] == [("a.py", 2), ("c.py", 1)]


def test_rules_are_selected(here: Path) -> None:
    """Before any file is looked for."""
    (here / "a.py").write_text(IMPORT + "bad(worse())\n")
    assert places(run(select=("worse",))) == [("a.py", 2, 5, "OOM902")]
    with pytest.raises(UsageError, match="no such rule"):
        run("nowhere", select=("nonsense",))
    with pytest.raises(UsageError, match="no such rule"):
        run(per_file_ignores={"*": ("nonsense",)})


def _in_helper(subject: Subject) -> Iterator[Hit]:
    """Each event, wherever it lies."""
    for run_ in subject.runs:
        for event in run_.of():
            if event.action.value == "backward":
                yield Hit.at(event, "x", help="y", edits=(Edit((1, 0), (1, 0), "#"),))


ANYWHERE = rule("OOM904", "anywhere", _in_helper, words=("torch",))
HELPER = "import torch\n\ndef train_step(loss):\n    loss.backward()\n"
CALLER = "import torch\nfrom helpers import train_step\n\ndef main(model, x):\n    train_step(model(x))\n"


def test_a_finding_in_a_file_that_a_run_leads_to_is_given_once(here: Path) -> None:
    """Under that file, if it is among those that are linted; else not at all."""
    (here / "helpers.py").write_text(HELPER)
    (here / "one.py").write_text(CALLER)
    (here / "two.py").write_text(CALLER)
    assert places(run(rules=(ANYWHERE,))) == [("helpers.py", 4, 5, "OOM904")]
    assert places(run("one.py", rules=(ANYWHERE,))) == []
    assert [one.file.shown for one in run(rules=(ANYWHERE,)).fixable] == ["helpers.py"]


def test_a_finding_in_another_file_is_silenced_by_that_file(here: Path) -> None:
    """Its comments and its configuration count, not those of the caller."""
    (here / "helpers.py").write_text(HELPER.replace("backward()", "backward()  # noqa: OOM904"))
    (here / "one.py").write_text("# oomdoctor: noqa\n" + CALLER)
    assert places(run(rules=(ANYWHERE,))) == []
    (here / "helpers.py").write_text(HELPER)
    assert places(run(rules=(ANYWHERE,))) == [("helpers.py", 4, 5, "OOM904")]
    assert places(run(rules=(ANYWHERE,), per_file_ignores={"helpers.py": ("ALL",)}, root=here)) == []


def test_the_worst_of_two_findings_at_one_place_counts(here: Path) -> None:
    """Several runs may lead to one place."""

    def check(subject: Subject) -> Iterator[Hit]:
        severity = Severity.ERROR if subject.module.path.name == "two.py" else Severity.NOTE
        for run_ in subject.runs:
            for event in run_.of():
                if event.action.value == "backward":
                    yield Hit.at(event, "x", help="y", severity=severity)

    for name, text in (("helpers.py", HELPER), ("one.py", CALLER), ("two.py", CALLER)):
        (here / name).write_text(text)
    (finding,) = run(rules=(rule("OOM905", "graded", check, words=("torch",)),)).result.findings
    assert finding.severity is Severity.ERROR


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("for x in bad:\n    pass\n", (2, 13)),
        ("while bad(\n1):\n    pass\n", (3, 3)),
        ("with bad() as x, y:\n    pass\n", (2, 19)),
        ("try:\n    bad\nfinally:\n    pass\n", (2, 4)),
        ("def bad(a, b):\n    pass\n", (2, 13)),
        ("def bad():\n    pass\n", (2, 8)),
        ("@bad(1)\nclass A(B):\n    pass\n", (3, 10)),
        ("class bad:\n    pass\n", (2, 10)),
        ("if bad:\n    pass\nelse:\n    pass\n", (2, 7)),
    ],
)
def test_of_a_statement_with_a_body_its_head_is_pointed_at(here: Path, text: str, end: tuple[int, int]) -> None:
    """So that a comment in the body does not silence it, and a caret does not run through it."""

    def check(subject: Subject) -> Iterator[Hit]:
        yield Hit(subject.module.tree.body[1], subject.module, "x", "y")

    (here / "a.py").write_text(IMPORT + text)
    (finding,) = run(rules=(rule("OOM906", "head", check, words=("bad",)),)).result.findings
    assert (finding.end_line, finding.end_column) == end


def test_what_can_be_fixed_is_read_again(here: Path) -> None:
    """With its edits; a file that has changed since is refused."""
    (here / "a.py").write_bytes(b"import torch  # loss.backward()\r\nbad(bad())\r\n")
    linted = run()
    (fixable,) = linted.fixable
    data, document = linted.read(fixable)
    assert data == b"import torch  # loss.backward()\r\nbad(bad())\r\n"
    edits = [edit for edits in fixable.edits for edit in edits]
    assert document.edited(edits) == b"import torch  # loss.backward()\r\ngood(good())\r\n"
    (here / "a.py").write_bytes(f"{IMPORT}bad()\n".encode())
    with pytest.raises(UnreadableError, match="changed"):
        linted.read(fixable)


def test_an_overlay_stands_in_for_the_disk(here: Path) -> None:
    """So that what a fix would write can be linted before it is written."""
    (here / "a.py").write_text(IMPORT + "bad()\n")
    (here / "link.py").symlink_to("a.py")
    overlay = {resolved(here / "a.py"): f"{IMPORT}\nworse()\n".encode()}
    linted = run(overlay=overlay)
    assert places(linted) == [("a.py", 3, 1, "OOM902"), ("link.py", 3, 1, "OOM902")]
    assert linted.read(linted.fixable[0])[0] == f"{IMPORT}\nworse()\n".encode()
    assert places(run("-", stdin=f"{IMPORT}bad()".encode(), overlay=overlay)) == [("-", 2, 1, "OOM901")]


def test_nothing_is_imported_and_nothing_is_run(here: Path) -> None:
    """The code is read only; torch is not loaded for it."""
    (here / "torch.py").write_text("raise SystemExit(3)\n")
    (here / "a.py").write_text(IMPORT + "raise SystemExit(4)\n")
    code = (
        "import sys; from oomdoctor.lint.engine import lint; from oomdoctor.lint.settings import LintSettings\n"
        "lint(['.'], LintSettings()); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=here, check=False).returncode == 0
