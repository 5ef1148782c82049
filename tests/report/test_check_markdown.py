"""What GitHub shows of what a check found, and that nobody's text becomes markup in it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from check_documents import ACTIVATIONS, LOST, SMALL, WEIGHTS, any_check, broken, check, endless, filled_with, many
from check_documents import passed as that_passed
from clock import within
from every_format import WICKED
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from test_probe_markdown import HOSTILE, inline

from oomdoctor.report.check import markdown as render
from oomdoctor.results import CheckDocument

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
LONGEST_COMMENT = 65_536
hostile = st.sampled_from(HOSTILE) | st.text(alphabet="`|\\<>&@#*_-+=.()[]!~$1a \n", max_size=20) | st.text(max_size=20)
EXPECTED = """\
### 2 of 3 entries did not pass: 1 in error, 1 failed

| entry | card | largest micro-batch | accumulation steps | verdict |
| --- | --- | --: | --: | --- |
| `vision` | local GPU | - | - | **error** |
| `pretrain on rtx-4090` | `rtx-4090` | 6 | 43 | **failed** |
| `finetune` | `a100` | 32 | 8 | passed |

#### `vision`

`train/vision.py` has no `make_batch`

```text
Traceback (most recent call last):
  File "train/vision.py", line 3, in <module>
NameError: name 'x'
```

hint: add these lines:

```text
    def make_batch(batch_size):
        ...
```

#### `pretrain on rtx-4090`

- **min-micro-batch**: micro-batch 6 fits, and at least 8 is asked for
- **baseline**: 2 figures are worse than the baseline by more than 2%

| changed | baseline | now |
| --- | --: | --: |
| **activations +412.00 MiB at micro-batch 8, +61 % in `encoder.layers.*`** | 675.00 MiB | 1.06 GiB |
| **maximum micro-batch 9 -> 6** | 9 | 6 |

<details>
<summary>Also changed</summary>

| changed | baseline | now |
| --- | --: | --: |
| weights -1.00 MiB | 475.00 MiB | 474.00 MiB |

</details>

- If these changes are intended, `oomdoctor check --update` writes them to the baseline; commit that file.
- `oomdoctor prescribe 'train/model.py:build_model(depth=24)' --gpu rtx-4090 --precision bf16 \
--capacity 23700MiB --need 8` measures what makes it fit, and writes the patch.
- `oomdoctor check --format html -o check.html` draws where the memory is.

`oomdoctor.toml`, `oomdoctor 0.1.0`, `python 3.11.9`, `torch 2.15.0+cu132`, `cuda 13.2`
"""


def plain(document: CheckDocument) -> str:
    """The comment; no terminal changes it."""
    return render(document)


def test_report() -> None:
    """The comment opens with the sum and a table of all entries; those that did not pass have a section each."""
    assert plain(check()) == EXPECTED


def test_all_passed() -> None:
    """Where all passed the comment is the table, and what moved without failing anything is folded."""
    text = plain(check(that_passed(movements=(WEIGHTS,))))
    assert text.startswith("### 1 entry passed\n\n| entry |")
    assert "####" not in text
    folded = text[text.index("<details>") : text.index("</details>")]
    assert "<summary>What changed in entries that passed</summary>" in folded
    assert "| `finetune` | weights -1.00 MiB | 475.00 MiB | 474.00 MiB |" in folded


def test_warnings_stand_out() -> None:
    """Warnings of all entries are an alert under the sum."""
    text = plain(check(that_passed(warnings=("see `nvidia-smi`",))))
    assert "\n\n> [!WARNING]\n> - `finetune`: see `nvidia-smi`\n\n|" in text


def test_unknown_figures() -> None:
    """A figure that the baseline does not have, or that is gone, is a dash."""
    new, gone = replace(ACTIVATIONS, before=None), replace(WEIGHTS, after=None)
    text = plain(check(broken(movements=(new, gone))))
    assert "`encoder.layers.*`** | - | 1.06 GiB |" in text
    assert "| weights -1.00 MiB | 475.00 MiB | - |" in text


@settings(deadline=None)
@example("`<img src=x>")
@given(hostile)
def test_text_never_changes_the_structure(text: str) -> None:
    """The blocks of a comment are the same whatever a document's text says."""
    filled = " ".join(text.split()) or "benign"
    assert structure(filled) == structure("benign")


def structure(text: str) -> list[tuple[str, str]]:
    """Types of a document's blocks and the raw HTML in it, with `text` in each place that users control."""
    tokens = PARSER.parse(plain(filled_with(text)))
    blocks = [(token.type, token.content if token.type == "html_block" else "") for token in tokens]
    return blocks + [
        (token.type, token.content) for token in inline(tokens) if token.type in ("html_inline", "image", "link_open")
    ]


@pytest.mark.parametrize("text", ["```\n</details>\n# x", "\n\n\n", "~~~\n```\n````", "<script>\n\n# x"])
def test_lines_of_a_problem_stay_in_their_block(text: str) -> None:
    """Several lines of a problem are one block of code, whatever is in them, and one message or none."""
    problem = replace(LOST, details=text, hint=f"first\n{text}")
    tokens = PARSER.parse(plain(check(replace(check().result.entries[2], problem=problem))))
    assert sum(token.type == "heading_open" for token in tokens) == 2
    assert sum(token.type == "html_block" for token in tokens) == 0
    assert all(line in "".join(token.content for token in tokens if token.type == "fence") for line in text.split())


@pytest.mark.parametrize("text", [WICKED, "::error::x", " ::error::x", "x\n  ::error::x", "##[error]x"])
def test_no_line_is_a_command(text: str) -> None:
    """In a job of GitHub's no line of a comment that is printed is a command of its own."""
    for line in plain(filled_with(text)).splitlines():
        assert not line.lstrip().startswith("::")
        assert "##[" not in line


@settings(deadline=None)
@given(any_check)
def test_never_raises(document: CheckDocument) -> None:
    """Whatever a document holds, it renders to text that can be written."""
    assert plain(document).encode("utf-8").endswith(b"\n")


@pytest.mark.parametrize("text", ["x", WICKED * 100, "|" * 1000, "`" * 1000, "*_" * 5000, "x\n" * 5000])
def test_a_comment_always_fits(text: str) -> None:
    """However much there is to say, a comment has no more characters than GitHub takes, and no row is cut."""
    entries = [
        replace(entry, limits=entry.limits * 50, movements=entry.movements * 50, warnings=entry.warnings * 50)
        for entry in filled_with(text).result.entries * 100
    ]
    written = plain(replace(filled_with(text), result=replace(filled_with(text).result, entries=tuple(entries))))
    assert len(written) < LONGEST_COMMENT
    assert re.search(r"\n\n\.\.\. and \d+ more\.\n\n", written)
    assert {line[-2:] for line in written.splitlines() if line.startswith("| ")} == {" |"}


@pytest.mark.parametrize("document", [many(10_000), endless(10_000)], ids=["entries", "limits"])
def test_ten_thousand(document: CheckDocument) -> None:
    """Ten thousand entries, or limits and movements of one, fit into a comment, and what is left out is counted."""
    with within(5):
        text = plain(document)
    assert len(text) < LONGEST_COMMENT
    assert re.search(r"\.\.\. and [0-9]+ more", text)
    assert SMALL.text in text
