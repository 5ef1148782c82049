"""Messages as people paste them: on one line, quoted, in reports, in other languages, behind the prefixes of vLLM."""

from __future__ import annotations

import io

import pytest
from quoting import GIB, MIB, read, read_all, window

from oomdoctor.diagnose.diagnose import diagnose
from oomdoctor.diagnose.sources import sources
from oomdoctor.diagnose.text.errors import read_message
from oomdoctor.diagnose.text.reading import clean
from oomdoctor.results import DiagnosisResult, TrainingPhase

ASYNCHRONOUS = "CUDA kernel errors might be asynchronously reported at some other API call"


def diagnosed(text: str) -> DiagnosisResult:
    """What a log of this text is diagnosed as."""
    return diagnose(sources(["-"], io.BytesIO(text.encode())))


@pytest.mark.parametrize("between", ["", " ", "\n"])
def test_a_runtime_error_is_found_however_its_lines_were_joined(between: str) -> None:
    """PyTorch's second sentence hides the first neither on the same line nor below it."""
    result = diagnosed(f"CUDA error: out of memory{between}{ASYNCHRONOUS}, so the stacktrace below might be incorrect.")
    assert (result.is_oom, result.device) == (True, "cuda")


def test_what_torch_prints_below_proves_an_error_in_a_sentence() -> None:
    """A sentence before an error is no objection where the error's second line follows."""
    sentence = "if the cache is on, it fails with RuntimeError: CUDA error: out of memory"
    assert read_all(sentence) == []
    assert read(f"{sentence}\n{ASYNCHRONOUS}").kind == "cuda-runtime"


@pytest.mark.parametrize(
    "text",
    [
        "The RuntimeError: CUDA out of memory occurs when the card is full.",
        "RuntimeError: CUDA out of memory means that the batch is too large.",
        "# CUDA Out of Memory\n\nReduce the batch.",
    ],
)
def test_guides_are_no_errors(text: str) -> None:
    """Explanations of an error, and headings above them, are not taken for the error."""
    result = diagnosed(text)
    assert not result.is_oom
    assert result.occurrences == ()


def test_a_report_names_the_type_in_a_field() -> None:
    """A program's error report in Markdown, whose message says nothing, tells by its type."""
    result = diagnosed(
        "## Error Details\n- **Exception Type:** torch.OutOfMemoryError\n- **Exception Message:** No room\n"
    )
    assert (result.is_oom, result.device) == (True, "cuda")


def test_a_whole_line_in_quotation_marks_is_a_message() -> None:
    """A quoted line is somebody's error, with its numbers."""
    line = '"cupy.cuda.memory.OutOfMemoryError: out of memory to allocate 4096 bytes (total 8192 bytes)"'
    message = read(f"I see this in every run:\n{line}\n", 1)
    assert message.kind == "cupy-allocation"
    assert (message.facts.tried_bytes, message.facts.allocated_bytes) == (4096, 8192)
    assert message.text.startswith("cupy.")


def test_a_quotation_may_begin_a_sentence() -> None:
    """What somebody writes behind a quoted error does not hide it."""
    assert read('"RuntimeError: CUDA error: out of memory". It came at the first step').kind == "cuda-runtime"


def test_a_word_that_a_terminal_broke_is_put_together() -> None:
    """A line that ended in the middle of a word is read with the next one."""
    text = "  what():  [10:11:12] src/storage/./pooled_storage_manager.h:107: cudaMalloc fail\ned: out of memory\n"
    assert read(text).kind == "cuda-library"


def test_a_statement_joined_with_its_error_is_an_error() -> None:
    """In a title the `raise` statement often stands before the error that it raised."""
    words = "No available memory for the cache blocks."
    assert read(f'raise ValueError("{words} ") ValueError: {words} Try a smaller model').kind == "kv-cache"
    assert read_all(f'raise ValueError("{words}")') == []


@pytest.mark.parametrize(
    ("text", "kind", "device", "tried"),
    [
        (
            "E rocm_driver.cc:606] failed to allocate 2.00GiB (2147483648 bytes) from device: HIP_ERROR_OutOfMemory",
            "hip-runtime",
            "hip",
            2 * GIB,
        ),
        (
            "RuntimeError: Resource exhausted: Out of memory while trying to allocate 4096 bytes.",
            "xla-allocator",
            "cuda",
            4096,
        ),
        (
            (
                "[0] E local_client.cc:7] Execution of replica 0 failed: Resource exhausted: Out\n"
                "of memory while trying to allocate 8192 bytes."
            ),
            "xla-allocator",
            "cuda",
            8192,
        ),
        ("[E] [TRT] runtime.cpp (25) - Cuda Error in allocate: 2 (out of memory)", "cuda-library", "cuda", None),
        ("RuntimeError: CUDA is out of the memory here", "out-of-memory-words", "cuda", None),
        (
            "RuntimeError: Not enough memory to handle 512 prefill tokens. Decrease the batch",
            "text-generation-inference",
            "cuda",
            None,
        ),
        (
            (
                "NCCL operation ncclCommInitRank() failed: unhandled cuda error. Last entry (may be unrelated) "
                "'Cuda failure 2 'out of memory''.; scope: all-reduce"
            ),
            "nccl-allocation",
            "cuda",
            None,
        ),
    ],
)
def test_other_frameworks_say_it_in_their_own_way(text: str, kind: str, device: str, tried: int | None) -> None:
    """Kind, device and number of what XLA, TensorFlow on ROCm and NCCL print."""
    message = read(text)
    assert (message.kind, message.device, message.facts.tried_bytes) == (kind, device, tried)


