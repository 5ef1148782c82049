"""Whatever a command's code writes to our socket is data: it never ends the probe."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_messages import CAPACITY, STEPS, TAIL, batch, device, measured, oom, started, step
from hypothesis import given, settings
from hypothesis import strategies as st

from oomdoctor.agent.channel import PROTOCOL
from oomdoctor.command.notes import Observations
from oomdoctor.command.outcome import BatchSizeCheck, classify_trial
from oomdoctor.command.trial import EndedTrial, Listener
from oomdoctor.command.trial_events import TrialEvents

_GOOD = [
    started(),
    device(),
    batch([8, 3]),
    step(1),
    oom(),
    measured("steps", 3),
    {"protocol": PROTOCOL, "event": "wrote", "pid": 1, "path": "/x"},
    {"protocol": PROTOCOL, "event": "no_torch", "pid": 1, "frameworks": ["jax"]},
]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def _nearly_good(draw: Callable[..., Any]) -> dict[str, Any]:
    """A message of the agent in which one field is another or is missing."""
    message = dict(draw(st.sampled_from(_GOOD)))
    name = draw(st.sampled_from([field for field in message if field not in {"protocol", "event", "pid"}]))
    if draw(st.booleans()):
        del message[name]
    else:
        message[name] = draw(_JSON)
    return message


def _take_in(messages: list[dict[str, Any]]) -> None:
    events = TrialEvents()
    for message in messages:
        events.add(message)
    assert events.world_size >= 0
    assert events.has_all_steps in {True, False}
    classified = classify_trial(EndedTrial(events, 0, False, 1.0, TAIL), 8, CAPACITY, STEPS)  # noqa: FBT003 - as its fields are called
    BatchSizeCheck().problem_of(8, events, classified.trial.peak_allocated_bytes)
    Observations().take(events, classified, 8)


@settings(max_examples=300)
@given(st.lists(st.one_of(_nearly_good(), st.sampled_from(_GOOD)), max_size=6))
def test_a_message_that_is_not_as_it_should_be_ends_nothing(messages: list[dict[str, Any]]) -> None:
    """Missing and wrong fields are lived with, in whatever order messages come."""
    _take_in(messages)


@given(st.dictionaries(st.sampled_from(["event", "steps", "rank", "error"]), _JSON))
def test_unknown_messages_are_passed_over(message: dict[str, Any]) -> None:
    """A JSON object that no hook would send is no message."""
    _take_in([{**message, "pid": 1}])


_TEXTS = [
    b"",
    b"\n\n\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x00\xff\xfe" * 100 + b"\n",
    b'null\n[]\n3\n"text"\n',
    b'{"event": "step"}\n',
    b'{"event": "step", "pid": "one", "steps": 1}\n',
    b"[" * 100_000 + b"\n",
    b'{"event": "step", "pid": 1, "steps": 1',
]


def _heard_after(tmp_path: Path, *texts: bytes) -> list[Any]:
    path = tmp_path / "socket"
    with Listener(path) as listener:
        for text in texts:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(0.0 if len(text) > 2**16 else 5.0)
                connection.connect(str(path))
                connection.send(text)
        return list(listener.take())


@pytest.mark.parametrize("text", _TEXTS, ids=lambda text: repr(text[:12]))
def test_what_is_no_message_is_passed_over(tmp_path: Path, text: bytes) -> None:
    """Bytes that are no JSON object with a process id, or half of one, are skipped, and what comes after is heard."""
    good = json.dumps(step(2)).encode() + b"\n"

    assert _heard_after(tmp_path, text, good) == [step(2)]
    assert not (tmp_path / "socket").exists()


def test_a_message_in_pieces_is_put_together(tmp_path: Path) -> None:
    """A line that arrives in several writes, between those of another process, is one message."""
    path = tmp_path / "socket"
    line = json.dumps(measured("steps", 3)).encode() + b"\n"
    with Listener(path) as listener, socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        first.connect(str(path))
        second.connect(str(path))
        first.sendall(line[:40])
        second.sendall(json.dumps(step(1)).encode() + b"\n")
        assert list(listener.take()) == [step(1)]
        first.sendall(line[40:])
        assert list(listener.take()) == [measured("steps", 3)]


def test_what_was_said_before_the_end_is_heard_after_it(tmp_path: Path) -> None:
    """Lines of a process that has ended meanwhile are still taken, in order."""
    lines = b"".join(json.dumps(step(count)).encode() + b"\n" for count in range(1, 200))

    assert [message["steps"] for message in _heard_after(tmp_path, lines)] == list(range(1, 200))
