"""Reading a message never fails and never takes long, whatever the text is."""

from __future__ import annotations

from dataclasses import fields

import pytest
from clock import within
from hypothesis import given
from hypothesis import strategies as st
from quoting import read_all, window

from oomdoctor.agent.oom_errors import table
from oomdoctor.diagnose.evidence import Message
from oomdoctor.diagnose.text.errors import read_message
from oomdoctor.diagnose.text.headlines import LONGEST_TEXT

PIECES = [
    "CUDA out of memory. Tried to allocate ",
    "17179869184.00 GiB",
    "2.00 GiB",
    "99999999999999999999999999999999 bytes",
    ". GPU 0 has a total capacity of ",
    " of which ",
    " is free. ",
    "Process 99999999999999999999 has ",
    "Process 7 has 1.00 GiB memory in use. ",
    "Of the allocated memory ",
    " is allocated by PyTorch, and ",
    " is reserved by PyTorch but unallocated.",
    "(GPU 99999; ",
    " total capacity; ",
    "RuntimeError: ",
    "\nTraceback (most recent call last):\n",
    '  File "a.py", line 1, in f\n',
    "\nThe above exception was the direct cause of the following exception:\n\n",
    "RESOURCE_EXHAUSTED: ",
    "OOM when allocating tensor with shape[99999999999,99999999999,99999999999] and type float512 on ",
    "device:GPU:0 ",
    "NCCL WARN Failed to CUDA calloc ",
    "Killed\n",
    "\x00\u200b\u0130ﬀ",
    "\n",
    "-1.5",
    "\u0663.\u0662 GiB ",
]
KNOWN = {row.id for row in table().rows} | {notice.id for notice in table().notices} | {"other-error"}
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=20), max_size=30).map("".join)


def check(message: Message, lines: int) -> None:
    """Whatever was read can be shown and judged."""
    assert message.kind in KNOWN
    assert 0 <= message.first <= message.last < lines
    assert len(message.text) <= LONGEST_TEXT
    assert "\n" not in message.text
    numbers = [getattr(message.facts, field.name) for field in fields(message.facts)]
    assert all(0 <= number < 1 << 63 for number in numbers if isinstance(number, int))
    assert message.is_oom == (message.device != "none")


@given(text=texts)
def test_any_text_is_answered(text: str) -> None:
    """No arrangement of the messages' parts, with anything between, raises or yields nonsense."""
    for message in read_all(text):
        check(message, len(text.splitlines()))


HOSTILE = {
    "letters": "a" * 8192,
    "digits": "1" * 8192,
    "decimals": "1." * 4096,
    "sizes": "1GiB" * 2000,
    "heads": "CUDA out of memory. " * 400,
    "types": "a." * 4096,
    "errors": "Error:" * 1300,
    "parentheses": "(" * 8192,
    "quotes": "\"'" * 4096,
    "spaces": " " * 8192,
    "processes": "Process 1 has 1.00 GiB memory in use. " * 200,
    "shapes": f"OOM when allocating tensor with shape[{'1,' * 4000}",
    "carriers": "RuntimeError: Caught X in memory: " * 240,
    "notices": "workers killed exit code " * 300,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_window_takes_no_long(text: str) -> None:
    """A full window of lines made to mislead takes a fraction of a second, in proportion to its length."""
    lines = "\n".join([text] * 240)
    with within(1):
        read_message(window(lines, 200))
