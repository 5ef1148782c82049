"""Inputs that nobody meant: no crash, no hang, and what is printed is JSON."""

from __future__ import annotations

import io
import json

import pytest
from clock import within
from hypothesis import given
from hypothesis import strategies as st
from mutating import mutated

from oomdoctor.cli.diagnose import document_of
from oomdoctor.diagnose.diagnose import diagnose
from oomdoctor.diagnose.sources import sources
from oomdoctor.errors import UsageError
from oomdoctor.output import Terminal
from oomdoctor.report import render
from oomdoctor.results import DiagnosisDocument
from oomdoctor.results.saved import from_json, to_json


def diagnosed(data: bytes) -> DiagnosisDocument | None:
    """The document of a diagnosis; None where the input was refused."""
    try:
        return document_of(diagnose(sources(["-"], io.BytesIO(data))))
    except UsageError:
        return None


@pytest.mark.parametrize("start", range(0, 1000, 100))
def test_mutated_messages(start: int) -> None:
    """A thousand messages that were cut, doubled, interleaved and recoded are each diagnosed within two seconds."""
    ooms = 0
    for number in range(start, start + 100):
        with within(2, number):
            document = diagnosed(mutated(number))
        if document is not None:
            assert from_json(to_json(document), "x") == document
            ooms += document.result.is_oom
    assert ooms > 10


@given(st.binary(max_size=2000))
def test_any_bytes(data: bytes) -> None:
    """Whatever the bytes are, they are diagnosed or refused."""
    document = diagnosed(data)
    assert document is None or json.loads(to_json(document))["command"] == "diagnose"


@given(st.text(max_size=300), st.sampled_from(["text", "markdown", "html"]))
def test_any_text_around_a_message_is_rendered(text: str, form: str) -> None:
    """A message with anything before and after it is found, and every format shows it."""
    data = f"{text}\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n{text}".encode(
        "utf-8", "surrogatepass"
    )
    document = diagnosed(data)
    assert document is not None
    assert document.result.is_oom
    assert "2.00 GiB" in render(document, form, Terminal())


def test_gigantic_numbers_are_unknown() -> None:
    """2**64 bytes is the driver's way to say that it does not know."""
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 0 bytes is "
        "free. Process 12 has 17179869184.00 GiB memory in use. Of the allocated memory 7.00 GiB is allocated by "
        "PyTorch, and 20.00 MiB is reserved by PyTorch but unallocated."
    )
    document = diagnosed(text.encode())
    assert document is not None
    (process,) = document.result.facts.other_processes
    assert (process.pid, process.used_bytes) == (12, None)
    assert "other_process" not in {cause.id for cause in document.result.causes}
