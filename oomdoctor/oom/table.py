"""The errors by which a GPU says that it is out of memory, one row each; `table_other` holds what only looks alike.

Every example is written for this table from the parts of the message that stay the same between versions.
"""

from __future__ import annotations

from typing import Final

from oomdoctor.oom.row import FRAMEWORK, TORCH_OOM, Row
from oomdoctor.oom.table_libraries import ELSEWHERE

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
