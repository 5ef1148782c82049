"""Windows made by hand, and sizes printed as PyTorch prints them."""

from __future__ import annotations

from oomdoctor.diagnose.evidence import Message, Window
from oomdoctor.diagnose.text.errors import read_message

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def window(text: str, at: int = 0) -> Window:
    """A window on all of a text."""
    return Window(source="train.log", line_number=at + 1, rank=None, lines=tuple(text.splitlines()), at=at)


def read(text: str, at: int = 0) -> Message:
    """The message at a line; there must be one."""
    message = read_message(window(text, at))
    assert message is not None
    return message


def read_all(text: str) -> list[Message]:
    """The messages that any line of a text yields."""
    found = (read_message(window(text, at)) for at in range(len(text.splitlines())))
    return [message for message in found if message is not None]


def torch_prints(size: int) -> str:
    """A size as `format_size` of PyTorch's allocators prints it."""
    if size <= KIB:
        return f"{size} bytes"
    if size <= MIB:
        return f"{size / KIB:.2f} KiB"
    return f"{size / MIB:.2f} MiB" if size <= GIB else f"{size / GIB:.2f} GiB"


def as_printed(size: int) -> int:
    """Bytes that a reader of the printed decimal finds."""
    if size <= KIB:
        return size
    unit = KIB if size <= MIB else MIB if size <= GIB else GIB
    hundredths = int(f"{size / unit:.2f}".replace(".", ""))
    return (hundredths * unit * 2 + 100) // 200
