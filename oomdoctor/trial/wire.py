"""The pipes between the parent and its worker: one line of JSON a message.

A message has the protocol's version, the kind of message and its fields. The user's code prints to stdout and stderr;
those go elsewhere, so that no print can be taken for an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, get_args

from oomdoctor.codec import decode, encode
from oomdoctor.trial.protocol import AnyAnswer, AnyQuestion
from oomdoctor.trial.worker_answers import Died

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.trial.process import Message, WorkerChannel
    from oomdoctor.trial.protocol import Question

PROTOCOL_VERSION: Final = 1

MessageT = TypeVar("MessageT")
_QUESTIONS: Final[Mapping[str, type[AnyQuestion]]] = {kind.__name__: kind for kind in get_args(AnyQuestion)}
_ANSWERS: Final[Mapping[str, type[AnyAnswer]]] = {kind.__name__: kind for kind in get_args(AnyAnswer)}


def send(channel: WorkerChannel, message: Question[object] | AnyAnswer) -> None:
    """Write one message.

    Raises ChannelClosedError where the other side is gone.
    """
    channel.send({"version": PROTOCOL_VERSION, "kind": type(message).__name__, "fields": encode(message)})


def receive_answer(channel: WorkerChannel, timeout_seconds: float) -> AnyAnswer:
    """Read the worker's next message.

    Raises:
        ChannelClosedError: The worker is gone.
        ChannelTimeoutError: Nothing came within `timeout_seconds`.
        KeyboardInterrupt: The stop was set.
        RuntimeError: It is no answer, or one of another version.
    """
    data = channel.receive(timeout_seconds)
    if data.get("event") == "died":  # the guardian's, which imports nothing of ours
        return Died(data["return_code"])
    return _message(_ANSWERS, data)


def receive_question(channel: WorkerChannel) -> AnyQuestion:
    """Read the parent's next message.

    Raises:
        ChannelClosedError: The parent is gone.
        RuntimeError: It is no question, or one of another version.
    """
    return _message(_QUESTIONS, channel.receive())


def _message(kinds: Mapping[str, type[MessageT]], data: Message) -> MessageT:
    if data.get("version") != PROTOCOL_VERSION or data.get("kind") not in kinds:
        raise RuntimeError(f"not a message of version {PROTOCOL_VERSION} of the protocol: {str(data)[:200]}")
    return decode(kinds[data["kind"]], data["fields"], data["kind"])
