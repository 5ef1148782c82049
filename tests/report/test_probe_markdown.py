"""What GitHub shows, and that nobody's text becomes markup in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import documents
import pytest
from documents import gpt2, nothing_fits
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from memory_documents import profiled, step_memory

from oomdoctor.report.markdown import code, code_block, prose
from oomdoctor.report.plain_text import clean
from oomdoctor.report.probe.markdown import render
from oomdoctor.results import Category, ModuleBytes, ProbeDocument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from markdown_it.token import Token

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
HOSTILE = [
    "a|b\\|c",
    "`` ` ``",
    "<img src=x onerror=alert(1)>",
    "</details><h1>x",
    "[x](https://example.org)",
    "![x](y)",
    "**b** _i_ ~~s~~",
    "# heading",
    "1. one",
    "- item",
    "> quote",
    "---",
    "```\ncode\n```",
    "&lt;b&gt;",
    "a\n\nb",
    "\\",
    "`unpaired",
    "@someone",
    "<https://example.org>",
    "$x$",
]
hostile = st.sampled_from(HOSTILE) | st.text(alphabet="`|\\<>&@#*_-+=.()[]!~$1a \n", max_size=20) | st.text(max_size=20)


def plain(document: ProbeDocument) -> str:
    """The comment; no terminal changes it."""
    return render(document)


def visible(text: str) -> str:
    """Text as its reader sees it, white space runs made one and invisible characters dropped."""
    return " ".join(text.replace("\u200b", "").split())


def inline(tokens: Iterable[Token]) -> list[Token]:
    """The innermost tokens."""
    return [child for token in tokens for child in (token.children or [])]


def shown(markdown: str) -> str:
    """What a reader sees of one paragraph."""
    return visible("".join(token.content for token in inline(PARSER.parse(markdown))))


def test_answer_plan_and_tables_are_there() -> None:
    """The comment opens with the answer and holds what a trainer can type."""
    text = plain(gpt2())
    assert text.startswith("### micro-batch 19 fits; 20 runs out in backward, iteration 2\n")
    assert "| exact | `accumulation_steps=14` | 14 micro-batches: 4 of 19, 10 of 18 |" in text
    assert "| 2 | backward | 1.87 GiB | 22.62 GiB | 98% |" in text
    assert "| 20 | out of memory | 23.14 GiB | 23.14 GiB | 2 | 0.35 |" in text
    assert "<summary>4 trials in 1.2 s</summary>" in text
    assert "```text\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.92 GiB." in text
    assert "- `device`: a null GPU, since `--gpu rtx-4090` names a card that is not here" in text


def test_nothing_fits() -> None:
    """Where nothing fits there is no plan, and the lack is a figure."""
    text = plain(nothing_fits())
    assert text.startswith("### nothing fits; loading the model runs out of memory\n")
    assert "The weights alone exceed the capacity by 3.00 GiB (26.14 GiB into 23.14 GiB)." in text
    assert "To reach" not in text


def test_what_memory_is_made_of() -> None:
    """The peak by category and by module is folded."""
    text = plain(profiled())
    assert "<summary>Memory at micro-batch 19</summary>\n\n20.47 GiB at the peak, in backward, iteration 2; " in text
    assert "| activations | 15.01 GiB | 73% |" in text
    assert "| `transformer.h.*.mlp` | 9.85 GiB | 48% | activations |" in text
    assert "| the model itself | 12.00 MiB | 0% | activations |" in text


def test_warnings_stand_out() -> None:
    """Warnings are an alert under the answer."""
    text = plain(gpt2(stable=False, warnings=("see `nvidia-smi`",)))
    assert "> [!WARNING]\n> - the memory of other processes moved" in text
    assert "\n> - see `nvidia-smi`\n" in text


def test_tables_are_tables() -> None:
    """A parser finds as many cells in each row as its table has columns, and the whole text of each."""
    tokens = PARSER.parse(plain(gpt2(target="a|b\\|c", precision="`|`")))
    assert {"a|b\\|c", "`|`", "AdamW"} <= {token.content for token in inline(tokens) if token.type == "code_inline"}
    columns: list[int] = []
    for token in tokens:
        if token.type == "tr_open":
            columns.append(0)
        elif token.type in ("td_open", "th_open"):
            columns[-1] += 1
    assert sum(token.type == "table_open" for token in tokens) == 4
    assert sorted(set(columns)) == [2, 3, 5, 6]


@given(hostile)
def test_code_shows_exactly_its_text(text: str) -> None:
    """A code span shows the text and is nothing but a code span, whatever backticks are in it."""
    expected = seen(text)
    tokens = inline(PARSER.parse(f"x {code(text)} x"))
    codes = [token.content for token in tokens if token.type == "code_inline"]
    assert [visible(content) for content in codes] == ([expected] if expected else [])
    assert {token.type for token in tokens} <= {"text", "code_inline"}


@given(hostile)
def test_code_block_shows_exactly_its_text(text: str) -> None:
    """A fenced block is one block that shows the text."""
    (token,) = PARSER.parse(code_block(text))
    assert token.type == "fence"
    assert visible(token.content) == seen(text)


@given(hostile)
def test_prose_is_only_text_and_code(text: str) -> None:
    """Escaped prose reads as the text does, at the start of a list's item too, and makes nothing but code spans."""
    tokens = PARSER.parse(f"- {prose(text)}\n")
    assert [token.type for token in tokens if token.type not in ("paragraph_open", "inline", "paragraph_close")] == [
        "bullet_list_open",
        "list_item_open",
        "list_item_close",
        "bullet_list_close",
    ]
    assert {token.type for token in inline(tokens)} <= {"text", "text_special", "code_inline"}
    # A code span has no space at its edges.
    assert re.sub(r"[`\s]", "", shown(prose(text))) == re.sub(r"[`\s]", "", seen(text))


@given(hostile)
def test_document_text_never_changes_the_structure(text: str) -> None:
    """The blocks of a comment are the same whatever its document's text says."""
    assert structure(text) == structure("benign")


def structure(text: str) -> list[tuple[str, str]]:
    """Types of a document's blocks and the raw HTML in it, with `text` in each place that users control."""
    filled = text if seen(text) else "benign"
    result = gpt2().result
    document = gpt2(
        target=filled,
        precision=filled,
        optimizer=filled,
        warnings=(filled,),
        reasons=tuple(type(reason)(filled, filled) for reason in result.reasons),
        trials=tuple(documents.trial(trial.micro_batch, trial.outcome, error=filled) for trial in result.trials),
        memory=step_memory(modules=(ModuleBytes(filled, Category.WEIGHTS, 1, 1),)),
    )
    tokens = PARSER.parse(plain(document))
    blocks = [(token.type, token.content if token.type == "html_block" else "") for token in tokens]
    return blocks + [(token.type, token.content) for token in inline(tokens) if token.type in ("html_inline", "image")]


@pytest.mark.parametrize(
    "text", ["@someone", "see #12", "GH-7", "https://example.org", "www.example.org", "me@example.org"]
)
def test_github_finds_nothing_to_link(text: str) -> None:
    """Mentions, references and addresses in prose are broken by an invisible character and read the same."""
    rendered = prose(text)
    assert not re.search(r"@\w|#\d|gh-\d|://|www\.", rendered, re.IGNORECASE)
    assert shown(rendered) == text


@given(documents.any_probe_document)
def test_never_raises(document: ProbeDocument) -> None:
    """Whatever a document holds, it renders to text that can be written."""
    assert plain(document).encode("utf-8").endswith(b"\n")


def seen(text: str) -> str:
    """What of a text is meant to be seen."""
    return visible(clean(text))
