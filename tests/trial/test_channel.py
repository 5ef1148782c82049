"""What the parent and its worker say to each other arrives whole, or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.trial.process import ChannelClosedError, ChannelTimeoutError, WorkerChannel

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.fixture
def pipe() -> Iterator[tuple[WorkerChannel, int]]:
    """A channel that reads from a pipe, and the pipe's other end."""
    read, write = os.pipe()
    channel = WorkerChannel(read, os.open(os.devnull, os.O_WRONLY))
    yield channel, write
    channel.close()


@given(messages=st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=5))
def test_messages_arrive_as_they_were_sent(messages: list[dict]) -> None:
    """Whatever JSON can hold arrives in order, newlines inside texts included."""
    read, write = os.pipe()
    sender, receiver = (
        WorkerChannel(os.open(os.devnull, os.O_RDONLY), write),
        WorkerChannel(read, os.open(os.devnull, os.O_WRONLY)),
    )
    thread = threading.Thread(target=lambda: [sender.send(message) for message in messages])
    thread.start()

    assert [receiver.receive(10) for _ in messages] == messages

    thread.join()
    sender.close()
    receiver.close()


def test_a_message_larger_than_a_pipe_arrives(pipe: tuple[WorkerChannel, int]) -> None:
    """A traceback of a megabyte is one message."""
    channel, write = pipe
    sender = WorkerChannel(os.open(os.devnull, os.O_RDONLY), write)
    thread = threading.Thread(target=sender.send, args=({"text": "x" * 2**20},))
    thread.start()

    assert channel.receive(10) == {"text": "x" * 2**20}

    thread.join()
    sender.close()


def test_half_a_line_is_passed_over(pipe: tuple[WorkerChannel, int]) -> None:
    """What a dying worker left unfinished does not hide what the guardian says next."""
    channel, write = pipe
    os.write(write, b'{"event": "tri\n{"event": "died", "return_code": -11}\n')
    os.close(write)

    assert channel.receive(1) == {"event": "died", "return_code": -11}
    with pytest.raises(ChannelClosedError):
        channel.receive(1)


def test_silence_ends_at_the_deadline(pipe: tuple[WorkerChannel, int]) -> None:
    """Nothing, or half a message, within the time limit is a time-out."""
    channel, write = pipe
    os.write(write, b'{"half": ')

    with pytest.raises(ChannelTimeoutError):
        channel.receive(0.05)
    os.close(write)


def test_sending_to_nobody_is_noticed() -> None:
    """A message to a process that is gone raises instead of vanishing."""
    read, write = os.pipe()
    os.close(read)
    channel = WorkerChannel(os.open(os.devnull, os.O_RDONLY), write)

    with pytest.raises(ChannelClosedError):
        channel.send({"op": "trial"})
    channel.close()


def test_a_closed_channel_touches_nobody_elses_pipe() -> None:
    """Once it is closed its numbers are others': nothing is read from them, written to them, or closed."""
    numbers = os.pipe()
    channel = WorkerChannel(*numbers)
    channel.close()
    read, write = os.pipe()
    assert (read, write) == numbers  # the lowest that are free
    os.write(write, b"{}\n")

    with pytest.raises(ChannelClosedError):
        channel.receive(1)
    with pytest.raises(ChannelClosedError):
        channel.send({"of": "nobody"})
    channel.close()
    assert os.read(read, 99) == b"{}\n"
    for end in (read, write):
        os.close(end)
