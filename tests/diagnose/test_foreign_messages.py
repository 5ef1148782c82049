"""Messages of libraries beside PyTorch's allocator, and numbers that cannot be true of one card."""

from __future__ import annotations

import io
import json

import pytest

from oomdoctor.diagnose.diagnose import diagnose
from oomdoctor.diagnose.sources import Source
from oomdoctor.results import Confidence, DiagnosisResult, TrainingPhase
from oomdoctor.units import GIB, MIB


def said(text: str) -> DiagnosisResult:
    """The diagnosis of a text."""
    return diagnose([Source("train.log", None, io.BytesIO(text.encode()))])


def first(result: DiagnosisResult) -> str:
    """The first cause."""
    return result.causes[0].id.value


def remedies(result: DiagnosisResult) -> list[str]:
    """Ids of the remedies, best first."""
    return [remedy.id for remedy in result.remedies]


def out_of_memory(
    tried: str = "2.50 GiB", *, total: str = "23.64 GiB", free: str = "1.25 GiB", held: str = "15.25 GiB", idle: str
) -> str:
    """A message in the form of PyTorch 2.2 and newer."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of {total} "
        f"of which {free} is free. Of the allocated memory {held} is allocated by PyTorch, and {idle} is reserved by "
        "PyTorch but unallocated."
    )


TRACEBACK = 'Traceback (most recent call last):\n  File "{path}", line 12, in {function}\n    {code}\n'

# --- quantized models, NCCL, XLA, TensorFlow -------------------------------------------------------------------------


NO_ROOM = "Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to fit"


@pytest.mark.parametrize(
    "text",
    [
        f"ValueError: {NO_ROOM} the quantized model. If you want to keep them there in 32-bit, set a flag.",
        f"ValueError: \n                {NO_ROOM}\n                the quantized model.",
        f"{NO_ROOM} the quantized model.",
    ],
    ids=["in one line", "below its type", "without a type"],
)
def test_quantized_model_that_is_dispatched_to_the_host_lacks_memory(text: str) -> None:
    """What transformers says of a quantized model that does not fit is a lack of the device's memory."""
    result = said(text)
    assert (result.is_oom, result.device, first(result)) == (True, "cuda", "model_too_large")
    assert remedies(result)[0] == "offload_modules"


NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:340, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nFailed to CUDA calloc 8388608 bytes\n"
)
BARRIER = TRACEBACK.format(
    path="/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
    function="barrier",
    code="work = group.barrier(opts=opts)",
)


@pytest.mark.parametrize(
    "text", [BARRIER + NCCL, NCCL, "node7:31:66 [3] alloc.h:178 NCCL WARN Cuda failure 'out of memory'"]
)
def test_buffers_of_nccl_that_find_no_room_have_a_cause_and_a_remedy(text: str) -> None:
    """NCCL allocates beside PyTorch, whose cache has to leave it room."""
    result = said(text)
    assert first(result) == "library_buffers"
    assert {"room_for_libraries", "smaller_nccl_buffers"} <= set(remedies(result))


def test_barrier_that_runs_out_is_told_to_choose_its_device() -> None:
    """A barrier without a device of its own makes every rank a context on GPU 0."""
    result = said(BARRIER + out_of_memory("2.00 MiB", free="1.00 MiB", held="22.90 GiB", idle="10.00 MiB"))
    assert first(result) == "library_buffers"
    assert "choose_rank_device" in remedies(result)


XLA = (
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes."
    "\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n             parameter allocation:  372.76MiB\n"
    "              constant allocation:    48.5KiB\n        maybe_live_out allocation:    9.64GiB\n"
    "     preallocated temp allocation:    4.44GiB\n                 total allocation:   14.44GiB\n"
)


def test_compiled_program_of_xla_tells_what_it_needs() -> None:
    """The sum that XLA's buffer assignment prints is what the program needs, and is the cause."""
    result = said(XLA)
    assert (first(result), result.causes[0].confidence) == ("batch_too_large", Confidence.LIKELY)
    assert "14.44 GiB in all" in result.causes[0].evidence
    assert {"xla_memory", "rematerialise"} <= set(remedies(result))


