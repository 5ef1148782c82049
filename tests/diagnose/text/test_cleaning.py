"""What loggers, launchers, terminals and CI put around a line is taken away, and the line is left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.diagnose.text.reading import LONGEST_LINE, clean, segments, unglue

ERROR = "RuntimeError: CUDA out of memory."


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (f"[rank3]: {ERROR}", 3),
        (f"[default3]:{ERROR}", 3),
        (f"[trainer0|3]:{ERROR}", 3),
        (f"rank3: {ERROR}", 3),
        (f"[1,3]<stderr>:{ERROR}", 3),
        (f"3: {ERROR}", 3),
        (f"node-7: [rank3]: {ERROR}", 3),
        (f"2031-05-06T07:08:09.1234567Z {ERROR}", None),
        (f"2031-05-06T07:08:09.1234567Z [rank3]: {ERROR}", 3),
        (f"2031-05-06 07:08:09 | INFO | {ERROR}", None),
        (f"[2031-05-06 07:08:09,123][ERROR] {ERROR}", None),
        (f"ERROR    | 2031-05-06 07:08:09 | pkg.common:wrapper:121 - {ERROR}", None),
        (f"server-1  | {ERROR}", None),
        (f"(Worker pid=42, ip=10.0.0.1) {ERROR}", None),
        (f"# {ERROR}", None),
        (f"> {ERROR}", None),
        (f"// {ERROR}", None),
        (f"- {ERROR}", None),
        (f"`{ERROR}`", None),
        (f"E   {ERROR}", None),
        (f"│ {ERROR}      │", None),
        (f"\x1b[31;1m{ERROR[:7]}\x1b[0m{ERROR[7:]}\x1b]8;;http://x\x1b\\\x1b]0;title\x07", None),
        (f"[31m{ERROR}[0m", None),
        (f"\ufeff{ERROR}\x08\x7f", None),
    ],
)
def test_an_error_is_left_as_it_was_raised(line: str, rank: int | None) -> None:
    """Prefixes go, and a rank among them is kept."""
    cleaned = clean(line.encode())
    assert (cleaned.text, cleaned.rank) == (ERROR, rank)


@pytest.mark.parametrize(
    ("prefix", "own"),
    [("[rank0]: ", "[rank0]: "), ("[default0]:", ""), ("2031-05-06T07:08:09Z ", ""), ("│ ", ""), ("", "")],
)
@pytest.mark.parametrize("code", ['  File "train.py", line 3, in main', "    loss.backward()", "    # a comment"])
def test_the_indentation_of_code_stays(prefix: str, own: str, code: str) -> None:
    """A prefix takes its own blank with it and no more."""
    del own
    assert clean(f"{prefix}{code}".encode()).text == code


def test_a_frame_of_an_editor_and_of_a_group_stays() -> None:
    """Marks that belong to a traceback are left."""
    for line in ("---> 12 code", "  | Traceback (most recent call last):", "/a/b.py:126 in forward", "x[0].m(1)"):
        assert clean(line.encode()).text == line


def test_of_a_progress_bar_the_last_state_is_kept() -> None:
    """Carriage returns part a line, and earlier states of a bar are dropped."""
    assert segments(b" 1%| | 1/9\r 2%| | 2/9\rdone\r") == [b" 2%| | 2/9", b"done"]
    assert segments(b"plain") == [b"plain"]


def test_an_error_is_parted_from_a_bar() -> None:
    """What follows a bar without a blank is a line of its own; a bar's own end is not parted."""
    assert unglue("9%|#| 1/9 [00:01,  1.3it/s, loss=2]CUDA error") == (
        "9%|#| 1/9 [00:01,  1.3it/s, loss=2]",
        "CUDA error",
    )
    assert unglue("9%|#| 1/9 [00:01,  1.3it/s] ok") == ("9%|#| 1/9 [00:01,  1.3it/s] ok",)


@given(st.binary(max_size=300), st.integers(1, 200))
def test_any_bytes_are_cleaned(line: bytes, times: int) -> None:
    """Nothing breaks it, nothing unprintable is left but what the text itself has, and length is bounded."""
    cleaned = clean(line * times).text
    assert len(cleaned) <= LONGEST_LINE
    assert "\x1b" not in cleaned
    assert "\x00" not in cleaned
