"""The end of what a child printed is kept, however much it was."""

from __future__ import annotations

import os

from oomdoctor.trial.process import OutputTail


def test_the_last_lines_of_much_output_are_kept() -> None:
    """Ten megabytes go through without blocking the writer, and the last lines are there."""
    tail = OutputTail()
    with os.fdopen(tail.write_fd, "wb") as stream:
        for number in range(200_000):
            stream.write(b"line %d of noise that nobody reads\n" % number)
    tail.close()

    assert tail.text(2).splitlines() == [f"line {number} of noise that nobody reads" for number in (199_998, 199_999)]
    assert len(tail.text(10**9)) < 200_000


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    """What is not UTF-8 does not stop anybody from reading the rest."""
    tail = OutputTail()
    with os.fdopen(tail.write_fd, "wb") as stream:
        stream.write(b"\xff\xfe broken\nwhole\n")
    tail.close()

    assert tail.text(1) == "whole"
    assert "broken" in tail.text(2)