@pytest.mark.parametrize(
    "text",
    [
        "saved the log\n已杀死\n",
        "saved the log\nGetötet\n",
        "saved the log\nTerminado (killed)\n",
        "[launch.py:434:sigkill_handler] ['python', '-u', 'main.py'] exits with return code = -9\n",
        "Your session crashed after using all available RAM.\n",
    ],
)
def test_the_host_ran_out_in_other_words(text: str) -> None:
    """Shells in other languages, DeepSpeed's launcher and notebooks tell of the host's memory."""
    result = diagnosed(text)
    assert (result.is_oom, result.device) == (True, "cpu")


def test_a_launcher_that_passes_on_another_code_tells_nothing_of_memory() -> None:
    """Only the code of a killed process counts."""
    assert not diagnosed("[launch.py:434] ['python', 'main.py'] exits with return code = 1\n").is_oom


def test_a_dead_worker_was_loading_data() -> None:
    """The worker's own line tells the phase, before any traceback."""
    line = (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."
    )
    assert diagnosed(f"{line}\n").facts.phase is TrainingPhase.DATA_LOADING


def test_a_debuggers_list_of_frames_is_read_from_the_inside() -> None:
    """Visual Studio Code prints the innermost frame first, below the message."""
    result = diagnosed(
        "Exception has occurred: RuntimeError\n"
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 8.00 GiB total capacity; 7.00 GiB already allocated; "
        "1.00 MiB free; 7.10 GiB reserved in total by PyTorch)\n"
        '  File "/home/me/net/blocks.py", line 31, in forward\n'
        "    return self.mix(x * self.scale)\n"
        '  File "/home/me/net/train.py", line 12, in <module>\n'
        "    main()\n",
    )
    line = result.facts.user_line
    assert line is not None
    assert (line.path, line.line) == ("/home/me/net/blocks.py", 31)
    assert result.facts.phase is TrainingPhase.FORWARD


VLLM = "(VllmWorker rank=3 pid=77) ERROR 06-05 06:18:13 [multiproc_executor.py:470] "


def test_vllms_prefix_is_taken_off_with_its_rank() -> None:
    """The worker's rank, level, time and place stand before every line; the indentation behind them is the code's."""
    line = clean(f'{VLLM}  File "a.py", line 1, in f'.encode())
    assert (line.rank, line.text) == (3, '  File "a.py", line 1, in f')
    assert clean(b"ERROR 06-05 06:18:13 worker_base.py:581] ValueError: x").text == "ValueError: x"


def test_a_bracket_with_an_m_is_no_colour() -> None:
    """Only a colour whose escape character was lost is taken off, not the beginning of a name in brackets."""
    assert clean(b"[model.layers] loaded").text == "[model.layers] loaded"
    assert clean(b"[mloss").text == "loss"


def test_a_frame_is_no_message() -> None:
    """A frame that Ray marks as repeated is not joined with the error below it, whose numbers count."""
    result = diagnosed(
        '(W pid=5) ERROR 06-05 06:18:13 worker_base.py:5]   File "/x/torch/_device.py", line 6, in f '
        "[repeated 6x across cluster]\n"
        "(W pid=5) ERROR 06-05 06:18:13 worker_base.py:5] RuntimeError: NPU out of memory. Tried to allocate 30.00 MiB "
        "(NPU 3; 60.00 GiB total capacity; 59.00 GiB already allocated; 59.00 GiB current active; 14.00 MiB free; "
        "59.50 GiB reserved in total by PyTorch) [repeated 6x across cluster]\n",
    )
    assert (result.facts.gpu_index, result.facts.tried_bytes) == (3, 30 * MIB)
    assert len(result.occurrences) == 1


def test_a_line_does_not_reach_to_the_error_below_it() -> None:
    """Behind a prefix that nothing knows, code is not taken for the beginning of the error that it raised."""
    text = (
        "<worker one of several> the very long line of code that called the function which in the end ran out\n"
        "<worker one of several> RuntimeError: CUDA error: out of memory\n"
    )
    assert read_message(window(text, 0)) is None
    assert read(text, 1).kind == "cuda-runtime"


def test_a_caption_is_no_error() -> None:
    """The word that somebody wrote above a message is none of its own."""
    assert diagnosed("Error:\n\nAll went well in the end.\n").occurrences == ()
