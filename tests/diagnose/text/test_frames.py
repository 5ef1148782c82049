"""Frames of a traceback are read however it was printed, and only where the traceback belongs to the message."""

from __future__ import annotations

import faulthandler
import io
import tempfile
import traceback
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st
from printed_tracebacks import BOTH, PRINTED
from rich.console import Console
from rich.traceback import Traceback

from oomdoctor.diagnose.events import read_frames
from oomdoctor.results import SourceLine

MESSAGE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has"


def read(text: str, message: str = MESSAGE) -> tuple[SourceLine, ...]:
    """Frames of a text in which MESSAGE stands for the message."""
    lines = dedent(text).strip("\n").replace("MESSAGE", message).splitlines()
    return read_frames(lines, next(at for at, line in enumerate(lines) if message in line))


def places(frames: tuple[SourceLine, ...]) -> list[tuple[str, int, str | None]]:
    """The frames without their code."""
    return [(frame.path, frame.line, frame.function) for frame in frames]


@pytest.mark.parametrize("text", PRINTED.values(), ids=PRINTED)
def test_reads_every_printers_traceback(text: str) -> None:
    """Two frames with their code come out of each form."""
    message = "CUDA out of memory. Tried to allocate 64.00 MiB." if "C++" in text or "frame #" in text else MESSAGE
    assert read(text, message) == BOTH


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            """
            OutOfMemoryError                          Traceback (most recent call last)
            Cell In[3], line 5
                  3 for batch in batches:
                  4     optimizer.zero_grad()
            ----> 5     train(batch)

            File ~/proj/loop.py:12, in Trainer.step(self, batch)
                 10 loss = self.model(batch)
            ---> 12 loss.backward()

                [... skipping hidden 1 frame]

            MESSAGE
            """,
            [("Cell In[3]", 5, None), ("~/proj/loop.py", 12, "Trainer.step")],
        ),
        (
            """
            <ipython-input-12-0ddba11> in <module>()
                  3 for x in y:
            ----> 4     train(x)

            /home/ada/proj/loop.py in step(self, batch)
                 11
            ---> 12         loss.backward()

            MESSAGE
            """,
            [("<ipython-input-12-0ddba11>", 4, "<module>"), ("/home/ada/proj/loop.py", 12, "step")],
        ),
        (
            """
            Input In [7], in <cell line: 2>()
                  1 config = Config()
            ----> 2 train(config)

            MESSAGE
            """,
            [("Input In [7]", 2, "<cell line: 2>")],
        ),
    ],
    ids=["IPython 8", "IPython 7", "between"],
)
def test_reads_notebooks(text: str, expected: list[tuple[str, int, str | None]]) -> None:
    """Cells and files are frames, and the arrow's line is their code."""
    frames = read(text)
    assert places(frames) == expected
    assert all(frame.code for frame in frames)


def test_a_workers_traceback_follows_that_of_the_process_that_waited() -> None:
    """The user's loop stays among the frames of an error that a worker passed on."""
    frames = read(
        """
        Traceback (most recent call last):
          File "train.py", line 8, in <module>
            for batch in loader:
          File "/x/site-packages/torch/_utils.py", line 700, in reraise
            raise exception
        RuntimeError: Caught RuntimeError in DataLoader worker process 0.
        Original Traceback (most recent call last):
          File "/x/site-packages/torch/utils/data/_utils/worker.py", line 300, in _worker_loop
            data = fetcher.fetch(index)
          File "data.py", line 20, in __getitem__
            return self.images[index].cuda()
        MESSAGE
        """
    )
    assert [frame.line for frame in frames] == [8, 700, 300, 20]


def test_of_a_remote_error_the_one_that_raised_it_counts() -> None:
    """Where an error repeats the words of its cause, the cause's frames are taken, wherever the message is found."""
    lines = dedent(
        f'''
        multiprocessing.pool.RemoteTraceback:
        """
        Traceback (most recent call last):
          File "/usr/lib/python3.11/multiprocessing/pool.py", line 125, in worker
            result = (True, func(*args, **kwds))
          File "work.py", line 7, in train
            loss.backward()
        {MESSAGE}
        """

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "main.py", line 3, in <module>
            pool.map(train, range(8))
          File "/usr/lib/python3.11/multiprocessing/pool.py", line 774, in get
            raise self._value
        {MESSAGE}
        '''
    ).splitlines()
    first, last = (at for at, line in enumerate(lines) if line == MESSAGE)
    assert [frame.line for frame in read_frames(lines, last)] == [125, 7]
    assert read_frames(lines, first) == read_frames(lines, last)


def test_a_second_error_while_the_first_is_handled_keeps_its_own_frames() -> None:
    """An error with other words than the one before it was raised where its own traceback says."""
    other = MESSAGE.replace("64.00", "20.00")
    text = f"""
        Traceback (most recent call last):
          File "train.py", line 5, in fit
            model(batch)
        {other}

        During handling of the above exception, another exception occurred:

        Traceback (most recent call last):
          File "train.py", line 7, in fit
            retry(batch)
        MESSAGE
        """
    assert [frame.line for frame in read(text)] == [7]
    assert [frame.line for frame in read(text.replace("MESSAGE", "X"), other)] == [5]


