"""Which of several errors in a window counts: the cause, not what passed it on."""

from __future__ import annotations

import pytest
from quoting import GIB, read, read_all, window

from oomdoctor.diagnose.text.errors import read_message

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
    "24.00 GiB of "
    "which 1.00 GiB is free."
)
TRACEBACK = f'Traceback (most recent call last):\n  File "train.py", line 3, in step\n    loss.backward()\n{OOM}'
LATER = 'Traceback (most recent call last):\n  File "main.py", line 9, in main\n    raise TrainingFailed'


def counts(text: str) -> list[str]:
    """Kinds of the messages that the lines of a text lead to."""
    return [message.kind for message in read_all(text)]


@pytest.mark.parametrize(
    "link",
    [
        "The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:",
    ],
)
def test_an_error_raised_from_an_oom_is_the_oom(link: str) -> None:
    """The last line of a chain leads to the error that started it."""
    text = f"{TRACEBACK}\n\n{link}\n\n{LATER}\nmine.TrainingFailed: at step 7"
    message = read(text, len(text.splitlines()) - 1)
    assert (message.kind, message.facts.tried_bytes, message.first) == ("cuda-allocator", 2 * GIB, 3)


def test_an_error_beside_an_oom_is_itself() -> None:
    """An error that happens to stand below an OOM, without a chain, is not put down to it."""
    text = f"{TRACEBACK}\n\n{LATER}\nmine.TrainingFailed: at step 7"
    assert read(text, len(text.splitlines()) - 1).kind == "other-error"


@pytest.mark.parametrize(
    "echo",
    [
        (
            "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 1 (pid: 7) of "
            "binary: python"
        ),
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "RuntimeError: NCCL communicator was aborted on rank 3.",
        "RuntimeError: [pair.cc:589] Connection closed by peer [10.0.0.1]:1",
        "subprocess.CalledProcessError: Command 'python' returned non-zero exit status 1.",
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "RuntimeError: DataLoader worker (pid 4) is killed by signal: Terminated. ",
    ],
)
def test_a_summary_below_an_oom_is_the_oom(echo: str) -> None:
    """A launcher's summary or a peer's complaint leads to the OOM above it; alone it is no OOM of a GPU."""
    assert read(f"{TRACEBACK}\n\n{echo}", 5).kind == "cuda-allocator"
    assert read(echo).device in {"none", "cpu"}


@pytest.mark.parametrize(
    "head",
    [
        "RuntimeError: Caught OutOfMemoryError in replica 1 on device 1.\nOriginal Traceback (most recent call last):",
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with the following error:",
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::train() (pid=12)",
    ],
)
def test_an_error_that_carries_another_ones_traceback_is_that_one(head: str) -> None:
    """What a worker raised is printed below the error that brought it."""
    message = read(f"{head}\n{TRACEBACK}")
    assert (message.kind, message.facts.gpu_index) == ("cuda-allocator", 1)


def test_a_later_oom_does_not_change_an_earlier_error() -> None:
    """Each error of a log is read where it stands."""
    assert counts(f"ValueError: bad flag\n\n{OOM}") == ["other-error", "cuda-allocator"]


def test_an_error_whose_cause_stands_on_its_later_lines_is_read_with_them() -> None:
    """NCCL says on its last line that it was memory."""
    text = (
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.19.3\nncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\nFailed to CUDA calloc async 608 bytes\n"
    )
    message = read(text)
    assert (message.kind, message.is_oom, message.facts.tried_bytes) == ("nccl-allocation", True, 608)
    assert (message.first, message.last) == (0, 3)


def test_what_nccl_prints_on_two_lines_is_one_error() -> None:
    """Whichever line is looked at, the bytes and the device are found."""
    text = (
        "n1:41:42 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n"
        "n1:41:42 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 4096 bytes"
    )
    assert [(message.facts.tried_bytes, message.facts.gpu_index) for message in read_all(text)] == [(4096, 3)] * 2


def test_a_line_that_is_not_in_the_window_yields_nothing() -> None:
    """A window that points beyond its lines is answered, not raised at."""
    assert read_message(window("", 0)) is None
    assert read_message(window(OOM, 7)) is None
    assert read_message(window(OOM, -1)) is None
