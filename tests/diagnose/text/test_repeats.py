"""Texts whose lines repeat themselves: what is new among them is found, and what is known costs little."""

from __future__ import annotations

import io

import pytest

from oomdoctor.diagnose.text.scan import MOST_STRONG, Scan, scan
from oomdoctor.diagnose.text.search import LOOKS, Repeats


def scan_text(text: str | bytes) -> Scan:
    """Scan a text as a file."""
    return scan(io.BytesIO(text.encode() if isinstance(text, str) else text), "a.log")


def hits_in(repeats: Repeats, block: bytes) -> int | None:
    """How many hits a block has that is compared with what is known."""
    found = repeats.find_new(block)
    return None if found is None else len(found[0])


FLOODS = {
    "memory in every line": "step {i} loss 0.{i} memory: 10.{d} GiB max_memory_allocated: 12.3 GB\n",
    "a harmless error": "2031-05-06 07:08:{s:02d} ERROR: could not fetch item {i}, retrying\n",
    "a harmless error, with CRLF": "07:08:{s:02d} ERROR: could not fetch item {i}, retrying\r\n",
    "the same error of memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB.\n",
    "an error of memory that tells another size": "CUDA out of memory. Tried to allocate {i}.00 MiB.\n",
    "a worker that ended well": "worker {i} exited with code 0 after an error: none, allocating {d}\n",
    "empty lines": "\n" * 40,
}
PLANTED = "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"


def flood(form: str, size: int) -> bytes:
    """Lines of one form."""
    return "".join(form.format(i=i, s=i % 60, d=i % 10) for i in range(size // len(form))).encode()


@pytest.mark.parametrize("form", FLOODS.values(), ids=FLOODS)
@pytest.mark.parametrize("place", [1_310_720 - 40])
def test_an_error_in_a_flood_is_found_at_its_line(form: str, place: int) -> None:
    """Whatever every other line says, the one that says something else is found, with its line."""
    before, after = flood(form, place), flood(form, 2_000_000)
    result = scan_text(before + f"{PLANTED}\n".encode() + after)
    found_at = [window.line_number for window in result.windows if window.lines[window.at] == PLANTED]
    assert found_at == [before.count(b"\n") + 1]
    assert result.lines == before.count(b"\n") + 1 + after.count(b"\n")


@pytest.mark.parametrize("shift", range(0, 66_000, 9_000))
def test_an_error_in_a_flood_is_found_wherever_blocks_begin(shift: int) -> None:
    """No place relative to blocks hides an error among lines that tell of memory."""
    form = FLOODS["memory in every line"]
    before = flood(form, 1_200_000 + shift)
    result = scan_text(before + f"{PLANTED}\n".encode() + flood(form, 2_000_000))
    assert before.count(b"\n") + 1 in [window.line_number for window in result.windows]


def test_an_exit_code_in_a_flood_of_exit_codes_is_found() -> None:
    """Numbers that make the difference are never passed over."""
    form = "worker {i} exited with code 0\n"
    result = scan_text(flood(form, 1_200_000) + b"worker 7 exited with code 137\n" + flood(form, 2_000_000))
    assert [window.lines[window.at] for window in result.windows] == ["worker 7 exited with code 137"]


def test_the_last_of_a_long_flood_are_kept() -> None:
    """Lines that were passed over because they repeat are still told where the text ends."""
    text = flood(FLOODS["an error of memory that tells another size"], 3_300_000)
    windows = scan_text(text).windows
    last = text.count(b"\n")
    assert [window.line_number for window in windows[:MOST_STRONG]] == list(range(1, MOST_STRONG + 1))
    assert [window.line_number for window in windows[MOST_STRONG:]] == list(range(last - MOST_STRONG + 1, last + 1))


def test_a_flood_of_many_kinds_of_lines_hides_nothing() -> None:
    """Several errors by turns, among lines that are never the same, are learned as well."""
    kinds = ("ERROR: no item {i}", "KeyError: {i}", "note {w} mirror or {i}", "mem {i} max_memory_allocated: 3 {w}")
    words = [f"{number:x}".translate(str.maketrans("0123456789", "ghijkopqsu")) for number in range(80_000)]
    lines = [kinds[i % 4].format(i=i, w=word) for i, word in enumerate(words)]
    lines.insert(50_000, PLANTED)
    windows = scan_text("\n".join(lines)).windows
    assert [window.line_number for window in windows if window.lines[window.at] == PLANTED] == [50_001]


def test_a_line_is_looked_at_so_often_and_then_passed_over() -> None:
    """Errors that differ in a number are one line, which is known after enough looks, whatever blocks they are in."""
    repeats = Repeats()
    assert [hits_in(repeats, b"KeyError: %d!\n" % number) for number in range(LOOKS + 2)] == [1] * LOOKS + [0, 0]
    assert repeats.knows(b"KeyError: 7!")
    assert not repeats.knows(b"KeyErrors: 7!")


def test_a_line_that_is_no_error_is_known_at_once() -> None:
    """What only has the letters of an error need not be looked at twice."""
    repeats = Repeats()
    assert hits_in(repeats, b"max_memory_allocated: 1.5\n" * 9) == 0
    assert repeats.knows(b"max_memory_allocated: 2.25")


def test_lines_in_which_numbers_matter_are_never_known() -> None:
    """An exit code is read each time, and where there are many of them the block is searched as a whole."""
    repeats = Repeats()
    for _ in range(LOOKS + 1):
        assert hits_in(repeats, b"exited with code 0\nexited with code 137\n") == 1
    assert hits_in(repeats, b"exited with code 0\n" * 100) is None


def test_a_block_of_many_different_errors_is_searched_as_a_whole() -> None:
    """Comparing does not pay where lines are all different, and is not tried again at once."""
    repeats = Repeats()
    block = "".join(f"{chr(97 + i % 26)}{chr(97 + i // 26)} went wrong: KeyError\n" for i in range(600)).encode()
    assert hits_in(repeats, block) is None
    assert not repeats.is_on
    assert [repeats.may_begin() for _ in range(16)] == [False] * 15 + [True]


def test_what_is_known_is_bounded() -> None:
    """However many lines are learned, few are remembered."""
    repeats = Repeats()
    for number in range(6000):
        name = f"{number:x}".translate(str.maketrans("0123456789", "ghijkopqsu"))
        repeats.find_new(f"{name} mirror or\n".encode())
    assert len(repeats._known) <= 4096