@pytest.mark.parametrize(
    ("text", "tried"),
    [
        (
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 20029400304 bytes.",
            20029400304,
        ),
        (
            "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to allocate 98697216 bytes for new constant",
            98697216,
        ),
    ],
)
def test_error_of_xla_without_a_plan_has_a_remedy(text: str, tried: int) -> None:
    """JAX takes its share beforehand, which can be made larger."""
    result = said(f"jaxlib.xla_extension.XlaRuntimeError: {text}")
    assert (result.is_oom, result.device, result.facts.tried_bytes) == (True, "cuda", tried)
    assert first(result) == "batch_too_large"
    assert "xla_memory" in remedies(result)


def test_error_of_tensorflow_has_a_cause_and_a_remedy() -> None:
    """A tensor of TensorFlow that finds no room is answered with the batch and with memory growth."""
    result = said(
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with "
        "shape[64,2016,9,9] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
    )
    assert first(result) == "batch_too_large"
    assert "tensorflow_growth" in remedies(result)


# --- numbers that cannot be true of one card -------------------------------------------------------------------------


def test_more_in_tensors_than_the_card_has_is_a_driver_that_spills() -> None:
    """Tensors beyond the card lie in the system's memory, as drivers for Windows and WSL allow; the bars add up."""
    result = said(out_of_memory("14.00 MiB", total="4.00 GiB", free="0 bytes", held="6.97 GiB", idle="184.73 MiB"))
    assert any("system memory" in note and "WSL" in note for note in result.notes)
    assert "spills" in result.causes[0].evidence


def test_half_the_card_in_one_tensor_is_a_huge_allocation() -> None:
    """A request of most of the card is named before the batch."""
    result = said(out_of_memory("8.13 GiB", total="10.76 GiB", free="8.10 GiB", held="643.57 MiB", idle="32.43 MiB"))
    assert (first(result), result.causes[0].confidence) == ("single_huge_allocation", Confidence.LIKELY)


def test_large_buffer_of_inductor_is_a_huge_allocation() -> None:
    """A compiled program takes its temporaries as buffers; one of a quarter of the card is the one to look at."""
    trace = TRACEBACK.format(
        path="/var/torchinductor_me/ab/cab.py",
        function="call",
        code="buf7 = empty_strided_cuda((64, 1024, 50257), (51463168, 50257, 1), torch.float32)",
    )
    result = said(trace + out_of_memory("6.00 GiB", held="20.50 GiB", free="1.00 GiB", idle="200.00 MiB"))
    assert first(result) == "single_huge_allocation"


def test_request_of_all_that_is_allocated_is_the_optimizers() -> None:
    """DeepSpeed's copy of all weights asks for as much as is allocated, and the line need not say so."""
    trace = TRACEBACK.format(path="train.py", function="main", code="engine, *_ = deepspeed.initialize(model=model)")
    result = said(
        trace + out_of_memory("10.02 GiB", total="14.00 GiB", held="10.00 GiB", free="3.00 GiB", idle="100.00 MiB")
    )
    assert first(result) == "optimizer_state"


@pytest.mark.parametrize("cut", ["Of the allocated", "8.00 GiB is allocated"], ids=["early", "late"])
def test_cap_that_is_named_is_the_cause_where_the_card_has_room(cut: str) -> None:
    """Where much is free, the cap refused it, even if the message is cut before what is held."""
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 "
        "GiB of which 14.00 GiB is free. 9.00 GiB allowed; Of the allocated memory 8.00 GiB is allocated by PyTorch"
    )
    result = said(text[: text.index(cut) + 4])
    assert result.facts.allowed_bytes == 9 * GIB
    assert first(result) == "memory_fraction_cap"


# --- the host --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "exit status 137",
        "Process finished with exit code 137",
        "train exited with code 137",
        "command terminated with exit code 137",
        "[taskcluster] Unsuccessful task run with exit code: 137 completed in 1034.5 seconds",
    ],
)
def test_exit_status_137_without_more_is_likely_the_hosts_memory(text: str) -> None:
    """Status 137 is a kill, and the host's memory is its usual reason."""
    result = said(text)
    assert (first(result), result.causes[0].confidence) == ("host_oom", Confidence.LIKELY)


ARRAY = "numpy._core._exceptions._ArrayMemoryError: Unable to allocate"


