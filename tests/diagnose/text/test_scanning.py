"""A text of any length and shape: what is found in it, where, and that nothing breaks."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import PEAK

from oomdoctor.diagnose.text import reading
from oomdoctor.diagnose.text import scan as scanning
from oomdoctor.diagnose.text.scan import MOST_STRONG, scan

MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.6 GiB"
)
TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 7, in main', "    loss.backward()", MESSAGE]
FILLER = b"2031-05-06 07:08:09 | INFO | trainer:step:12 - all is well, the gradient norm is 0.25\n"


def scan_text(text: str | bytes) -> scanning.Scan:
    """Scan a text as a file."""
    return scan(io.BytesIO(text.encode() if isinstance(text, str) else text), "a.log")


def found(text: str | bytes) -> list[str]:
    """Lines that may tell of an error."""
    return [window.lines[window.at] for window in scan_text(text).windows]


@pytest.mark.parametrize(
    "line",
    [
        "CUDA out of memory. Tried to allocate 1.00 GiB",
        "E0101 OUT_OF_MEMORY",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 1.00G",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
        "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at c10/cuda/CUDACachingAllocator.cpp:1",
        "OSError: [Errno 12] Cannot allocate memory",
        "bash: fork: Cannot allocate memory",
        "  what():  std::bad_alloc",
        "MemoryError",
        "numpy: Unable to allocate 3.00 GiB for an array with shape (3, 4)",
        "node7:11:12 [0] include/alloc.h:101 NCCL WARN Failed to CUDA calloc 1048576 bytes",
        "RuntimeError: DataLoader worker (pid 11) is killed by signal: Bus error.",
        "./job.sh: line 3: 4242 Killed                  python train.py",
        "trainer-1 exited with code 137",
        "failed (exitcode: -9) local_rank: 0 (pid: 99) of binary: python",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)",
        "Reason: OOMKilled",
        "received signal SIGKILL",
        "OSError: [Errno 28] No space left on device",
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: nonzero is not supported for tensors with more than INT_MAX elements",
        "RuntimeError: Invalid buffer size: 64.00 GiB",
        "ValueError: No available memory for the cache blocks.",
        "Error out of memory at line 12 in file ops.cu",
        "OOM when allocating tensor with shape[2,3] and type float on GPU:0 by allocator GPU_0_bfc",
        "Failed to allocate memory for requested buffer of size 1073741824",
        "RuntimeError: cuda runtime error (2) : out of memory at THCStorage.cu:58",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1",
        "KeyError: 'weights'",
        "Exception: the data is gone",
        "Segmentation fault (core dumped)",
        'INTERNAL ASSERT FAILED at "CUDACachingAllocator.cpp":1',
        "triton.runtime.errors.OutOfResources: out of resource: shared memory",
        "GPU 0 has a total capacity of 8.00 GiB of which 0 bytes is free.",
    ],
)
def test_every_kind_of_error_is_found_in_the_middle_of_a_long_log(line: str) -> None:
    """No error needs to stand at an end of the text, and nothing around it is taken for one."""
    before, after = FILLER * 13_000, FILLER * 26_000
    result = scan_text(before + line.encode() + b"\n" + after)
    assert [window.lines[window.at] for window in result.windows] == [line]
    assert result.windows[0].line_number == 13_001
    assert result.lines == 39_001


@pytest.mark.parametrize(
    "line", ["GPU 0 has a total capacity of 8.00 GiB of which 0 bytes is free.", "Segmentation fault (core dumped)"]
)
def test_the_remains_of_a_message_are_found_in_a_short_text(line: str) -> None:
    """A quotation whose beginning was cut away is enough."""
    assert found(f"I get this:\n{line}\n") == [line]


def test_where_the_error_stands_does_not_matter() -> None:
    """Wherever an error stands relative to blocks and regions it is found once, with its line and what is around it."""
    body = "\n".join(TRACEBACK).encode() + b"\n"
    for size in (0, 1, 65_536 - 100, 65_536 - 40, (1 << 20) - 32_768, (1 << 20) - 60, 1 << 20):
        before = (FILLER * (size // len(FILLER) + 1))[: max(0, size - 1)] + b"\n" * min(size, 1)
        result = scan_text(before + body + FILLER * 30_000)
        (window,) = result.windows
        assert window.lines[window.at] == MESSAGE
        assert window.lines[window.at - 3 : window.at] == tuple(TRACEBACK[:3])
        assert window.line_number == before.count(b"\n") + 4
        assert window.lines[window.at + 1].startswith("all is well")
        assert len(window.lines) <= 241


def test_a_word_across_the_cut_of_a_long_line_is_found() -> None:
    """A line longer than a block is searched across the places where it is cut."""
    for size in range(65_536 - 20, 65_536 + 4, 3):
        assert len(found(b"x " * (size // 2) + b"CUDA out of memory." + b" y" * 100_000)) == 1


def test_ranks_are_told_apart() -> None:
    """A window holds the lines of the process that failed and no others."""
    lines = [f"[rank{rank}]: {line}" for line in TRACEBACK for rank in (0, 3)]
    windows = scan_text("\n".join(lines)).windows
    assert [window.rank for window in windows] == [0, 3]
    assert all(window.lines == tuple(TRACEBACK) for window in windows)


def test_the_same_message_is_counted() -> None:
    """A message that comes again is kept once, with its count; other numbers make another message."""
    windows = scan_text(f"10:00:01 {MESSAGE}\n10:00:02 {MESSAGE}\n10:00:03 {MESSAGE.replace('2.50', '2.75')}\n").windows
    assert [window.count for window in windows] == [2, 1]


def test_the_first_and_the_last_of_many_messages_are_kept() -> None:
    """A flood of different messages leaves its beginning and its end, in order, in bounded number."""
    flood = "".join(f"CUDA out of memory. Tried to allocate {number}.00 MiB\n" for number in range(3000))
    texts = found(flood)
    assert len(texts) == 2 * MOST_STRONG
    assert "allocate 0.00" in texts[0]
    assert f"allocate {MOST_STRONG - 1}.00" in texts[MOST_STRONG - 1]
    assert "allocate 2999.00" in texts[-1]


def test_a_flood_of_other_errors_does_not_hide_one_of_memory() -> None:
    """Errors that have nothing to do with memory are kept apart, however many they are."""
    flood = "".join(f"ERROR: item {number} could not be fetched\n" for number in range(30_000))
    assert MESSAGE in found(flood + MESSAGE + "\n" + flood)


def test_a_traceback_of_an_unusual_error_is_found() -> None:
    """The last line of a traceback counts whatever the error is called."""
    assert found('Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nqueue.Empty\n') == [
        "queue.Empty"
    ]


@pytest.mark.parametrize(
    "line",
    [
        "step 3 val_error=0.31 mem 10.2 GiB",
        "memory_allocated 9.75 max_memory_allocated 10.1",
        "    raise RuntimeError('CUDA out of memory')",
        '  File "/opt/errors.py", line 3, in error',
        "CUDA kernel errors might be asynchronously reported at some other API call",
        "the skilled worker exited with code 0",
    ],
)
def test_what_only_looks_like_an_error_opens_no_window(line: str) -> None:
    """Figures, code, frames and sentences that accompany every error are no errors."""
    assert found(f"{line}\n") == []


def test_the_rest_of_a_message_opens_no_window_of_its_own() -> None:
    """A message over several lines is one place."""
    lines = ["CUDA out of memory. Tried to allocate 1.60 GiB.", "GPU 0 has a total capacity of 8.00 GiB."]
    assert len(found("\n".join([*lines, "Of the allocated memory 6 GiB is allocated by PyTorch"]))) == 1


def test_an_error_after_a_progress_bar_stands_alone() -> None:
    """An error that was printed over or right behind a progress bar is a line of its own."""
    bar = "train:   9%|###   | 1/11 [00:01<00:13,  1.33s/it]"
    (window,) = scan_text(f"{bar.replace('9%', '8%')}\r{bar}THCudaCheck FAIL line=58 error=2 : out of memory\n").windows
    assert window.lines[window.at] == "THCudaCheck FAIL line=58 error=2 : out of memory"
    assert window.lines[window.at - 1] == bar
    assert window.step == 1


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "utf-8-sig"]
)
def test_wide_encodings_are_read(encoding: str) -> None:
    """UTF-16 and UTF-32 are read with a byte order mark and without."""
    (window,) = scan_text(f"Ablauf: schön\n{MESSAGE}\nspäter\n".encode(encoding)).windows
    assert window.lines == ("Ablauf: schön", MESSAGE, "später")


@pytest.mark.parametrize("encoding", ["latin-1", "gbk", "shift_jis", "koi8-r"])
def test_ascii_comes_through_any_other_encoding(encoding: str) -> None:
    """The message is whole whatever stands around it."""
    around = {"latin-1": "größer", "gbk": "显存超标", "shift_jis": "メモリ", "koi8-r": "память"}[encoding]
    assert any(MESSAGE in line for line in found(f"{around}\n{MESSAGE}\n{around}".encode(encoding)))


def test_gzip_is_read_also_where_it_is_cut_off() -> None:
    """A packed log is read, several packed logs in a row are, and so is what a broken one still holds."""
    packed = gzip.compress(f"{MESSAGE}\n".encode()) + gzip.compress(b"MemoryError\n" + FILLER * 5000)
    assert found(packed) == [MESSAGE, "MemoryError"]
    assert MESSAGE in found(packed[:-40])


def test_a_pipe_that_hands_over_little_at_a_time_is_enough() -> None:
    """What is read does not depend on how much of it comes at once."""
    text = FILLER * 40_000 + MESSAGE.encode() + b"\n" + FILLER * 2000
    filler = repr(FILLER.decode())
    program = f"import sys; sys.stdout.write({filler} * 40000 + {MESSAGE!r} + chr(10) + {filler} * 2000)"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        piped = scan(process.stdout, "a.log")
    assert piped == scan_text(text)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=80),
            st.sampled_from(
                [
                    b"\n",
                    b"\r",
                    b"\0",
                    b"\x1b[",
                    b"[rank1]: ",
                    MESSAGE.encode(),
                    b"Traceback (most recent call last):\n",
                    b"error",
                    b"mem 3 GB step 1",
                    b"\xff\xfe",
                ]
            ),
        ),
        max_size=40,
    )
)
def test_no_bytes_break_it(parts: list[bytes]) -> None:
    """Whatever the bytes are, windows keep their promises."""
    result = scan_text(b"".join(parts))
    for window in result.windows:
        assert 0 <= window.at <= 200
        assert window.at < len(window.lines) <= window.at + 41
        assert all(len(line) <= 8192 for line in window.lines)
        assert 1 <= window.line_number <= max(1, result.lines)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=3000), st.integers(1, 500))
def test_regions_hold_every_byte_once(text: bytes, chunk: int) -> None:
    """Regions in a row are the text, without NUL bytes."""
    text = b"a" + text.replace(b"\x1f", b"").replace(b"\0", b"").replace(b"\xff", b"").replace(b"\xfe", b"")
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr(reading, "CHUNK_BYTES", chunk)
        context.setattr(reading, "AFTER_BYTES", 40)
        context.setattr(reading, "BEFORE_BYTES", 100)
        regions = list(reading.read_regions(io.BytesIO(text)))
    assert b"".join(region.data[region.begin : region.end] for region in regions) == text
    assert [region.is_last for region in regions] == [False] * (len(regions) - 1) + [True]


@pytest.mark.parametrize(
    "unit",
    ["CUDA out of memory. Tried {} ", "\n", "x", "error: {}\n", " 3%| | 1/9 [\r", "\0", "memory: 10.2 GiB step {}\n"],
)
def test_memory_stays_bounded_on_extreme_texts(unit: str) -> None:
    """Tens of MB of one line, of empty lines, of errors alone or of NUL bytes take little memory and end in time."""
    program = textwrap.dedent(f"""
        import io
        from oomdoctor.diagnose.text.scan import scan

        unit = {unit!r}
        megabyte = "".join(unit.format(number) for number in range((1 << 20) // len(unit))).encode()[: 1 << 20]

        class Long(io.RawIOBase):
            left = 24

            def read(self, size):
                self.left -= 1
                return megabyte if self.left >= 0 else b""

        before = {PEAK}
        scan(Long(), "a.log")
        print({PEAK} - before)
    """)
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) < 100 * 1024