def test_the_compilers_frames_of_the_users_code_are_innermost() -> None:
    """What PyTorch's compiler names below its message is the user's own line."""
    frames = read(
        """
        Traceback (most recent call last):
          File "train.py", line 3, in <module>
            compiled(x)
          File "/x/site-packages/torch/_dynamo/utils.py", line 99, in run_node
            raise RuntimeError(fn_str + str(e)).with_traceback(e.__traceback__) from e
        torch._dynamo.exc.TorchRuntimeError: Failed running call_function:
        CUDA out of memory. Tried to allocate 64.00 MiB.

        from user code:
           File "model.py", line 14, in forward
            return x @ self.table

        Set TORCH_LOGS="+dynamo" for more information
        """,
        "CUDA out of memory. Tried to allocate 64.00 MiB.",
    )
    assert [frame.line for frame in frames] == [3, 99, 14]
    assert frames[-1] == SourceLine("model.py", 14, "forward", "return x @ self.table")


def test_a_traceback_directly_below_a_message_is_taken() -> None:
    """Old versions of PyTorch print the message first, and a fatal error its threads afterwards."""
    lines = [
        "THCudaCheck FAIL file=THCStorage.cu line=58 error=2 : out of memory",
        "Traceback (most recent call last):",
        '  File "train.py", line 2, in <module>',
        "    main()",
        "RuntimeError: cuda runtime error (2) : out of memory at THCStorage.cu:58",
    ]
    assert [frame.line for frame in read_frames(lines, 0)] == [2]
    with tempfile.TemporaryFile("w+") as dump:
        faulthandler.dump_traceback(dump, all_threads=False)
        dump.seek(0)
        fatal = ["Fatal Python error: Bus error", "", "Current thread 0x00007f00 (most recent call first):"]
        frames = read_frames([*fatal, *dump.read().splitlines()[1:]], 0)
    assert frames[-1].function == "test_a_traceback_directly_below_a_message_is_taken"
    assert frames[0].function == "<module>" or frames[0].path == "<frozen runpy>"


@pytest.mark.parametrize(
    ("lines", "at"),
    [
        (['  File "a.py", line 3, in f', "    f()", "KeyError: 3", "", MESSAGE], 4),
        (['  File "a.py", line 3, in f', "    f()", "KeyError: 3", MESSAGE], 3),
        (['  File "a.py", line 3, in f', "    f()", "KeyError: 3", *["epoch 1"] * 9, "Killed"], 12),
        (["CUDA out of memory.", "Traceback (most recent call last):", '  File "a", line 3, in f', "KeyError: 3"], 0),
        ([MESSAGE, "Traceback (most recent call last):", '  File "a", line 3, in f', MESSAGE], 0),
        (["frame #3: c10::cuda::malloc + 0x1 (0x7f in /opt/libc10_cuda.so)", MESSAGE], 1),
        (["[INFO] engine.py:366 in setup", "/data/a.txt:3", MESSAGE], 2),
    ],
)
def test_another_errors_traceback_is_not_taken(lines: list[str], at: int) -> None:
    """A traceback that ended in another error, long before or after, tells nothing of this one."""
    assert read_frames(lines, at) == ()


@pytest.mark.parametrize(
    "path",
    [
        r"C:\Users\Ada Lovelace\new project\train.py",
        "/home/jürgen/项目/训练 脚本.py",
        "<frozen runpy>",
        "<stdin>",
        "a" * 900,
    ],
)
def test_paths_are_kept_as_printed(path: str) -> None:
    """Blanks, backslashes and letters of any script survive, and frames need no code."""
    frames = read(f'Traceback (most recent call last):\n  File "{path}", line 3, in <lambda>\nMESSAGE')
    assert frames == (SourceLine(path, 3, "<lambda>"),)


def test_long_code_is_cut_and_the_function_may_be_missing() -> None:
    """At most 300 characters of a line are kept."""
    frames = read(f'  File "a.py", line 3\n    x = [{"1, " * 400}]\n  [Previous line repeated 12 more times]\nMESSAGE')
    assert len(frames) == 1
    assert (frames[0].function, len(frames[0].code or "")) == (None, 300)


def _sink(depth: int) -> None:
    if depth == 0:
        raise MemoryError("no room for so many numbers")
    _sink(depth - 1)


@pytest.mark.parametrize("width", [50, 80, 160])
def test_rich_and_python_agree(width: int) -> None:
    """What rich prints at any width gives the frames that Python's own traceback gives."""
    try:
        _sink(2)
    except MemoryError as error:
        standard = traceback.format_exc().splitlines()
        console = Console(file=io.StringIO(), width=width)
        console.print(Traceback.from_exception(type(error), error, error.__traceback__, show_locals=True))
        assert isinstance(console.file, io.StringIO)
        boxed = console.file.getvalue().splitlines()
    expected = places(read_frames(standard, len(standard) - 1))
    at = next(at for at, line in enumerate(boxed) if line.startswith("MemoryError"))
    assert len(expected) == 4
    assert places(read_frames(boxed, at)) == expected


@given(
    st.lists(
        st.sampled_from([line for text in PRINTED.values() for line in dedent(text).splitlines()])
        | st.text(max_size=60),
        max_size=40,
    ),
    st.integers(-3, 50),
)
def test_never_raises_and_stays_in_bounds(lines: list[str], end: int) -> None:
    """Any lines in any order give frames with a path and a number, or none."""
    for frame in read_frames(lines, end):
        assert frame.path
        assert frame.line >= 1
        assert frame.code is None or 0 < len(frame.code) <= 300


@pytest.mark.timeout(20)
@pytest.mark.parametrize("part", ['File "a", line 1, in f ', '\\n  File \\"', "~ ^ ", "│ ", "a.", "/", " in f(", "\\"])
def test_hostile_lines_take_bounded_time(part: str) -> None:
    """400 lines of 8192 characters of one pattern are read in well under a second each."""
    hostile = ['  File "a.py", line 1, in f', *['  File "' + (part * 8192)[:8192]] * 400]
    assert len(read_frames(hostile, 400)) <= 3000
