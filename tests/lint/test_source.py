"""From bytes to text: encodings, what is refused, and what has to do with torch."""

from __future__ import annotations

import ast
import codecs
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import PEAK

from oomdoctor.lint.notebooks import parse_document, read_document
from oomdoctor.lint.source import (
    FOUNDATIONS,
    MOST_BYTES,
    MOST_FIELDS,
    MOST_TOKENS,
    Edit,
    Lines,
    UnreadableError,
    check_size,
    decode,
    read,
    stands_on_torch,
)


@pytest.mark.parametrize(
    ("data", "text", "encoding"),
    [
        (b"x = 'caf\xc3\xa9'\n", "x = 'café'\n", "utf-8"),
        (codecs.BOM_UTF8 + b"x = 1\n", "x = 1\n", "utf-8"),
        (b"# coding: latin-1\nx = 'caf\xe9'\n", "# coding: latin-1\nx = 'café'\n", "iso8859-1"),
        (b"#!python\n# -*- coding: cp1252 -*-\n'\x80'", "#!python\n# -*- coding: cp1252 -*-\n'€'", "cp1252"),
        (b"\f# vim: set fileencoding=utf8 :\n", "\f# vim: set fileencoding=utf8 :\n", "utf-8"),
        (b"x = 1\n# coding: latin-1\n", "x = 1\n# coding: latin-1\n", "utf-8"),
        (b"# coding: shift_jis\nx = '\x82\xa0'\n", "# coding: shift_jis\nx = 'あ'\n", "shift_jis"),
        (b"", "", "utf-8"),
    ],
)  # fmt: skip
def test_a_script_is_decoded_as_python_decodes_it(data: bytes, text: str, encoding: str) -> None:
    """The byte order mark and the coding line say how, else it is UTF-8."""
    script = decode(data)
    assert (script.text, script.encoding) == (text, encoding)
    assert ast.dump(ast.parse(script.text)) == ast.dump(ast.parse(data))


@pytest.mark.parametrize(
    ("data", "problem", "place"),
    [
        ("import torch".encode("utf-16"), "written in UTF-16, which Python does not read", (1, 1)),
        ("import torch".encode("utf-32"), "written in UTF-32, which Python does not read", (1, 1)),
        (b"x = 1\n'\xc3\xa9' + '\xe9'\n", "byte 0xe9 is not utf-8: invalid continuation byte", (2, 8)),
        (b"x = 1\r\ny = \0\r\n", "holds a NUL byte", (2, 5)),
        (b"# coding: klingon\n", "unknown encoding `klingon`", (1, 1)),
        (b"# coding: zlib\n", "`zlib` is not an encoding for scripts", (1, 1)),
        (b"# coding: punycode\n", "`punycode` is not an encoding for scripts", (1, 1)),
        (b"# coding: utf-16\n", "`utf-16` is not an encoding for scripts", (1, 1)),
        (codecs.BOM_UTF8 + b"# coding: l1\n", "begins with the UTF-8 byte order mark but declares `l1`", (1, 1)),
        (b"# coding: ascii\n\xe9", "byte 0xe9 is not ascii: ordinal not in range(128)", (2, 1)),
    ],
)  # fmt: skip
def test_what_is_no_text_is_refused_at_its_place(data: bytes, problem: str, place: tuple[int, int]) -> None:
    """The message says what is wrong, and where."""
    with pytest.raises(UnreadableError) as caught:
        decode(data)
    assert (caught.value.problem, (caught.value.line, caught.value.column)) == (problem, place)


@given(st.binary(max_size=200) | st.text("#coding:=utf-8latin1\n\r\f \0", max_size=60).map(str.encode))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    """Nothing else is raised, and what is decoded is written back as it was."""
    try:
        script = decode(data)
    except UnreadableError:
        return
    assert script.edited(()) == data


def test_edits_keep_the_mark_the_encoding_and_the_line_ends() -> None:
    """All that is not edited stays byte for byte; new lines end as the others do."""
    data = codecs.BOM_UTF8 + "a = 'é'\r\n\fb = 'ü' + c\r\n\tlast".encode()
    script = decode(data)
    edits = [Edit((2, 5), (2, 9), "x\ny"), Edit((1, 0), (1, 0), "# first\n")]
    assert script.edited(edits) == codecs.BOM_UTF8 + "# first\r\na = 'é'\r\n\fb = x\r\ny + c\r\n\tlast".encode()


def test_edits_that_overlap_are_refused() -> None:
    """Two edits that want one place are the caller's mistake; the same edit twice is one."""
    script = decode(b"abcdef")
    with pytest.raises(ValueError, match="overlap"):
        script.edited([Edit((1, 0), (1, 3), "x"), Edit((1, 2), (1, 4), "y")])
    assert script.edited([Edit((1, 0), (1, 3), "x"), Edit((1, 0), (1, 3), "x")]) == b"xdef"


