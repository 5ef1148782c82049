"""Scripts that nobody meant, through the whole of lint; `tests/bench/lint_fuzz.py` runs the hundred thousand."""

from __future__ import annotations

import io

import lint_cases
import pytest
from clock import within
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lint_mutations import GIANTS, PIECES, mutated, seeds

from oomdoctor.lint.engine import lint
from oomdoctor.lint.settings import LintSettings
from oomdoctor.results import LintResult

LIMIT_SECONDS = 5.0
INPUTS = 250
QUICK_GIANTS = tuple(name for name in GIANTS if "10 MB" not in name)

relaxed = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def linted(data: bytes, name: str = "script.py") -> LintResult:
    """What lint says of these bytes."""
    return lint(["-"], LintSettings(stdin_filename=name), io.BytesIO(data)).result


@pytest.mark.parametrize("part", range(5))
def test_a_script_that_nobody_meant_is_linted_or_refused(part: int) -> None:
    """Cut, doubled and shuffled scripts and notebooks end in findings or in a file that is not readable, soon."""
    for number in range(part, INPUTS, 5):
        name, data = mutated(number)
        with within(LIMIT_SECONDS, number):
            linted(data, name)


@pytest.mark.parametrize("name", QUICK_GIANTS)
def test_what_is_deep_or_branches_out_ends_soon(name: str) -> None:
    """Depth, length and calls in circles cost no more than a few seconds, and no crash."""
    data = GIANTS[name]().encode()
    with within(LIMIT_SECONDS):
        linted(data)


@pytest.mark.parametrize("name", [name for name in GIANTS if "10 MB" in name])
def test_ten_megabytes_are_refused_in_words(name: str) -> None:
    """A file of 10 MB is reported as too large, whatever is in it."""
    result = linted(GIANTS[name]().encode())
    assert [one.problem.partition(":")[0] for one in result.unreadable] == ["too large"]


@relaxed
@given(data=st.data())
def test_pieces_put_anywhere_do_no_harm(data: st.DataObject) -> None:
    """A script with hostile pieces at any line's start is linted or refused."""
    text = data.draw(st.sampled_from(seeds()))
    for piece in data.draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3)):
        lines = text.splitlines(keepends=True)
        at = data.draw(st.integers(0, len(lines)))
        text = "".join([*lines[:at], piece, *lines[at:]])
    linted(text.encode(errors="surrogatepass"))


@relaxed
@given(body=st.binary(max_size=300))
def test_bytes_that_are_no_text_do_no_harm(body: bytes) -> None:
    """Any bytes behind a line that imports torch are linted or refused, in a script as in a notebook."""
    linted(b"import torch\n" + body)
    linted(b'{"cells": [{"cell_type": "code", "source": "import torch\\n' + body + b'"}]}', "notes.ipynb")


def test_a_finding_outlives_what_stands_around_it() -> None:
    """A mistake is still found between pieces that parse: the rest of the file does not hide it."""
    text = lint_cases.case("OOM121/bad_recursive").text
    around = GIANTS["elif"]()
    assert "OOM121" in {finding.code for finding in linted((text + "\n" + around).encode()).findings}
