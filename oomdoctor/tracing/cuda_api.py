"""What `torch.cuda` answers about the emulated device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.backends.cudnn import rnn as cudnn_rnn

from oomdoctor.tracing.stand_ins import stand_in_for_compiler

if TYPE_CHECKING:
    from oomdoctor.tracing.device import EmulatedDevice
    from oomdoctor.tracing.patches import Patches


def answer_for(patches: Patches, device: EmulatedDevice) -> None:
    """Have `torch.cuda` answer for the device."""
    cuda = torch.cuda
    properties = _properties(device)
    capability = device.card.compute_capability
    _patch_c(patches, device)
    answers = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_lazy_call": lambda function, **_: function(),
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _: None,
        "_exchange_device": lambda _: 0,
        "_maybe_exchange_device": lambda _: 0,
        "get_device_properties": lambda _=None: properties,
        "get_device_name": lambda _=None: device.card.name,
        "get_device_capability": lambda _=None: capability,
        "get_arch_list": lambda: [f"sm_{capability[0]}{capability[1]}"],
        "synchronize": lambda _=None: None,
        "is_current_stream_capturing": lambda: False,
        "mem_get_info": lambda _=None: (device.allocator.memory.free_bytes, device.card.total_bytes),
        "current_stream": lambda _=None: _STREAM,
        "default_stream": lambda _=None: _STREAM,
        "Stream": _Stream,
        "Event": _Event,
        "default_generators": (_Generator(),),
        "is_bf16_supported": lambda including_emulation=True: including_emulation or capability >= (8, 0),
    }
    for name, value in answers.items():
        patches.set(cuda, name, value)
    patches.set(cuda.memory, "mem_get_info", answers["mem_get_info"])
    patches.set(cuda.memory, "is_initialized", answers["is_initialized"])
    patches.set(cuda.memory, "_lazy_init", answers["_lazy_init"])
    patches.set(cuda.random, "_lazy_init", answers["_lazy_init"])
    patches.set(cuda.random, "_lazy_call", answers["_lazy_call"])
    patches.set(cuda.random, "device_count", answers["device_count"])
    patches.set(cuda.random, "current_device", answers["current_device"])
    patches.set(cuda.random, "is_initialized", answers["is_initialized"])
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: torch.backends.cudnn.enabled and tensor.is_cuda)
    patches.set(cudnn_rnn, "get_cudnn_mode", lambda mode: ("RNN_RELU", "RNN_TANH", "LSTM", "GRU").index(mode))
    patches.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
    stand_in_for_compiler(patches)
    _patch_foreach(patches)


def _patch_c(patches: Patches, device: EmulatedDevice) -> None:
    allocator = device.allocator

    def record(enabled=None, *_: Any, **__: Any) -> None:
        device.history = [] if enabled else None

    def set_fraction(fraction, _=0):
        allocator.set_memory_fraction(fraction)

    answers = {
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_getDevice": lambda: 0,
        "_cuda_memoryStats": lambda _=0: allocator.memory_stats(),
        "_cuda_emptyCache": lambda *_: allocator.empty_cache(),
        "_cuda_resetPeakMemoryStats": lambda _=0: allocator.reset_peak_stats(),
        "_cuda_resetAccumulatedMemoryStats": lambda _=0: allocator.reset_accumulated_stats(),
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_record_memory_history": record,
        "_cuda_memorySnapshot": lambda *_: {"segments": [], "device_traces": [list(device.history or ())]},
        "_cuda_clearCublasWorkspaces": device.clear_workspaces,
        "_cuda_cudaCachingAllocator_raw_alloc": lambda size, _stream: device.malloc(size),
        "_cuda_cudaCachingAllocator_raw_delete": device.free,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_synchronize": lambda *_: None,
        "_accelerator_getDeviceIndex": lambda: 0,
        "_accelerator_setDeviceIndex": lambda _: None,
        "_accelerator_exchangeDevice": lambda _: 0,
        "_accelerator_maybeExchangeDevice": lambda _: 0,
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_synchronizeDevice": lambda _: None,
        "_accelerator_getStream": lambda _=0: _STREAM,
        "_accelerator_emptyCache": allocator.empty_cache,
        "_accelerator_getDeviceStats": lambda _=0: allocator.memory_stats(),
        "_accelerator_resetPeakStats": lambda _=0: allocator.reset_peak_stats(),
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_getMemoryInfo": lambda _=0: (allocator.memory.free_bytes, device.card.total_bytes),
    }
    for name, value in answers.items():
        patches.set(torch._C, name, value)


class _Stream:
    """The one stream there is."""

    cuda_stream = 0
    stream_id = 0
    device_index = 0

    def __init__(self, *_: object, **__: object) -> None: ...
    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None: ...
    def wait_stream(self, _: object) -> None: ...
    def wait_event(self, _: object) -> None: ...
    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()


_STREAM = _Stream()


class _Event:
    def __init__(self, *_: object, **__: object) -> None: ...
    def record(self, *_: object) -> None: ...
    def wait(self, *_: object) -> None: ...
    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True

    def elapsed_time(self, _: object) -> float:
        return 0.0


class _Generator:
    def get_state(self) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_state(self, _: torch.Tensor) -> None: ...
    def manual_seed(self, _: int) -> None: ...
    def seed(self) -> int:
        return 0

    def initial_seed(self) -> int:
        return 0


def _properties(device: EmulatedDevice) -> Any:
    card = device.card
    return SimpleNamespace(
        name=card.name,
        major=card.compute_capability[0],
        minor=card.compute_capability[1],
        total_memory=card.total_bytes,
        multi_processor_count=card.sm_count,
        max_threads_per_multi_processor=card.max_threads_per_sm,
        shared_memory_per_block_optin=card.shared_memory_per_block_bytes,
        L2_cache_size=card.l2_bytes,
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
    )


def _patch_foreach(patches: Patches) -> None:
    group = torch._C._group_tensors_by_device_and_dtype

    def grouped(*args: Any, **kwargs: Any) -> Any:
        found = group(*args, **kwargs)
        return {(torch.device("cuda", 0) if d.type == "xla" else d, t): v for (d, t), v in found.items()}

    patches.set(torch._C, "_group_tensors_by_device_and_dtype", grouped)