@given(st.text("ab é\U0001f600\n\r\f\x0b\x1c\u2028", max_size=40))
def test_lines_and_columns_are_those_of_ast(text: str) -> None:
    """A line ends where Python says, and a column in bytes leads to the character that is there."""
    lines = Lines(text)
    for number, expected in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        assert lines.line(number) == expected
        for index in range(len(expected) + 1):
            assert lines.column(number, len(expected[:index].encode())) == index
    assert len(lines) == text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + (
        not text.endswith(("\n", "\r")) and bool(text)
    )


@pytest.mark.parametrize(
    "text",
    [
        "import torch",
        "import os, torch.nn as nn",
        "from torch import nn\n",
        "try:\n    from torch.utils import data\nexcept ImportError: pass",
        "if x: import torch",
        "import os; import torch",
        "import os\rimport torch",
        "from .base import Model\n\ndef run(o):\n    o.zero_grad()\n",
        "from\ttorch import nn",
        *(f"import {name}" for name in sorted(FOUNDATIONS)),
    ],
)
def test_what_imports_torch_or_stands_on_it_is_linted(text: str) -> None:
    """However the import is written; and a loop that clears gradients needs none."""
    assert stands_on_torch(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "import os", "import tensorflow as tf", "from torchless import x", "x = 'torch'", "import os  # torch",
        "import jax\nx = torch",
    ],
)  # fmt: skip
def test_what_does_not_is_passed_over(text: str) -> None:
    """A word is not an import; even a syntax error goes by."""
    assert not stands_on_torch(text)
    assert parse_document((text + "\n)(").encode(), "a.py") is None


def test_looking_for_torch_takes_time_with_the_length_only() -> None:
    """Lines made to be slow are not."""
    for piece in (";import ", ":from a", "\rimport\t", "import a,", " "):
        assert not stands_on_torch(piece * (1_000_000 // len(piece)))


def test_what_would_take_too_much_memory_is_refused() -> None:
    """By bytes before it is read, by tokens before it is parsed."""
    with pytest.raises(UnreadableError, match="more than 4 MiB"):
        parse_document(b" " * (MOST_BYTES + 1), "a.py")
    with pytest.raises(UnreadableError, match="more than 100,000 tokens"):
        check_size("a;" * (MOST_TOKENS // 2 + 1))
    with pytest.raises(UnreadableError, match="more than 100,000 tokens"):
        check_size("{" * (MOST_FIELDS + 1))
    check_size("a;" * (MOST_TOKENS // 2) + " " * MOST_TOKENS)
    check_size("x = '" + "word " * 10 + "'" * 10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "import torch\n" + "a;" * ((MOST_TOKENS - 10) // 2),
        "import torch\nx=[" + "a," * ((MOST_TOKENS - 10) // 2) + "]",
        "import torch\nx=[" + "1," * ((MOST_TOKENS - 10) // 2) + "+]",
        'import torch\nx=f"' + "{a}" * (MOST_FIELDS - 10) + '"',
        "import torch\nx='" + "a" * (MOST_BYTES - 40) + "\U0001f600'",
    ],
    ids=["statements", "names", "broken", "fields", "long line"],
)
def test_linting_stays_below_300_mb(tmp_path: Path, text: str) -> None:
    """The largest of what is accepted, made to be expensive, is within what lint may take."""
    (tmp_path / "a.py").write_text(text)
    code = (
        "from oomdoctor.lint.engine import lint; from oomdoctor.lint.settings import LintSettings\n"
        f"lint(['a.py'], LintSettings()); print({PEAK})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300_000


def test_reading_never_waits(tmp_path: Path) -> None:
    """Pipes, devices and folders are refused at once, and what is not there says so."""
    os.mkfifo(tmp_path / "pipe.py")
    for path in (tmp_path / "pipe.py", Path("/dev/zero"), Path("/dev/tty")):
        with pytest.raises(UnreadableError, match=r"not a regular file|cannot be read: No such device"):
            read(path, 10)
    with pytest.raises(UnreadableError, match="cannot be read: No such file or directory"):
        read(tmp_path / "gone.py", 10)
    with pytest.raises(UnreadableError, match=r"cannot be read: Is a directory|not a regular file"):
        read(tmp_path, 10)


def test_the_ending_tells_a_notebook(tmp_path: Path) -> None:
    """Any other file is a script."""
    (tmp_path / "a.ipynb").write_text("import torch\n")
    (tmp_path / "train").write_text("import torch\n")
    with pytest.raises(UnreadableError, match="not a notebook"):
        read_document(tmp_path / "a.ipynb")
    document = read_document(tmp_path / "train")
    assert document is not None
    assert document.text == "import torch\n"
    assert document.place(7) == (None, 7)
