"""What GitHub shows of what lint found, and that nobody's code becomes markup in it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from clock import within
from every_format import WICKED
from hypothesis import given
from hypothesis import strategies as st
from lint_documents import any_lint, clean, filled_with, many, mistakes
from markdown_it import MarkdownIt
from test_probe_markdown import HOSTILE, inline

from oomdoctor.report.lint import MOST_IN_COMMENT as MOST_FINDINGS
from oomdoctor.report.lint import markdown as render
from oomdoctor.results import LintDocument

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
LONGEST_COMMENT = 65_536
hostile = st.sampled_from(HOSTILE) | st.text(alphabet="`|\\<>&@#*_-+=.()[]!~$1a \n", max_size=20) | st.text(max_size=20)
EXPECTED = """\
### 3 findings (1 error, 1 warning, 1 note) in 12 files

1 can be fixed with `--fix`. 2 are suppressed. 1 file could not be linted.

#### `notebooks/fine tune.ipynb`

| line | rule | what | instead |
| --- | --- | --- | --- |
| cell 7, 3:5 | note `OOM202` | `loss` is not divided by `accumulation_steps`, so its gradient is too large. | Divide \
it before `backward`. |

#### `train/loop.py`

| line | rule | what | instead |
| --- | --- | --- | --- |
| 42:9 | error `OOM102` | `losses` keeps the graph of every step alive. | Append `loss.item()`. |
| 61:13 | warning `OOM101` | `model` runs in `evaluate` without `torch.no_grad()`. | Decorate `evaluate` with \
`@torch.no_grad()`. |

#### Not linted

| file | where | why |
| --- | --- | --- |
| `train/old.py` | 3:7 | Python 2: `print` without parentheses. |

12 files, 3410 lines, 3 rules; 30 files without torch were skipped, `oomdoctor 0.1.0`, `python 3.11.9`
"""


def plain(document: LintDocument) -> str:
    """The comment; no terminal changes it."""
    return render(document)


def test_report() -> None:
    """The comment opens with the sum, and has a table a file."""
    assert plain(mistakes()) == EXPECTED


def test_clean() -> None:
    """Where nothing was found the comment says so, and what was looked at."""
    assert plain(clean(skipped_files=0)) == (
        "### No findings in 12 files\n\n12 files, 3410 lines, 3 rules, `oomdoctor 0.1.0`, `python 3.11.9`\n"
    )


@given(hostile)
def test_code_never_changes_the_structure(text: str) -> None:
    """The blocks of a comment are the same whatever a source file says."""
    assert structure(text) == structure("benign")


def structure(text: str) -> list[tuple[str, str]]:
    """Types of a document's blocks and the raw HTML in it, with `text` in each place that users control."""
    document = filled_with(text if text.strip() else "benign")
    tokens = PARSER.parse(plain(document))
    blocks = [(token.type, token.content if token.type == "html_block" else "") for token in tokens]
    return blocks + [
        (token.type, token.content) for token in inline(tokens) if token.type in ("html_inline", "image", "link_open")
    ]


@given(any_lint)
def test_never_raises(document: LintDocument) -> None:
    """Whatever a document holds, it renders to text that can be written."""
    assert plain(document).encode("utf-8").endswith(b"\n")


@pytest.mark.parametrize("text", [WICKED * 100, "|" * 1000, "x" * 10_000])
def test_a_comment_always_fits(text: str) -> None:
    """However long its words are, a comment has no more characters than GitHub takes, and none of its rows is cut."""
    sample = filled_with(text)
    found = sample.result.findings * 500
    written = plain(replace(sample, result=replace(sample.result, findings=found, unreadable=())))
    assert len(written) < LONGEST_COMMENT
    assert re.search(r"\n\n\.\.\. and \d+ more\.\n\n", written)
    assert {line[-2:] for line in written.splitlines() if line.startswith("| ")} == {" |"}


def test_ten_thousand_findings() -> None:
    """Of ten thousand findings as many are shown as a comment of GitHub's holds, and the others are counted."""
    document = many(10_000)
    with within(2):
        text = plain(document)
    assert len(text) < LONGEST_COMMENT
    assert text.count("`OOM102`") == MOST_FINDINGS
    assert "\n\n... and 9800 more.\n\n" in text
