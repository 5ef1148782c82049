"""Notebooks: their code as one program, where its lines are, and edits that leave all else as it is."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.lint.notebook_format import python_of
from oomdoctor.lint.notebooks import Notebook, parse_notebook
from oomdoctor.lint.source import MOST_TOKENS, Edit, Lines, UnreadableError

IMPORT = "import torch\n"


def cell(source: str | list[str], kind: str = "code") -> dict[str, Any]:
    """A cell as Jupyter writes it."""
    return {"cell_type": kind, "metadata": {}, "outputs": [], "execution_count": None, "source": source}


def lines_of(source: str) -> list[str]:
    """A source as Jupyter writes it, by lines."""
    return source.splitlines(keepends=True)


def notebook(*cells: dict[str, Any], **rest: Any) -> dict[str, Any]:
    """A notebook as Jupyter writes it."""
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5, **rest}


def parsed(*cells: dict[str, Any] | str, **rest: Any) -> Notebook:
    """A notebook's program; texts stand for code cells."""
    whole = notebook(*(cell(lines_of(one)) if isinstance(one, str) else one for one in cells), **rest)
    found = parse_notebook(json.dumps(whole, indent=1).encode())
    assert found is not None
    return found


def test_code_cells_are_one_program() -> None:
    """Each begins on a line of its own; text in between counts as a cell and is no code."""
    found = parsed(IMPORT, cell("# Title", "markdown"), "x = 1\ny = 2", cell("z = 3"))
    assert found.text == "import torch\n\nx = 1\ny = 2\nz = 3\n"
    assert [found.place(line) for line in (1, 3, 4, 5)] == [(1, 1), (3, 1), (3, 2), (4, 1)]


def test_older_notebooks_are_read() -> None:
    """Before nbformat 4 cells lay in worksheets, and their source was called input."""
    old = {
        "metadata": {"name": ""},
        "nbformat": 3,
        "worksheets": [
            {"cells": [{"cell_type": "heading", "source": ["x"]}, {"cell_type": "code", "input": [IMPORT, "x = 1"]}]},
            {"cells": [{"cell_type": "code", "input": "y = 2", "language": "python"}]},
        ],
    }
    found = parse_notebook(json.dumps(old).encode())
    assert found is not None
    assert found.text == "import torch\nx = 1\ny = 2\n"
    assert found.place(3) == (3, 1)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("%matplotlib inline\nx = 1", "0                 \nx = 1"),
        ("!pip install torch\nx = 1", "0                 \nx = 1"),
        ("!pip install \\\n  torch\nx = 1", "0             \n       \nx = 1"),
        ("%time x = f(1)", "0    ;x = f(1)"),
        ("%timeit -n 10 -r 3 f(x)", "0                 ;f(x)"),
        ("%time for x in y: pass", "0                     "),
        ("for x in y:\n    %time f(x)\n    !ls {x}", "for x in y:\n    0    ;f(x)\n    0      "),
        ("files = !ls -l\nx = 1", "files = 0     \nx = 1"),
        ("a, b = %sql select 1", "a, b = 0            "),
        ("x.shape?\n?x\nx??\n??x", "0       \n0 \n0  \n0  "),
        ("%%time\nx = 1", "      \nx = 1"),
        ("%%capture out\n%%timeit -n 1\nx = 1", "             \n             \nx = 1"),
        ("\n%%time\n%load_ext x\nx = 1", "\n      \n0          \nx = 1"),
        ("pip install -q torch\nx = 1", "0                   \nx = 1"),
        ("x = '''\n%time\n!ls'''\n%time", "x = '''\n%time\n!ls'''\n0    "),
        ("x = (a\n%b)\n!ls", "x = (a\n%b)\n0  "),
        ("x = a \\\n % b\n!ls", "x = a \\\n % b\n0  "),
        ("x = a != b\n# !ls\n!ls", "x = a != b\n# !ls\n0  "),
        ("!ls\r\nx = 1\r\n", "0  \r\nx = 1\r\n"),
        ("await f()", "await f()"),
        ("x %= 2", "x %= 2"),
    ],
)
def test_what_is_for_ipython_makes_way(written: str, read: str) -> None:
    """All else stays where it is, and what is left is a program."""
    assert python_of(written) == read
    ast.parse(read)


@pytest.mark.parametrize(
    "magic", ["%%bash", "%%writefile train.py", "%%html", "%%javascript", "%%cython", "%%script x"]
)
def test_cells_in_other_languages_are_left_out(magic: str) -> None:
    """They still count as cells."""
    assert python_of(f"{magic}\nx = 1\n") is None
    found = parsed(IMPORT, f"{magic}\n)(\n", "x = 1")
    assert found.text == "import torch\n\nx = 1\n"
    assert found.place(3) == (3, 1)
    assert found.broken == ()