@pytest.mark.parametrize(
    ("text", "tried"),
    [
        (f"{ARRAY} 58.0 GiB for an array with shape (176351, 176460) and data type uint16", 58 * GIB),
        (f"{ARRAY} 117. GiB for an array with shape (104812, 5070, 59) and data type int32", 117 * GIB),
        (f"{ARRAY} array with shape (9681, 9681) and data type float64", 9681 * 9681 * 8),
        (f'# "{ARRAY} 41.5 GB for array with form (172928, 32001)"', round(41.5 * GIB)),
        (f"{ARRAY[:-9]}\n allocate 94.9 MiB for an array with shape (2160, 3840, 3) a\nnd", round(94.9 * MIB)),
    ],
    ids=["sized", "rounded", "by its shape", "quoted", "wrapped"],
)
def test_array_of_numpy_keeps_its_size(text: str, tried: int) -> None:
    """What numpy could not allocate is what was asked for, printed or by shape and type."""
    result = said(text)
    assert (result.device, result.facts.tried_bytes, first(result)) == ("cpu", tried, "host_oom")


def test_one_large_array_is_not_cured_by_fewer_workers() -> None:
    """A single allocation of many GiB is made smaller or mapped; workers of a loader have no part in it."""
    large = said("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes.")
    small = said("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 26214400 bytes.")
    assert "fewer_workers" not in remedies(large)
    assert remedies(large)[0] == "smaller_host_array"
    assert "fewer_workers" in remedies(small)


@pytest.mark.parametrize(
    "text",
    [
        "ImportError: libtorch_cuda.so: failed to map segment from shared object: Cannot allocate memory",
        "RuntimeError: unable to mmap 17179869184 bytes from file <model.safetensors>: Cannot allocate memory (12)",
    ],
)
def test_exhausted_address_space_is_the_hosts(text: str) -> None:
    """A mapping that fails is a lack of address space or memory of the host, whatever the device has."""
    result = said(text)
    assert (result.device, first(result)) == ("cpu", "host_oom")
    assert "address_space" in remedies(result)


# --- nvidia-smi ------------------------------------------------------------------------------------------------------

NVIDIA_SMI = """\
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.183.01             Driver Version: 535.183.01   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|                                         |                      |               MIG M. |
|=========================================+======================+======================|
|   0  Tesla T4                       On  | 00000000:00:07.0 Off |                    0 |
| N/A   44C    P8              10W /  70W |  14600MiB / 15360MiB |      0%      Default |
|                                         |                      |                  N/A |
+-----------------------------------------+----------------------+----------------------+
+---------------------------------------------------------------------------------------+
| Processes:                                                                            |
|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |
|        ID   ID                                                             Usage      |
|=======================================================================================|
{processes}+---------------------------------------------------------------------------------------+
"""
HOLDER = "|    0   N/A  N/A      4242      C   python serve.py                           14590MiB |\n"
SMALL = (
    "RuntimeError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 14.75 GiB of which "
    "20.00 MiB is free."
)


@pytest.mark.parametrize("processes", [HOLDER, ""], ids=["with processes", "without"])
@pytest.mark.parametrize("between", [0, 3000])
def test_table_of_nvidia_smi_tells_who_holds_the_card(processes: str, between: int) -> None:
    """A table far above the error names the process that holds the card, or at least that another does."""
    log = NVIDIA_SMI.format(processes=processes) + "loading\n" * between + "batch_size=1\n" + SMALL
    result = said(log)
    assert first(result) == "other_process"
    if processes:
        assert [(one.pid, one.used_bytes) for one in result.facts.other_processes] == [(4242, 14590 * MIB)]
        assert "kill 4242" in (result.remedies[0].how or "")


def test_table_of_nvidia_smi_after_the_error_tells_it_too() -> None:
    """A table that was pasted below the error is of the same card."""
    result = said(SMALL + "\n\n" + NVIDIA_SMI.format(processes=HOLDER))
    assert first(result) == "other_process"


def test_own_process_in_the_table_is_not_another() -> None:
    """A process that holds what the error says of this one is this one."""
    error = out_of_memory("64.00 MiB", total="14.75 GiB", free="20.00 MiB", held="13.80 GiB", idle="50.00 MiB")
    result = said(NVIDIA_SMI.format(processes=HOLDER) + error)
    assert first(result) != "other_process"


def test_old_card_is_not_advised_to_compute_in_bfloat16() -> None:
    """A T4 has compute capability 7.5 and no bfloat16: half precision with a scaler is advised."""
    trace = TRACEBACK.format(path="train.py", function="step", code="loss = model(x)")
    error = out_of_memory("1.00 GiB", total="14.75 GiB", free="20.00 MiB", held="13.80 GiB", idle="50.00 MiB")
    old = said(NVIDIA_SMI.format(processes="") + trace + error)
    new = said("GPU 0: NVIDIA A10\n" + trace + error)
    assert ("bf16_autocast" in remedies(old), "fp16_autocast" in remedies(old)) == (False, True)
    assert ("bf16_autocast" in remedies(new), "fp16_autocast" in remedies(new)) == (True, False)


