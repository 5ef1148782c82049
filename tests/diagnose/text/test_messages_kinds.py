"""Which memory an error is about, other libraries' numbers, and what is no error at all."""

from __future__ import annotations

import pytest
from quoting import GIB, MIB, read, read_all

from oomdoctor.agent.oom_errors import table
from oomdoctor.results import Facts

ALWAYS_OOM = [row for row in table().rows if row.means == "oom" and not row.needs_pressure]

NUMBERED: list[tuple[str, str, str, dict[str, int]]] = [
    ("Invalid buffer size: 24.50 GB", "mps-buffer", "mps", {"tried_bytes": GIB * 49 // 2}),
    (
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried "
            "to allocate 123456789 bytes. Error code 12 (Cannot allocate memory)"
        ),
        "host-allocator",
        "cpu",
        {"tried_bytes": 123456789},
    ),
    (
        "RuntimeError: $ Torch: not enough memory: you tried to allocate 3GB. Buy new RAM! at THGeneral.cpp:201",
        "host-allocator",
        "cpu",
        {"tried_bytes": 3 * GIB},
    ),
    (
        "RuntimeError: unable to mmap 987654321 bytes from file <m.bin>: Cannot allocate memory (12)",
        "host-system",
        "cpu",
        {"tried_bytes": 987654321},
    ),
    (
        "node:11:12 [5] include/alloc.h:80 NCCL WARN Failed to CUDA calloc async 2048 bytes",
        "nccl-allocation",
        "cuda",
        {"tried_bytes": 2048, "gpu_index": 5},
    ),
    (
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1234567890 bytes.",
        "xla-allocator",
        "cuda",
        {"tried_bytes": 1234567890},
    ),
    (
        "RESOURCE_EXHAUSTED: Failed to allocate request for 1.15GiB (1234567890B) on device ordinal 2",
        "xla-allocator",
        "cuda",
        {"tried_bytes": 1234567890, "gpu_index": 2},
    ),
    (
        (
            "RuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 9.50G at the bottom of memory. That was "
            "not possible. "
            "There are 6.50G free, 0B reserved"
        ),
        "xla-unspecific",
        "cuda",
        {"tried_bytes": GIB * 19 // 2, "free_bytes": GIB * 13 // 2},
    ),
    (
        (
            "ResourceExhaustedError: OOM when allocating tensor with shape[3,5,7] and type double on "
            "/job:localhost/replica:0"
            "/task:0/device:GPU:2 by allocator GPU_2_bfc [Op:Mul]"
        ),
        "tensorflow-allocator",
        "cuda",
        {"tried_bytes": 840, "gpu_index": 2},
    ),
    (
        (
            "ResourceExhaustedError: OOM when allocating tensor with shape[3,5] and type bfloat16 on /device:CPU:0 by "
            "allocator cpu"
        ),
        "tensorflow-allocator",
        "cpu",
        {"tried_bytes": 30},
    ),
    (
        "Allocator (GPU_1_bfc) ran out of memory trying to allocate 1.50GiB (rounded to 1610612992)requested by op Mul",
        "tensorflow-allocator",
        "cuda",
        {"tried_bytes": 1610612992, "gpu_index": 1},
    ),
    (
        (
            "Out of memory error on GPU 4. Cannot allocate 2.500000GB memory on GPU 4, 20.250000GB memory has been "
            "allocated "
            "and available memory is only 0.000000B."
        ),
        "paddle-allocator",
        "cuda",
        {"tried_bytes": GIB * 5 // 2, "allocated_bytes": GIB * 81 // 4, "free_bytes": 0, "gpu_index": 4},
    ),
    (
        "Fail: Available memory of 1024 is smaller than requested bytes of 777777",
        "onnxruntime",
        "cuda",
        {"tried_bytes": 777777},
    ),
    (
        (
            "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,234,567,890 bytes (allocated so far: "
            "22,000 bytes, "
            "limit set to: 1,300,000,000 bytes)."
        ),
        "cupy-allocation",
        "cuda",
        {"tried_bytes": 1234567890, "allocated_bytes": 22000, "allowed_bytes": 1300000000},
    ),
    (
        (
            "MemoryError: std::bad_alloc: out_of_memory: RMM failure at:/r.hpp:1: Maximum pool size exceeded "
            "(failed to "
            "allocate 8.500000 GiB): No room in pool."
        ),
        "rmm-pool",
        "cuda",
        {"tried_bytes": GIB * 17 // 2},
    ),
    (
        "failed to allocate 10.9G (11703785472 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "cuda-error-name",
        "cuda",
        {"tried_bytes": 11703785472},
    ),
    (
        "ggml_backend: allocating 5120.50 MiB on device 1: cudaMalloc failed: out of memory",
        "cuda-library",
        "cuda",
        {"tried_bytes": MIB * 10241 // 2, "gpu_index": 1},
    ),
    (
        "Requested amount of GPU memory (123456 bytes) could not be allocated.",
        "tensorrt",
        "cuda",
        {"tried_bytes": 123456},
    ),
    (
        "RuntimeError: FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::33554432 (32)MB",
        "hpu-allocator",
        "hpu",
        {"tried_bytes": 33554432},
    ),
    (
        (
            "ValueError: Free memory on device cuda:0 (3.50/23.50 GiB) on startup is less than desired GPU memory "
            "utilization "
            "(0.9, 21.15 GiB)."
        ),
        "kv-cache",
        "cuda",
        {"free_bytes": GIB * 7 // 2, "total_bytes": GIB * 47 // 2},
    ),
]


@pytest.mark.parametrize(("text", "kind", "device", "numbers"), NUMBERED, ids=lambda value: str(value)[:24])
def test_other_libraries_numbers_are_read(text: str, kind: str, device: str, numbers: dict[str, int]) -> None:
    """Each library's message yields the numbers that it prints and nothing else."""
    message = read(text)
    assert (message.kind, message.device, message.is_oom) == (kind, device, True)
    assert message.facts == Facts(**numbers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("MemoryError", "host-python"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9. GiB for an array", "host-python"),
        ("OSError: [Errno 12] Cannot allocate memory", "host-system"),
        ("OSError: [WinError 1455] The paging file is too small", "host-system"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "host-heap"),
        ("java.lang.OutOfMemoryError: Java heap space", "host-heap"),
        (
            "RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. It is possible",
            "host-shared-memory",
        ),
        ("RuntimeError: unable to write to file </torch_12_34>", "host-shared-memory"),
        ("ERROR: Unexpected bus error encountered in worker. This might be caused by", "host-shared-memory"),
        ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed.", "killed"),
        ("Killed", "killed"),
        ("run.sh: line 3:  4242 Killed                  python train.py", "killed"),
        ("[1]    4242 killed     python train.py", "killed"),
        ("Process finished with exit code 137", "killed"),
        ("  exitcode  : -9 (pid: 4242)", "killed"),
        ("api:failed (exitcode: -9) local_rank: 0 (pid: 7) of binary: python", "killed"),
        ("CalledProcessError: Command 'python' died with <Signals.SIGKILL: 9>.", "killed"),
        ("[99.9] Memory cgroup out of memory: Killed process 42 (python) total-vm:1kB", "kernel-oom-killer"),
        ("slurmstepd: error: Detected 3 oom_kill events in StepId=1.0.", "slurm-oom"),
        ("    Reason:       OOMKilled", "container-oom"),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "host-ray"),
    ],
)
def test_the_hosts_memory_is_told_from_the_gpus(text: str, kind: str) -> None:
    """An error or a notice about the host's memory is an OOM, of the processor; numpy's has a number."""
    message = read(text)
    assert (message.kind, message.is_oom, message.device) == (kind, True, "cpu")
    assert message.facts == Facts(tried_bytes=9 * GIB if "allocate 9. GiB" in text else None)


@pytest.mark.parametrize(
    ("text", "kind", "device"),
    [
        ("RuntimeError: CUDA out of memory.", "cuda-allocator-short", "cuda"),
        ("[01:02] ERROR - CUDA out of memory.", "cuda-allocator-short", "cuda"),
        ("RuntimeError: CUDA error: out of memory", "cuda-runtime", "cuda"),
        ('{"message": "CUDA error: out of memory"}', "cuda-runtime", "cuda"),
        ("failed: RuntimeError('CUDA error: out of memory')", "cuda-runtime", "cuda"),
        (
            "99%|█ | 9/10 [1.3s/it]THCudaCheck FAIL file=a.cu line=5 error=2 : out of memory",
            "cuda-runtime-numbered",
            "cuda",
        ),
        ("CUDA error 2 at a.cu:7: out of memory", "cuda-library", "cuda"),
        ("RuntimeError: cublas runtime error : resource allocation failed at a.cpp:2", "cublas-allocation", "cuda"),
        ("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`", "solver-allocation", "hip"),
        ("RuntimeError: HIP error: out of memory 显存不足", "hip-runtime", "hip"),
        ("RuntimeError: Unable to find a valid cuDNN algorithm to run convolution", "cudnn-no-engine", "cuda"),
        ("RuntimeError: GET was unable to find an engine to execute this computation", "cudnn-no-engine", "cuda"),
        (
            (
                "NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at "
                '"../CUDACachingAllocator.cpp":9'
            ),
            "nvml-assert",
            "cuda",
        ),
        ("Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", "mps-command-buffer", "mps"),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.29G of 15.48G hbm.",
            "xla-allocator",
            "xla",
        ),
        ("vllm-1  | ERROR [core.py:9] ValueError: No available memory for the cache blocks.", "kv-cache", "cuda"),
        ("torch.OutOfMemoryError: no room", "torch-type", "cuda"),
    ],
)
def test_errors_without_numbers_name_their_device(text: str, kind: str, device: str) -> None:
    """Where only words tell, the kind and the device are told and no number."""
    message = read(text)
    assert (message.kind, message.is_oom, message.device) == (kind, True, device)
    assert message.facts == Facts()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("OutOfResources: out of resource: shared memory, Required: 123, Hardware limit: 99", "kernel-resources"),
        ("E OutOfResources: out of resource: shared memoryRequired: 123Hardware limit: 99", "kernel-resources"),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered", "device-assert"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "illegal-address"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.", "cudnn-not-supported"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `x`", "cublas-not-initialized"),
        ("RuntimeError: NCCL error in: a.cpp:1, unhandled cuda error, NCCL version 2.21.5", "nccl-unhandled"),
        ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Terminated.", "other-error"),
        ("RuntimeError: CUDA error: unknown error", "other-error"),
        ("ValueError: batch_size should be positive", "other-error"),
        ("KeyError: 'out_of_memory'", "other-error"),
        ("Segmentation fault (core dumped)", "other-error"),
    ],
)
def test_what_looks_alike_is_told_and_is_no_oom(text: str, kind: str) -> None:
    """Other errors are reported as what they are, and no memory is blamed."""
    message = read(text)
    assert (message.kind, message.is_oom, message.device) == (kind, False, "none")


@pytest.mark.parametrize("row", [row for row in table().rows if row.means == "limit"], ids=lambda row: row.id)
def test_a_size_limit_is_no_oom(row: object) -> None:
    """More memory would not lift a limit."""
    example = getattr(row, "example", "")
    message = read(f"RuntimeError: {example}")
    assert (message.kind, message.is_oom) == (getattr(row, "id", ""), False)


@pytest.mark.parametrize("row", ALWAYS_OOM, ids=lambda row: row.id)
def test_every_row_of_the_table_is_an_oom_by_its_text(row: object) -> None:
    """What the prober counts as out of memory without further evidence, a reader of logs counts too."""
    example, name = getattr(row, "example", ""), getattr(row, "types", ("",))[0]
    message = read(f"{name}: {example}")
    assert message.is_oom
    assert message.device != "none"


@pytest.mark.parametrize(
    "text",
    [
        "# if you see CUDA out of memory, lower the batch size",
        "If you get RuntimeError: CUDA out of memory, reduce --batch-size.",
        'How do I solve "RuntimeError: CUDA out of memory"?',
        "    except torch.cuda.OutOfMemoryError as error:",
        '    raise torch.cuda.OutOfMemoryError("CUDA out of memory")',
        "    if 'CUDA out of memory' in str(error):",
        '        raise RuntimeError("CUDA error: out of memory")',
        "--oom-retry enabled, out_of_memory=True",
        "WARNING: CUDA out of memory, retrying with batch size 32",
        "Fixes CUDA out of memory errors on large images",
        "    RuntimeError: If the device runs out of memory.",
        "[cudaMallocAsync] recovered from an allocation failure by trimming the pool and retrying.",
        "nvmlInit_v2 failed; omitting per-process memory info from CUDA out-of-memory messages.",
        (
            "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.1GiB. The caller indicates that this is "
            "not a failure"
        ),
        '"OOMKilled": false,',
        "This keeps the process from being killed when you see exit code 137.",
        "CUDA OOMs: 0 | cudaMalloc retries: 0",
        "case CUDA_ERROR_OUT_OF_MEMORY:",
        "",
    ],
)
def test_a_text_that_only_mentions_memory_is_nothing(text: str) -> None:
    """Advice, code, options, and warnings about what went well in the end are no errors."""
    assert read_all(text) == []
