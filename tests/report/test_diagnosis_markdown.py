"""What GitHub shows of a diagnosis, and that nobody's text becomes markup in it."""

from __future__ import annotations

from diagnosis_documents import any_diagnosis, comparison, not_memory, nothing_found, out_of_memory
from hostile_documents import filled_with
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from test_probe_markdown import HOSTILE, inline

from oomdoctor.report.diagnose.markdown import render
from oomdoctor.report.plain_text import clean
from oomdoctor.results import DiagnosisDocument

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
hostile = st.sampled_from(HOSTILE) | st.text(alphabet="`|\\<>&@#*_-+=.()[]!~$1a \n", max_size=20)


def plain(document: DiagnosisDocument) -> str:
    """The comment; no terminal changes it."""
    return render(document)


def test_everything_is_there() -> None:
    """The comment opens with what happened and holds causes, remedies, numbers, snapshots and the comparison."""
    text = plain(out_of_memory(comparison=comparison()))
    assert text.startswith("### GPU 0 ran out of memory in backward, step 412\n\n1.92 GiB asked for, ")
    for expected in [
        "**Your line, `train/loop.py:112 in train_one_epoch`**\n\n```text\nloss.backward()\n```",
        "- **the batch is too large (likely)**: Activations are 10.67 GiB",
        "1. Halve the micro-batch and double the accumulation steps.<br>`per_device_train_batch_size=8, ",
        "<br>frees up to 5.33 GiB<br>costs: about 5 % slower",
        "| process 4711 | 1.70 GiB | 7% |",
        "| asked for | 1.92 GiB |",
        "Memory rose steadily from 18.49 GiB",
        "#### Memory snapshot of GPU 0: `snapshot-rank0.pickle`",
        "| activations | 10.67 GiB | 57% | 8.53 GiB |",
        "| `train/model.py:87 in forward`<br>`weights = torch.softmax(scores, dim=-1)` |",
        "| activations | 8.00 GiB | 10.67 GiB | +2.67 GiB |",
        "> [!NOTE]\n> - In a container",
        "<br>`oomdoctor run -- train.py`",
        "| `train.log:20440, rank 2` | not an out-of-memory error | `torch.distributed.DistBackendError: NCCL error",
        "Read `train.log`, `snapshot-rank0.pickle`",
    ]:
        assert expected in text


def test_what_is_not_there_has_no_heading() -> None:
    """A document without causes, remedies or numbers leaves no empty section."""
    assert plain(nothing_found()) == "### No error was found\n\nRead `train.log`\n\n`oomdoctor 0.1.0`\n"
    text = plain(not_memory())
    assert "What to change" not in text
    assert "| " not in text


def test_tables_are_tables() -> None:
    """A parser finds as many cells in each row as its table has columns."""
    tokens = PARSER.parse(plain(out_of_memory(comparison=comparison())))
    rows: list[int] = []
    tables: list[set[int]] = []
    for token in tokens:
        if token.type == "table_open":
            rows = []
        elif token.type == "tr_open":
            rows.append(0)
        elif token.type in ("td_open", "th_open"):
            rows[-1] += 1
        elif token.type == "table_close":
            tables.append(set(rows))
    assert len(tables) == 11
    assert all(len(widths) == 1 for widths in tables)


@given(hostile)
def test_document_text_never_changes_the_structure(text: str) -> None:
    """The blocks of a comment are the same whatever its document's text says."""
    assert structure(text) == structure("benign")


def structure(text: str) -> list[tuple[str, str]]:
    """Types of a document's blocks and the raw HTML in it, with `text` in each place that users control."""
    document = filled_with(text if clean(text).replace("\u200b", "").strip() else "benign")
    tokens = PARSER.parse(plain(document))
    blocks = [(token.type, token.content if token.type == "html_block" else "") for token in tokens]
    return blocks + [(token.type, token.content) for token in inline(tokens) if token.type in ("html_inline", "image")]


@given(any_diagnosis)
def test_never_raises(document: DiagnosisDocument) -> None:
    """Whatever a document holds, it renders to text that can be written."""
    assert plain(document).encode("utf-8").endswith(b"\n")
