"""Errors that are mistaken for an OOM: size limits, other memories, bugs, and those that are one only at times."""

from __future__ import annotations

from typing import Final

from oomdoctor.oom.row import FRAMEWORK, Row
from oomdoctor.results import Outcome

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
