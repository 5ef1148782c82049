"""How libraries beside PyTorch say that a GPU is out of memory."""

from __future__ import annotations

from typing import Final

from oomdoctor.oom.row import FRAMEWORK, Row

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
