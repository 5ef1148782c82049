"""What lint found, as a terminal shows it."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace

import pytest
from clock import within
from hypothesis import given
from hypothesis import strategies as st
from lint_documents import BROKEN, DIVISION, EVALUATION, LOSS, UNDECODABLE, any_lint, clean, filled_with, many, mistakes
from rich.cells import cell_len

from oomdoctor.output import Terminal
from oomdoctor.report.findings import excerpt
from oomdoctor.report.lint import text as render
from oomdoctor.results import Finding, LintDocument, Severity

GOLDEN = """\
notebooks/fine tune.ipynb:cell 7:3:5: OOM202 `loss` is not divided by `accumulation_steps`, so its gradient is too large
  |
3 |     loss.backward(
  |     ^^^^^^^^^^^^^^
help: divide it before `backward`

train/loop.py:42:9: OOM102 `losses` keeps the graph of every step alive
   |
42 |         losses.append(loss)
   |         ^^^^^^^^^^^^^^^^^^^
help: append `loss.item()`

train/loop.py:61:13: OOM101 [*] `model` runs in `evaluate` without `torch.no_grad()`
   |
61 |         outputs = model(batch)
   |                   ^^^^^^^^^^^^
help: decorate `evaluate` with `@torch.no_grad()`

train/old.py:3:7: not linted: python 2: `print` without parentheses

Found 3 findings (1 error, 1 warning, 1 note) in 12 files. 1 can be fixed with `--fix`. 2 are suppressed. 1 file could \
not be linted.
"""


def shown(*findings: Finding, terminal: Terminal | None = None) -> list[str]:
    """The lines of a report of these findings and nothing else."""
    return render(mistakes(*findings, unreadable=(), suppressed=0), terminal or Terminal()).splitlines()


def at(source: str, start: int, end: int) -> Finding:
    """A finding at characters `start` to `end`, from 0, of a line."""
    return replace(LOSS, source=source, column=start + 1, end_column=end + 1)


def underlined(lines: list[str]) -> str:
    """What of the shown line stands above the carets, by the columns that a terminal gives to each character."""
    code, carets = lines[2], lines[3]
    first = carets.index("^")
    last = first + carets.count("^")
    assert carets[last:] == ""
    taken, found = 0, ""
    for character in code:
        if first <= taken < last:
            found += character
        taken += cell_len(character)
    return found


def test_report() -> None:
    """A finding is its place, code and message, its line with carets below it, and what to write; then the sum."""
    assert render(mistakes(), Terminal()) == GOLDEN


def test_clean() -> None:
    """Where nothing was found the report is one line."""
    assert render(clean(), Terminal()) == "No findings in 12 files.\n"
    assert render(clean(files=1), Terminal()) == "No findings in 1 file.\n"
    assert render(clean(files=0), Terminal()) == "No findings: no file of 30 uses torch.\n"
    unread = clean(files=0, skipped_files=0, unreadable=(UNDECODABLE,))
    assert render(unread, Terminal()).endswith("\n\nNothing was linted. 1 file could not be linted.\n")
    assert render(clean(files=0, skipped_files=0), Terminal()) == "No findings: there are no files to check.\n"


def test_what_was_fixed_and_suppressed_is_said() -> None:
    """The last line counts what is in no finding any more."""
    assert render(clean(fixed=2), Terminal()) == "No findings in 12 files. 2 were fixed.\n"
    text = render(mistakes(LOSS, suppressed=1, fixed=1, unreadable=()), Terminal())
    assert text.endswith("\n\nFound 1 finding (1 error) in 12 files. 1 was fixed. 1 is suppressed.\n")


def test_files_that_could_not_be_read() -> None:
    """Each file that was not linted has its line, with the cell or the place where that is known."""
    whole = replace(BROKEN, line=None, column=None, problem="is not UTF-8")
    text = render(clean(unreadable=(BROKEN, whole, UNDECODABLE)), Terminal())
    assert text.splitlines()[2] == "train/old.py: not linted: is not UTF-8"
    assert text.splitlines()[4] == "notebooks/empty.ipynb:cell 2: not linted: is no notebook"
    assert text.endswith("No findings in 12 files. 2 files could not be linted.\n")


def test_color_is_that_of_the_severity() -> None:
    """On a terminal the code and the carets have their severity's colour; elsewhere nothing has any."""
    for severity, color in ((Severity.ERROR, "31"), (Severity.WARNING, "33"), (Severity.NOTE, "36")):
        lines = shown(replace(LOSS, severity=severity), terminal=Terminal(color=True))
        assert f"\x1b[1;{color}mOOM102\x1b[0m" in lines[0]
        assert f"\x1b[1;{color}m{'^' * 19}\x1b[0m" in lines[3]
    assert "\x1b" not in render(mistakes(), Terminal())


# --- the line --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "start", "end", "expected"),
    [
        ("\tx = model(y)", 5, 10, "model"),
        ("\u540d\u524d = model(\u5024)", 5, 13, "model(\u5024)"),
        ("\u540d\u524d = model(\u5024)", 0, 2, "\u540d\u524d"),
        ("cafe\u0301 = model(y)", 8, 13, "model"),
        ("a\u202eb\u2066 = model", 7, 12, "model"),
        ("a\x1b[31m = model", 9, 14, "model"),
        ("a\u200bb = model", 6, 11, "model"),
        ("\U0001f525 = model", 4, 9, "model"),
    ],
)
def test_carets_are_below_what_is_meant(source: str, start: int, end: int, expected: str) -> None:
    """Tabs, wide, combining and invisible characters before the place do not move the carets off it."""
    lines = shown(at(source, start, end))
    assert underlined(lines) == expected
    assert lines[2].isprintable()