@given(st.text("%!?x = 1()'\"\\\n\r#é;time pip", max_size=50))
def test_any_cell_keeps_its_shape(text: str) -> None:
    """Whatever is in a cell, its lines and the place of each character stay."""
    found = python_of(text)
    if found is not None:
        assert len(found) == len(text)
        assert re.findall("\r\n|\r|\n", found) == re.findall("\r\n|\r|\n", text)


def test_magics_take_time_with_the_length_only() -> None:
    """Cells made to be slow are not."""
    for piece in ("%%time\n", "!ls \\\n", "'''", "x = !y\n", "(\n", "\\\n", "%time x\n"):
        python_of(piece * (60_000 // len(piece)) + ")")


def test_a_cell_that_does_not_parse_is_left_out_and_named() -> None:
    """The others go on; two halves of one statement are not joined."""
    found = parsed(IMPORT, "if x:", "    y = 1", "z = (1,\n 2))", "w = 4")
    assert found.text == "import torch\n\nw = 4\n"
    assert [error.cell for error in found.broken] == [2, 3, 4]
    assert (found.broken[2].problem, found.broken[2].line, found.broken[2].column) == ("unmatched ')'", 2, 4)
    assert found.place(3) == (5, 1)


def test_cells_that_python_gives_up_on_are_broken() -> None:
    """Half of a surrogate pair, or brackets without end."""
    found = parsed(IMPORT, cell("x = '\ud800'"), "x = " + "-" * 10_000 + "1", "x = " + "(" * 1000)
    assert [error.cell for error in found.broken] == [2, 3, 4]


def test_what_is_shown_is_what_was_written() -> None:
    """Lines of the program and of the cells' own text go together."""
    found = parsed(IMPORT, "!ls\n%time x = f(1)")
    assert Lines(found.shown()).line(4) == "%time x = f(1)"
    assert Lines(found.text).line(4) == "0    ;x = f(1)"


@pytest.mark.parametrize(
    "rest",
    [
        {"metadata": {"kernelspec": {"language": "R"}}},
        {"metadata": {"language_info": {"name": "julia"}}},
    ],
)
def test_notebooks_in_other_languages_are_passed_over(rest: dict[str, Any]) -> None:
    """Even if a cell would parse."""
    assert parse_notebook(json.dumps(notebook(cell(IMPORT), **rest)).encode()) is None


def test_notebooks_without_torch_are_passed_over() -> None:
    """Their broken cells go by."""
    assert parse_notebook(json.dumps(notebook(cell("import os"), cell("x = ("))).encode()) is None


@pytest.mark.parametrize(
    ("data", "problem", "place"),
    [
        (b"", "not a notebook: ends in the middle", (1, 1)),
        (b'{"cells": [', "not a notebook: ends in the middle", (1, 12)),
        (b'{"cells":\n [}]}', "not a notebook: `}` is out of place", (2, 3)),
        (b'{"cells": ["a]}', "not a notebook: a string that does not end", (1, 12)),
        (b'{"a": 1}', "not a notebook: it has no cells", (1, 1)),
        (b'{"nbformat": 4}', "not a notebook: it has no cells", (1, 1)),
        (b"[1, 2]", "not a notebook: it has no cells", (1, 1)),
        (b'{"cells": []} x', "not a notebook: there is more after the end of the document", (1, 15)),
        (b"[" * 300, "not a notebook: nested too deeply", (1, 201)),
        (b"import torch\n", "not a notebook: no JSON", (1, 1)),
        (b'{"cells": [{"cell_type": "code", "source": "\xff"}]}', "not a notebook: not UTF-8", (None, None)),
    ],
)
def test_what_is_no_notebook_is_refused(data: bytes, problem: str, place: tuple[int | None, int | None]) -> None:
    """With the place at which reading stopped."""
    with pytest.raises(UnreadableError) as caught:
        parse_notebook(data)
    assert (caught.value.problem, (caught.value.line, caught.value.column)) == (problem, place)


@given(st.data())
def test_any_bytes_are_read_or_refused(data: st.DataObject) -> None:
    """Nothing else is raised, and what is JSON for us is JSON for Python."""
    whole = bytearray(json.dumps(notebook(cell([IMPORT, "x = 'é\\n'"]), cell("")), indent=1).encode())
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place : place + data.draw(st.integers(0, 9))] = data.draw(st.sampled_from([b"", b'"', b"{", b"]", b"\\", b",", b"\xff", b"\0"]))  # fmt: skip  # noqa: E501 - one choice
    try:
        parse_notebook(bytes(whole))
    except UnreadableError:
        return
    json.loads(whole.decode(errors="replace"))  # outputs, which nobody decodes, may hold any bytes


def test_odd_values_are_passed_over() -> None:
    """Cells that are no objects, sources that are no texts."""
    odd: list[Any] = [1, None, [], {}, {"cell_type": 3}, {"cell_type": "code"}, cell(3), cell([1, IMPORT, None, "x"])]  # type: ignore[arg-type, list-item]
    assert parsed(*odd).text == "import torch\nx\n"


def test_more_code_than_is_accepted_is_refused() -> None:
    """The limit is that of scripts."""
    with pytest.raises(UnreadableError, match="more than 100,000 tokens"):
        parsed(IMPORT, *["a;" * 10_000] * (MOST_TOKENS // 20_000 + 1))


ALTERED = {
    "compact": lambda whole: json.dumps(whole, separators=(",", ":")),
    "indent 1": lambda whole: json.dumps(whole, indent=1) + "\n",
    "indent 4, not ascii": lambda whole: json.dumps(whole, indent=4, ensure_ascii=False),
    "tabs, sorted": lambda whole: json.dumps(whole, indent="\t", sort_keys=True),
    "with a mark": lambda whole: "\ufeff" + json.dumps(whole, indent=1, ensure_ascii=False),
}


@pytest.mark.parametrize("form", ALTERED)
@pytest.mark.parametrize("in_lines", [True, False])
def test_edits_change_their_cell_and_nothing_else(form: str, in_lines: bool) -> None:
    """Indents, escapes, outputs and the order of keys stay byte for byte."""

    def written(second: str) -> bytes:
        sources = [lines_of(one) if in_lines else one for one in (IMPORT, second)]
        whole = notebook(cell("é", "markdown"), *map(cell, sources), metadata={"z": 1.50, "a": "\u00e9/\\/"})
        return str(ALTERED[form](whole)).encode()

    found = parse_notebook(written("é = '😀\\n'\nlast = é + 1\n# end"))
    assert found is not None
    text = Lines(found.text)
    edits = [Edit((3, 0), (3, 2), "ö"), Edit((4, 7), (4, 9), '"q"'), Edit((4, 0), (4, 0), "with a:\n    ")]
    assert text.line(4) == "last = é + 1"
    assert found.edited(edits) == written("ö = '😀\\n'\nwith a:\n    last = \"q\" + 1\n# end")
    assert found.edited(()) == found.data


def test_a_deleted_line_leaves_no_empty_string() -> None:
    """A source in lines stays one string a line."""
    found = parsed(IMPORT, "a\nb\nc\n")
    edited = json.loads(found.edited([Edit((4, 0), (5, 0), "")]))
    assert edited["cells"][1]["source"] == ["a\n", "c\n"]


def test_strings_that_an_edit_does_not_touch_keep_their_escapes() -> None:
    """Even those that no program would write."""
    data = (
        rb'{"cells": [{"cell_type": "code", "source": ["import torch\n",'
        b"\n"
        rb'  "\u0078 = \"\/\"\n", "\u0079 = \u00e9"]}]}'
    )
    found = parse_notebook(data)
    assert found is not None
    assert found.edited([Edit((3, 4), (3, 6), "z")]) == data.replace(rb"\u00e9", b"z")
    assert found.edited([Edit((2, 5), (2, 6), "!")]) == data.replace(rb"\/", b"!")


def test_an_edit_may_not_leave_its_cell() -> None:
    """Cells are edited one by one."""
    found = parsed(IMPORT, "x = 1", "y = 2")
    with pytest.raises(ValueError, match="over the end of its cell"):
        found.edited([Edit((3, 0), (4, 2), "")])


@given(
    sources=st.lists(st.text('ab\n"\\é😀/', max_size=12), min_size=1, max_size=3),
    spot=st.tuples(st.integers(0, 40), st.integers(0, 5)),
    new=st.text('x\n"\\é', max_size=3),
    escape=st.booleans(),
)
def test_an_edit_does_to_the_cell_what_it_would_do_to_its_text(
    sources: list[str], spot: tuple[int, int], new: str, *, escape: bool
) -> None:
    """Wherever it lies, and however the strings are cut."""
    whole = "# import\nimport torch\n'''" + "".join(sources).replace("\\", "/").replace('"', "-") + "'''"
    cuts = ["# import\n", "import torch\n'''", *(one.replace("\\", "/").replace('"', "-") for one in sources), "'''"]
    found = parse_notebook(json.dumps(notebook(cell(cuts)), ensure_ascii=escape).encode())
    assert found is not None
    start = min(spot[0], len(whole))
    end = min(start + spot[1], len(whole))

    def at(offset: int) -> tuple[int, int]:
        before = whole[:offset].split("\n")
        return len(before), len(before[-1].encode())

    edited = json.loads(found.edited([Edit(at(start), at(end), new)]))
    assert "".join(edited["cells"][0]["source"]) == whole[:start] + new + whole[end:]
