"""The table of errors: out-of-memory errors of devices, and errors that only look alike.

Text and patterns are brought into lower case, which is several times faster than to have `re` ignore the case.

Every example is written for this table from the parts of the message that stay the same between versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from string import ascii_lowercase, ascii_uppercase
from typing import Final, Literal

from oomdoctor.results import Outcome

RowDevice = Literal["cuda", "hip", "xpu", "mps", "hpu", "npu", "xla", "cpu", "any"]

FRAMEWORK: Final = (
    "RuntimeError",  # PyTorch's own errors and nearly all of those that C++ raises through a binding
    "MemoryError",  # memory managers that put the device's error into Python's own, such as RMM's
    "torch.multiprocessing.spawn.ProcessRaisedException",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
    "concurrent.futures.process._RemoteTraceback",
    "multiprocessing.pool.RemoteTraceback",
    "ray.exceptions.RayTaskError",
)
"""Types whose text is evidence: what frameworks raise, and what carries another process's traceback as text."""

TORCH_OOM: Final = ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way in which an error reads, and what it says.

    Attributes:
        id: Stable name.
        outcome: What the trial's outcome is where the row decides.
        patterns: Regular expressions, upper and lower case alike; the text must contain a match of every one.
        raised_by: Qualified names of exception types, builtins without a module; the error must be an instance of one.
        needs_pressure: The text alone decides nothing: it is an OOM only where memory was nearly exhausted, and
            `FAILED` otherwise.
        not_when_ample: An OOM unless at least half of the device is known to have been free; `FAILED` then.
        device: Whose memory it is about; `any` where the error does not tell.
        example: A text that the row matches when raised as the first of `raised_by`.
        reason: Why this is or is not an OOM, without a trailing period.
        source: Where it was reported.
    """

    id: str
    outcome: Outcome = Outcome.OOM
    patterns: tuple[str, ...]
    raised_by: tuple[str, ...] = FRAMEWORK
    needs_pressure: bool = False
    not_when_ample: bool = False
    device: RowDevice = "cuda"
    example: str
    reason: str
    source: str


_LOWER: Final = str.maketrans(ascii_uppercase, ascii_lowercase)
_UPPER: Final = re.compile(r"\\.|[A-Z]")  # what is escaped keeps its case: `\W` is not `\w`


def lowered(text: str) -> str:
    """The text in lower case; every character keeps its place."""
    return text.translate(_LOWER)


def search(pattern: str, text: str) -> re.Match[str] | None:
    """Find a pattern of the table in a text that is in lower case; `^` is the beginning of a line."""
    return _compile(pattern).search(text)


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    in_lower_case = _UPPER.sub(lambda match: match[0] if match[0][0] == "\\" else match[0].lower(), pattern)
    return re.compile(in_lower_case, re.MULTILINE)


ELSEWHERE: Final = (
    Row(
        id="cuda-library",
        patterns=(
            (
                r"\bCUDA (?:failure|error)\b[^\n]{1,200}: (?:\d+ )?out of memory|\bCUDA failure: out of memory"
                r"|Cuda Error in \w{1,40}: 2 \(out of memory\)"
                r"|cudaMalloc failed: out of memory|Cuda Runtime \(out of memory\)|\bCUDA_OUT_OF_MEMORY\b"
            ),
        ),
        example="CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc((void**)&p, size);",
        reason="a CUDA library in the process found no device memory",
        source="onnxruntime, core/providers/cuda/cuda_call.cc",
    ),
    Row(
        id="hip-library",
        patterns=(
            (
                r"\bHIP (?:failure|error)\b[^\n]{1,200}: (?:\d+ )?out of memory|\bROCm error: out of memory"
                r"|hipMalloc failed: out of memory|HSA_STATUS_ERROR_OUT_OF_RESOURCES|miopenStatusAllocFailed"
                r"|rocblas_status_memory_error"
            ),
        ),
        device="hip",
        example="ROCm error: out of memory",
        reason="a ROCm library in the process found no device memory",
        source="llama.cpp, ggml-cuda.cu",
    ),
    Row(
        id="bitsandbytes",
        patterns=(r"Error out of memory at line \d+",),
        example="Error out of memory at line 88 in file /src/csrc/ops.cu",
        reason="bitsandbytes allocates beside PyTorch's allocator and found no room",
        source="bitsandbytes, csrc/ops.cu",
    ),
    Row(
        id="rmm-pool",
        patterns=(r"RMM failure at|Maximum pool size exceeded",),
        raised_by=("MemoryError", *FRAMEWORK),
        example="std::bad_alloc: out_of_memory: RMM failure at: /rmm/mr/device/pool_memory_resource.hpp: Maximum pool "
        "size exceeded",
        reason="RMM's memory pool, which shares the device, found no room",
        source="RMM, pool_memory_resource.hpp",
    ),
    Row(
        id="tensorrt",
        patterns=(r"Requested amount of GPU memory \(\d+ bytes\) could not be allocated",),
        example="Requested amount of GPU memory (2147483648 bytes) could not be allocated. There may not be enough "
        "free memory for allocation to succeed.",
        reason="TensorRT found no device memory for an engine or its workspace",
        source="TensorRT, defaultAllocator.cpp",
    ),
    Row(
        id="text-generation-inference",
        patterns=(r"Not enough memory to handle \d+ (?:\w+ )?tokens",),
        device="any",
        example="Not enough memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`",
        reason="the server tried the largest request that its options allow, and the GPU could not hold it",
        source="text-generation-inference#755",
    ),
    Row(
        id="onnxruntime",
        patterns=(
            r"Failed to allocate memory for requested buffer of size \d+|is smaller than requested bytes of \d+",
        ),
        example="bfc_arena.cc AllocateRawInternal Failed to allocate memory for requested buffer of size 2147483648",
        reason="ONNX Runtime's memory arena found no room",
        source="onnxruntime, core/framework/bfc_arena.cc",
    ),
    Row(
        id="paddle-allocator",
        patterns=(r"Out of memory error on (?:GPU|NPU|XPU) \d+",),
        raised_by=("MemoryError", "SystemError", *FRAMEWORK),
        example="Out of memory error on GPU 0. Cannot allocate 2.500000GB memory on GPU 0, available memory is only "
        "1.000000GB.",
        reason="Paddle's allocator, which shares the device, found no room",
        source="Paddle, cuda_allocator.cc",
    ),
    Row(
        id="mps-command-buffer",
        patterns=(r"kIOGPUCommandBufferCallbackErrorOutOfMemory",),
        device="mps",
        example="Execution of the command buffer was aborted due to an error during execution. Insufficient Memory "
        "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        reason="Metal found no memory to run what PyTorch had queued",
        source="Apple, MTLCommandBufferError",
    ),
    Row(
        id="xpu-block-limit",
        patterns=(r"can NOT allocate memory block with size larger than",),
        device="xpu",
        example="Current platform can NOT allocate memory block with size larger than 4GB! Tried to allocate 6.50 GiB",
        reason="one allocation is larger than any block that the Intel GPU's driver gives out",
        source="intel-extension-for-pytorch#492",
    ),
)
"""Rows of other libraries that are an OOM whatever else is known."""


__all__ = ["EXHAUSTED", "FRAMEWORK", "TORCH_OOM", "TORCH_TYPE", "Row"]

_ALLOCATOR: Final = "PyTorch's caching allocator could not get the memory, even after it gave back its cache"

EXHAUSTED: Final = (
    Row(
        id="cuda-allocator",
        patterns=(r"CUDA out of memory\. Tried to allocate",),
        example="step failed: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.6 GiB",
        reason=_ALLOCATOR,
        source="pytorch#13751",
    ),
    Row(
        id="cuda-allocator-rejected",
        patterns=(r"CUDA out of memory\. Allocation was preemptively rejected",),
        example="step failed: CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        "per_process_memory_fraction limit. Requested size: 2.50 GiB",
        reason="PyTorch's caching allocator refused an allocation beyond the process's memory fraction",
        source="pytorch#177356",
    ),
    Row(
        id="cuda-other-rank",
        patterns=(r"CUDA out of memory encountered on a different rank",),
        example="Trainer stopped: CUDA out of memory encountered on a different rank",
        reason="another rank ran out of memory and this one was told to stop",
        source="composer#1319",
    ),
    Row(
        id="cuda-allocator-short",
        # Only where the message begins: a sentence that mentions the words in passing is no message of PyTorch's.
        patterns=(r"(?:^|Error: )CUDA out of memory\b",),
        example="CUDA out of memory.",
        reason=_ALLOCATOR,
        source="pytorch#126766",
    ),
    Row(
        id="cuda-async-allocator",
        patterns=(r"would exceed allowed memory\. \(out of memory\)",),
        example="Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated : 20.00 GiB",
        reason="PyTorch's `cudaMallocAsync` allocator could not get the memory",
        source="torch 2.15, c10/cuda/CUDAMallocAsyncAllocator.cpp",
    ),
    Row(
        id="cuda-outside-allocator",
        patterns=(r"CUDA ran out of memory outside PyTorch's allocator",),
        example="CUDA ran out of memory outside PyTorch's allocator. cuDNN may need additional device memory",
        reason="cuDNN's attention found no device memory for itself beside PyTorch's",
        source="torch 2.15, aten/src/ATen/native/cudnn/MHA.cpp",
    ),
    Row(
        id="cuda-runtime",
        patterns=(r"CUDA error: out of memory",),
        not_when_ample=True,
        example="CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
        reason="the CUDA runtime found no memory; pinned host memory that runs out reads the same",
        source="lightning#6819",
    ),
    Row(
        id="cuda-driver",
        patterns=(r"CUDA driver error: out of memory",),
        example="CUDA driver error: out of memory",
        reason="the CUDA driver found no memory to map; exhausted virtual addresses read the same",
        source="deepmd-kit#5418",
    ),
    Row(
        id="cuda-runtime-numbered",
        patterns=(r"cuda runtime error \(2\)|error=2 : out of memory",),
        example="cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCStorage.cu:58",
        reason="error 2 of the CUDA runtime is a failed allocation",
        source="torchtnt, utils/oom.py",
    ),
    Row(
        id="cuda-error-name",
        patterns=(r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY",),
        raised_by=(*FRAMEWORK, "numba.cuda.cudadrv.driver.CudaAPIError"),
        example="std::bad_alloc: failed to allocate 2147483648 bytes: cudaErrorMemoryAllocation",
        reason="the name of CUDA's error for a failed allocation, as other libraries in the process print it",
        source="CUDA runtime API, cudaError",
    ),
    Row(
        id="nccl-allocation",
        patterns=(r"Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA (?:calloc|malloc)",),
        example="NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
        reason="NCCL allocates its buffers beside PyTorch's allocator and found no room",
        source="nccl#962",
    ),
    Row(
        id="triton-allocation",
        patterns=(r"Triton Error \[(?:CUDA|HIP)\]: out of memory",),
        example="Triton Error [CUDA]: out of memory",
        reason="the driver found no memory to load or launch a Triton kernel",
        source="pytorch#188150",
    ),
    Row(
        id="cublas-allocation",
        patterns=(r"CUBLAS_STATUS_ALLOC_FAILED|cublas runtime error : resource allocation failed",),
        example="CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        reason="cuBLAS found no device memory for its handle or workspace",
        source="deepmd-kit#4594",
    ),
    Row(
        id="cudnn-allocation",
        patterns=(r"CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",),
        example="cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        reason="cuDNN found no device memory for itself",
        source="cuDNN API reference, cudnnStatus_t",
    ),
    Row(
        id="cufft-allocation",
        patterns=(r"CUFFT_ALLOC_FAILED",),
        example="cuFFT error: CUFFT_ALLOC_FAILED",
        reason="cuFFT found no device memory for a plan's work area",
        source="cuFFT API reference, cufftResult",
    ),
    Row(
        id="solver-allocation",
        patterns=(r"(?:CUSOLVER|CUSPARSE|HIPBLAS|HIPSPARSE)_STATUS_ALLOC_FAILED|CURAND_STATUS_ALLOCATION_FAILED",),
        example="cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        reason="a CUDA library found no device memory for its handle or workspace",
        source="cuSOLVER API reference, cusolverStatus_t",
    ),
    Row(
        id="nvml-assert",
        patterns=(r"NVML_SUCCESS == (?:r\b|DriverAPI)", r"CUDACachingAllocator"),
        example='NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":830',
        reason="PyTorch asks NVML about processes only while it writes its out-of-memory message, and that failed",
        source="pytorch#112377",
    ),
    Row(
        id="cupy-allocation",
        patterns=(),
        raised_by=("cupy.cuda.memory.OutOfMemoryError",),
        example="Out of memory allocating 2,147,483,648 bytes (allocated so far: 9,663,676,416 bytes)",
        reason="CuPy's memory pool, which shares the device, found no room",
        source="CuPy, cupy.cuda.memory.OutOfMemoryError",
    ),
    Row(
        id="hip-allocator",
        patterns=(r"HIP out of memory",),
        device="hip",
        example="HIP out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 19.94 GiB",
        reason=_ALLOCATOR,
        source="lighteval#812",
    ),
    Row(
        id="hip-runtime",
        patterns=(r"HIP error: out of memory|hipErrorOutOfMemory|hipErrorMemoryAllocation|HIP_ERROR_OutOfMemory",),
        not_when_ample=True,
        device="hip",
        example="HIP error: out of memory",
        reason="the HIP runtime found no memory; pinned host memory that runs out reads the same",
        source="autovram, core/oom.py",
    ),
    Row(
        id="xpu-allocator",
        patterns=(r"XPU out of memory|Allocation is out of device memory on current platform",),
        device="xpu",
        example="XPU out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 11.59 GiB",
        reason="PyTorch's allocator for Intel GPUs could not get the memory",
        source="geti#4872",
    ),
    Row(
        id="xpu-runtime",
        patterns=(r"(?:UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)",),
        device="xpu",
        example="level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        reason="Intel's runtime found no device memory",
        source="pytorch#177714",
    ),
    Row(
        id="mps-allocator",
        patterns=(r"MPS backend out of memory",),
        device="mps",
        example="MPS backend out of memory (MPS allocated: 8.89 GiB, max allowed: 9.07 GiB)",
        reason="PyTorch's allocator for Apple GPUs reached its watermark",
        source="accelerate#4226",
    ),
    Row(
        id="mps-buffer",
        patterns=(r"Invalid buffer size: [0-9.]+ [KMGT]i?B",),
        device="mps",
        example="Invalid buffer size: 64.00 GiB",
        reason="one allocation is larger than any buffer that the Apple GPU can hold",
        source="pytorch#141909",
    ),
    Row(
        id="hpu-allocator",
        patterns=(r"MODULE:PT_DEVMEM Allocation failed",),
        device="hpu",
        example="FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::2147483648 (2048)MB",
        reason="the Gaudi device's allocator could not get the memory",
        source="accelerate, utils/memory.py",
    ),
    Row(
        id="npu-allocator",
        patterns=(r"NPU out of memory",),
        device="npu",
        example="NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity)",
        reason="the Ascend device's allocator could not get the memory",
        source="torch_npu, NPUCachingAllocator",
    ),
    Row(
        id="xla-allocator",
        patterns=(
            r"RESOURCE_EXHAUSTED|Resource exhausted: Out of memory",
            r"out of memory|OOM when allocating|failed to allocate|\bHBM\b",
        ),
        device="xla",
        example="RESOURCE_EXHAUSTED: Out of memory allocating 20029400304 bytes",
        reason="XLA's allocator could not get the memory",
        source="deepmd-kit, jax/utils/auto_batch_size.py",
    ),
    Row(
        id="tensorflow-allocator",
        patterns=(r"OOM when allocating tensor.*GPU",),
        raised_by=("tensorflow.python.framework.errors_impl.ResourceExhaustedError",),
        device="xla",
        example="OOM when allocating tensor with shape[128,512] on /device:GPU:0 by allocator GPU_0_bfc",
        reason="TensorFlow's allocator, which shares the device, found no room",
        source="deepmd-kit, tf/utils/batch_size.py",
    ),
    Row(
        id="kv-cache",
        patterns=(
            (
                r"No available memory for the cache blocks|can be stored in KV cache \(|available KV cache memory \("
                r"|on startup is less than desired GPU memory utilization|try to increase --mem-fraction-static"
            ),
        ),
        raised_by=("ValueError", *FRAMEWORK),
        device="any",
        example="No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        reason="the server found no memory for its cache beside the weights",
        source="vLLM, v1/core/kv_cache_utils.py",
    ),
    *ELSEWHERE,
)
"""Rows that are an OOM whatever else is known."""

TORCH_TYPE: Final = Row(
    id="torch-type",
    patterns=(),
    raised_by=TORCH_OOM,
    device="any",
    example="no block of the requested size",
    reason="PyTorch raises this type for nothing else",
    source="torch.OutOfMemoryError",
)
"""The type alone; after the rows that know the text, since some of those say that it was another memory."""


LIMITS: Final = (
    Row(
        id="int-max",
        outcome=Outcome.LIMIT,
        patterns=(r"(?:than|>) INT_MAX",),
        device="any",
        example="nonzero is not supported for tensors with more than INT_MAX elements",
        reason="the operator counts elements in 32 bits, however much memory is free",
        source="pytorch#51871",
    ),
    Row(
        id="index-32-bit",
        outcome=Outcome.LIMIT,
        patterns=(r"canUse32BitIndexMath|must fit into 32-bit index math|to fit in int32|out of integer limits",),
        device="any",
        example="Expected canUse32BitIndexMath(input) && canUse32BitIndexMath(output) to be true, but got false",
        reason="the operator's kernel indexes in 32 bits and a tensor is too large for that",
        source="pytorch#80020",
    ),
    Row(
        id="matrix-32-bit",
        outcome=Outcome.LIMIT,
        patterns=(r"must be non-negative and less than 2147483647",),
        example="at::cuda::blas::gemm argument m must be non-negative and less than 2147483647 but got 2147483648",
        reason="cuBLAS takes the sides of a matrix as 32-bit integers",
        source="torch 2.15, aten/src/ATen/cuda/CUDABlas.cpp",
    ),
    Row(
        id="size-overflow",
        outcome=Outcome.LIMIT,
        patterns=(
            r"Storage size calculation overflowed|Stride calculation overflowed|storage size overflowed|NDArray > 2\*",
        ),
        device="any",
        example="Storage size calculation overflowed with sizes=[4611686018427387904, 8]",
        reason="a tensor would have more bytes than 64 bits can count",
        source="pytorch#107553",
    ),
    Row(
        id="launch-grid",
        outcome=Outcome.LIMIT,
        patterns=(r"(?:CUDA|HIP) error: invalid configuration argument|channels_last CUDA kernel launch",),
        example="CUDA error: invalid configuration argument\nCUDA kernel errors might be asynchronously reported",
        reason="a kernel was launched with more blocks than a grid may have, such as 65,535 along y or z",
        source="pytorch#142228",
    ),
    Row(
        id="triton-grid",
        outcome=Outcome.LIMIT,
        patterns=(r"Triton Error \[(?:CUDA|HIP)\]: invalid argument",),
        example="Triton Error [CUDA]: invalid argument",
        reason="a Triton kernel was launched with more blocks than a grid may have, such as 65,535 along y or z",
        source="flash-linear-attention#172",
    ),
)
"""Rows that are a size limit and not memory."""

NOT_DEVICE_MEMORY: Final = (
    Row(
        id="host-allocator",
        outcome=Outcome.FAILED,
        patterns=(
            (
                r"(?:DefaultCPUAllocator|\$ Torch): (?:can't allocate memory|not enough memory)"
                r"|posix_memalign\([^)]{0,60}\) == 0\. 12 vs 0"
            ),
        ),
        device="cpu",
        example="[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 1125899906842624 bytes. Error code 12 (Cannot allocate memory)",
        reason="the host ran out of memory, not the GPU",
        source="accelerate, utils/memory.py",
    ),
    Row(
        id="host-system",
        outcome=Outcome.FAILED,
        patterns=(
            (
                r"Errno 12\]|unable to mmap \d+ bytes|std::bad_alloc|UR_RESULT_ERROR_OUT_OF_HOST_MEMORY"
                r"|(?<!\()Cannot allocate memory|\bbad allocation\b|WinError 1455|os error 1455"
            ),
        ),
        raised_by=("OSError", *FRAMEWORK),
        device="cpu",
        example="[Errno 12] Cannot allocate memory",
        reason="the host ran out of memory, not the GPU",
        source="errno(3), ENOMEM",
    ),
    Row(
        id="host-library",
        outcome=Outcome.FAILED,
        patterns=(r"CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",),
        device="cpu",
        example="cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        reason="cuDNN ran out of host memory, not of the GPU's",
        source="cuDNN API reference, cudnnStatus_t",
    ),
    Row(
        id="host-shared-memory",
        outcome=Outcome.FAILED,
        patterns=(
            (
                r"killed by signal:\s*Bus error|out of shared memory|unable to write to file </torch_"
                r"|failed to extend /dev/shm|(?:shared memory (?:object|segment)|shared memory\(shm\)|file </torch_"
                r"|/dev/shm).{0,300}No space left on device"
                r"|No space left on device.{0,20}/dev/shm"
            ),
        ),
        raised_by=("OSError", *FRAMEWORK),
        device="cpu",
        example="DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that dataloader's workers "
        "are out of shared memory. Please try to raise your shared memory limit",
        reason="`/dev/shm` is full, which the data loader's workers share; the GPU is not involved",
        source="pytorch#5040",
    ),
    Row(
        id="killed",
        outcome=Outcome.FAILED,
        patterns=(r"killed by signal:\s*Killed|terminated with signal SIGKILL|exitcode: -9|Signals\.SIGKILL",),
        raised_by=("torch.multiprocessing.spawn.ProcessExitedException", "subprocess.CalledProcessError", *FRAMEWORK),
        device="cpu",
        example="process 1 terminated with signal SIGKILL",
        reason="a process was killed, as the kernel does when the host runs out of memory; the GPU has no part in that",
        source="batch-finder, batch_finder.py",
    ),
    Row(
        id="host-ray",
        outcome=Outcome.FAILED,
        patterns=(),
        raised_by=("ray.exceptions.OutOfMemoryError",),
        device="cpu",
        example="Task was killed due to the node running low on memory",
        reason="Ray stopped a worker because the host ran low on memory, not the GPU",
        source="Ray, ray.exceptions.OutOfMemoryError",
    ),
    Row(
        id="disk-full",
        outcome=Outcome.FAILED,
        patterns=(r"No space left on device",),
        raised_by=("OSError", *FRAMEWORK),
        device="cpu",
        example="[Errno 28] No space left on device",
        reason="a file system is full; the device of this message is a disk or `/dev/shm`",
        source="errno(3), ENOSPC",
    ),
    Row(
        id="kernel-resources",
        outcome=Outcome.FAILED,
        patterns=(r"out of resource: |too many resources requested for launch",),
        raised_by=("triton.runtime.errors.OutOfResources", "triton.runtime.autotuner.OutOfResources", *FRAMEWORK),
        example="out of resource: shared memory, Required: 589824, Hardware limit: 101376. Reducing block sizes or "
        "`num_stages` may help.",
        reason="a kernel asks for more on-chip shared memory or registers than a multiprocessor has, at any batch size",
        source="triton#384",
    ),
    Row(
        id="device-assert",
        outcome=Outcome.FAILED,
        patterns=(r"device-side assert triggered",),
        example="CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA`",
        reason="a kernel met a value that cannot be, most often an index or a label out of range",
        source="pytorch#1204",
    ),
    Row(
        id="illegal-address",
        outcome=Outcome.FAILED,
        patterns=(r"illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS|misaligned address",),
        example="CUDA error: an illegal memory access was encountered",
        reason="a kernel reached outside its memory, which is a bug and not a lack of memory",
        source="timm#1226",
    ),
    Row(
        id="host-python",
        outcome=Outcome.FAILED,
        patterns=(),
        raised_by=("MemoryError",),
        device="cpu",
        example="Unable to allocate 168. GiB for an array with shape (76821, 542, 542) and data type float64",
        reason="the host ran out of memory, not the GPU",
        source="batch-probe, _probe_generic.py",
    ),
)
"""Rows that are something else for certain."""

AMBIGUOUS: Final = (
    Row(
        id="cublas-not-initialized",
        needs_pressure=True,
        patterns=(r"CUBLAS_STATUS_NOT_INITIALIZED",),
        example="CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        reason="cuBLAS says this when its handle finds no memory, and after a broken installation or a bad index",
        source="pytorch/serve#1993",
    ),
    Row(
        id="cudnn-not-initialized",
        needs_pressure=True,
        patterns=(r"CUDNN_STATUS_NOT_INITIALIZED",),
        example="cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        reason="cuDNN says this when its handle finds no memory, and after a broken installation",
        source="LLaVA#392",
    ),
    Row(
        id="cudnn-not-supported",
        needs_pressure=True,
        patterns=(r"CUDNN_STATUS_NOT_SUPPORTED",),
        example="cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear for a non-contiguous input",
        reason="cuDNN says this when no algorithm's workspace fits, and for an input that it cannot take",
        source="pytorch#4107",
    ),
    Row(
        id="cudnn-internal",
        needs_pressure=True,
        patterns=(r"CUDNN_STATUS_INTERNAL_ERROR",),
        example="cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        reason="cuDNN says this when it finds no memory for itself, and after any other fault",
        source="ultralytics, engine/trainer.py",
    ),
    Row(
        id="cudnn-no-engine",
        needs_pressure=True,
        patterns=(r"unable to find an engine|unable to find a valid cuDNN algorithm",),
        example="GET was unable to find an engine to execute this computation",
        reason="every algorithm was refused, for lack of memory for its workspace or because none supports the input",
        source="marqo#101",
    ),
    Row(
        id="cusolver-internal",
        needs_pressure=True,
        patterns=(r"CUSOLVER_STATUS_INTERNAL_ERROR",),
        example="cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
        reason="cuSOLVER says this when its handle finds no memory, and after any other fault",
        source="deepmd-kit#4594",
    ),
    Row(
        id="cufft-internal",
        needs_pressure=True,
        patterns=(r"CUFFT_INTERNAL_ERROR",),
        example="cuFFT error: CUFFT_INTERNAL_ERROR",
        reason="cuFFT says this when a plan finds no memory, and after a broken installation",
        source="NeMo, scripts/speech_recognition/oomptimizer.py",
    ),
    Row(
        id="driver-not-ready",
        needs_pressure=True,
        patterns=(r"CUDA (?:driver )?error: device not ready",),
        example="CUDA driver error: device not ready",
        reason="the driver says this when it cannot make memory resident, and for a question asked too early",
        source="torch-max-mem#45",
    ),
    Row(
        id="allocator-assert",
        needs_pressure=True,
        patterns=(r"INTERNAL ASSERT FAILED", r"CUDACachingAllocator"),
        example='!handles_.at(i) INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":430',
        reason="PyTorch's allocator contradicts itself, as it does when a mapping fails half-way, or by a bug",
        source="torch-max-mem#45",
    ),
    Row(
        id="aot-inductor",
        needs_pressure=True,
        patterns=(r"run_func_\(", r"model_container_runner"),
        example="run_func_( ... ) API call failed at aoti_runner/model_container_runner.cpp, line 145",
        reason="AOTInductor hides what went wrong inside a compiled model, an OOM included",
        source="deepmd-kit#5418",
    ),
    Row(
        id="nccl-unhandled",
        needs_pressure=True,
        patterns=(r"ncclUnhandledCudaError|unhandled cuda error",),
        example="NCCL error in: ProcessGroupNCCL.cpp:1296, unhandled cuda error, NCCL version 2.21.5",
        reason="NCCL does not say which CUDA call failed; its own buffers are allocated beside PyTorch's",
        source="nccl#2363",
    ),
    Row(
        id="xpu-unspecific",
        needs_pressure=True,
        patterns=(r"\bUR error\b|UR_RESULT_ERROR|PI_ERROR",),
        device="xpu",
        example="level_zero backend failed with error: 2147483646 (UR_RESULT_ERROR_UNKNOWN)",
        reason="Intel's runtime reports a lack of memory and other faults alike",
        source="geti#4872",
    ),
    Row(
        id="xla-unspecific",
        needs_pressure=True,
        patterns=(r"RESOURCE_EXHAUSTED",),
        device="xla",
        example="RESOURCE_EXHAUSTED: Attempting to reserve 2.50G at the bottom of memory",
        reason="the status covers memory and other resources, such as the size of a message",
        source="deepmd-kit, jax/utils/auto_batch_size.py",
    ),
    Row(
        id="out-of-memory-words",
        needs_pressure=True,
        patterns=(r"out of (?:the )?memory",),
        device="any",
        example="the decoder ran out of memory",
        reason="the words alone do not tell whose memory it was",
        source="fairseq, trainer.py",
    ),
)
"""Rows that are an OOM only where memory was nearly exhausted."""