def test_invisible_characters_are_written_out() -> None:
    """Control characters and marks that turn the direction of text are shown as Python writes them."""
    assert shown(at("a\u202eb\x1b[2Jc\ud800", 0, 1))[2] == "42 | a\\u202eb\\x1b[2Jc\\ud800"


def test_stream_without_unicode_gets_escapes() -> None:
    """Where a stream cannot encode a character, its escape is counted, so that the carets stay right."""
    lines = shown(at("\u540d = model(y)", 4, 9), terminal=Terminal(unicode=False))
    assert lines[2] == "42 | \\u540d = model(y)"
    assert underlined(lines) == "model"


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (replace(LOSS, column=500, end_column=600), " |" + " " * 28 + "^"),
        (replace(LOSS, column=0, end_column=0), " | ^"),
        (replace(LOSS, end_line=50), " |         " + "^" * 19),
        (replace(LOSS, column=15, end_column=3), " |               ^"),
    ],
)
def test_places_outside_of_the_line(finding: Finding, expected: str) -> None:
    """A place beyond the line's ends has one caret at its end, and one of several lines is marked to the end."""
    assert shown(finding)[3] == f"  {expected}"


def test_line_that_is_not_known() -> None:
    """Without the line there is no excerpt, and the rest is as ever."""
    assert shown(replace(LOSS, source=" "))[:2] == [GOLDEN.splitlines()[6], GOLDEN.splitlines()[10]]


@given(st.integers(0, 3000), st.integers(1, 300), st.integers(20, 200))
def test_long_lines_are_cut_around_the_place(start: int, length: int, width: int) -> None:
    """A line never takes more columns than there are, and what is pointed at is in it from its first character."""
    source = "".join(chr(ord("a") + number % 26) for number in range(3500))
    found = excerpt(at(source, start, start + length), width)
    assert found is not None
    assert cell_len(found.before + found.marked + found.after) <= width
    assert found.marked == source[start : start + length][: len(found.marked)]
    assert len(found.marked) == min(length, width - 2)
    assert found.before.removeprefix("\u2026") == source[:start][-len(found.before.removeprefix("\u2026")) or start :]
    assert found.before.startswith("\u2026") == (len(found.before) < start or found.before != source[:start])
    assert found.after.endswith("\u2026")
    if length < width // 2 and start > width:
        assert abs(len(found.before) - len(found.after)) <= 1


def test_width_is_that_of_the_terminal() -> None:
    """A line of code is cut to the terminal's width, and to what code has where nobody knows that."""
    finding = at("x" * 500, 250, 255)
    for terminal, width in (
        (Terminal(width=60), 60),
        (Terminal(width=100, color=True), 100),
        (Terminal(width=80, color=True), 80),
        (Terminal(), 120),
    ):
        code = shown(finding, terminal=terminal)[2]
        assert cell_len(re.sub("\x1b\\[[0-9;]*m", "", code)) == width


def test_endless_line_is_quick() -> None:
    """A thousand findings in a line of ten megabytes take no time that anybody notices."""
    line = "x" * 10_000_000
    with within(5):
        text = render(mistakes(*[at(line, 5_000_000, 5_000_010)] * 1000), Terminal())
    assert max(map(len, text.splitlines())) < 200


# --- hostile ---------------------------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=30))
def test_any_text_keeps_the_form(text: str) -> None:
    """Whatever a file says, the report has the lines that it would have without, and every character can be seen."""
    lines = render(filled_with(text), Terminal()).split("\n")
    excerpts = 3 if text.strip() else 0
    assert len(lines) == 3 * 3 + 3 * excerpts + 4
    assert {unicodedata.category(character)[0] for character in "".join(lines)}.isdisjoint("C")


def test_no_line_begins_a_command() -> None:
    """A path that looks like a command to a runner of GitHub's is shown as a path."""
    assert shown(replace(LOSS, path="::error::x.py"))[0].startswith("./::error::x.py:42:9: OOM102")
    assert not any(line.startswith("::") for line in render(filled_with("::error::x"), Terminal()).splitlines())


@given(any_lint, st.booleans(), st.integers(1, 200))
def test_never_raises(document: LintDocument, color: bool, width: int) -> None:
    """Whatever a document holds, there is a report that UTF-8 can hold."""
    render(document, Terminal(width=width, color=color)).encode("utf-8")


def test_ten_thousand_findings() -> None:
    """All of ten thousand findings are shown, in seconds and megabytes."""
    document = many(10_000)
    with within(5):
        text = render(document, Terminal())
    assert text.count("\nhelp: ") == 10_000
    assert len(text) < 5_000_000
    assert text.endswith("(3333 errors, 3333 warnings, 3334 notes) in 100 files. 2 are suppressed.\n")


def test_order_is_that_of_the_document() -> None:
    """Findings come in the order in which they were found: by file and line, not by how bad they are."""
    assert [line.split(": ")[0] for line in shown(DIVISION, LOSS, EVALUATION) if ": OOM" in line] == [
        "notebooks/fine tune.ipynb:cell 7:3:5",
        "train/loop.py:42:9",
        "train/loop.py:61:13",
    ]