# --- phases and lines of other formats -------------------------------------------------------------------------------

DEATH = (
    'Traceback (most recent call last):\n  File "train.py", line 31, in <module>\n    loss.backward()\n'
    '  File "/v/lib/python3.12/site-packages/torch/_tensor.py", line 626, in backward\n    torch.autograd.backward(\n'
)


def as_docker_writes(text: str) -> str:
    """A log as Docker's `json-file` driver keeps it: a JSON object a line."""
    return "".join(
        json.dumps(
            {"log": f"{line}\n", "stream": "stderr", "time": "2026-11-22T10:00:00.000000000Z"}, separators=(",", ":")
        )
        + "\n"
        for line in text.splitlines()
    )


def test_json_log_of_docker_keeps_phase_and_line() -> None:
    """Docker's own files wrap every line in JSON; what they hold is read as if it had been printed."""
    log = f"step 40  loss 2.31\n{DEATH}{out_of_memory(idle='6.62 GiB')}"
    plain, wrapped = said(log), said(as_docker_writes(log))
    assert wrapped.facts == plain.facts
    assert wrapped.facts.phase is TrainingPhase.BACKWARD
    assert wrapped.facts.user_line is not None
    assert wrapped.facts.user_line.code == "loss.backward()"


def test_log_of_kubernetes_keeps_phase_and_line() -> None:
    """Container runtimes put the time, the stream and a flag in front of each line."""
    log = f"{DEATH}{out_of_memory(idle='6.62 GiB')}"
    wrapped = "".join(f"2026-11-22T10:00:00.000000000Z stderr F {line}\n" for line in log.splitlines())
    assert said(wrapped).facts == said(log).facts


MEMORY_SUMMARY = """\
|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 0                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 1            |        cudaMalloc retries: 2         |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      |  15616 MiB |  15872 MiB |  42211 MiB |  26595 MiB |
| GPU reserved memory   |  22395 MiB |  22395 MiB |  22395 MiB |      0 B   |
|===========================================================================|
"""


@pytest.mark.parametrize("where", ["above", "below"])
def test_memory_summary_beside_the_error_keeps_phase_and_line(where: str) -> None:
    """A table of `torch.cuda.memory_summary()` is no part of the message, the traceback or the trend."""
    log = f"{DEATH}{out_of_memory(idle='6.62 GiB')}\n"
    result = said(f"{MEMORY_SUMMARY}{log}" if where == "above" else f"{log}{MEMORY_SUMMARY}")
    assert result.facts == said(log).facts


def test_memory_summary_gives_the_numbers_that_the_error_lacks() -> None:
    """Where the error has no numbers, those of the table count."""
    result = said(f"{DEATH}RuntimeError: CUDA error: out of memory\n{MEMORY_SUMMARY}")
    assert (result.facts.allocated_bytes, result.facts.reserved_bytes) == (15616 * MIB, 22395 * MIB)
    assert result.facts.phase is TrainingPhase.BACKWARD


def test_traceback_of_jax_keeps_phase_and_line() -> None:
    """JAX filters its frames and puts a rule and a notice between the traceback and the error."""
    text = (
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 58, in <module>\n    main()\n'
        '  File "/home/me/train.py", line 44, in main\n    grads = jax.grad(loss_fn)(params, batch)\n'
        "            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "jax.errors.SimplifiedTraceback: For simplicity, JAX has removed its internal frames from the traceback of the "
        "following exception. Set JAX_TRACEBACK_FILTERING=off to include these.\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 58, in <module>\n    main()\n'
        '  File "/home/me/train.py", line 44, in main\n    grads = jax.grad(loss_fn)(params, batch)\n'
        '  File "/v/lib/python3.11/site-packages/jax/_src/pjit.py", line 1192, in call_impl_cache_miss\n'
        "    out_flat, compiled = pjit_call_impl(*args)\n"
        f"{XLA}"
        "--------------------\nFor simplicity, JAX has removed its internal frames from the traceback of the following "
        "exception. Set JAX_TRACEBACK_FILTERING=off to include these.\n"
    )
    result = said(text)
    assert result.facts.tried_bytes == 4770354232
    assert result.facts.user_line is not None
    assert (result.facts.user_line.line, result.facts.phase) == (44, TrainingPhase.BACKWARD)
