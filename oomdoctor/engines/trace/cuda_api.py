"""Answers of `torch.cuda` about the emulated device.

Most of `torch.cuda` is PyTorch's own Python and calls a C++ module, which CPU builds have without its CUDA part. That
part is answered here, and so are the functions that would start CUDA first.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Self

import torch
from torch.backends.cudnn import rnn as cudnn_rnn

from oomdoctor.engines.trace.compiler_stubs import stub_compiler_modules
from oomdoctor.engines.trace.refusals import untraceable
from oomdoctor.engines.trace.tensors import CUDA
from oomdoctor.engines.trace.torch_internals import c_module, check_ordinal, foreach_grouping

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.engines.trace.tensors import Patches


_RNN_MODES: Final = ("RNN_RELU", "RNN_TANH", "LSTM", "GRU")
_LEAST_FOR_BF16: Final = (8, 0)


def patch_cuda_api(patches: Patches, device: EmulatedDevice) -> None:
    """Patch `torch.cuda`, `torch.accelerator` and `torch.backends.cudnn` to answer for the device."""
    for name, answer in _c_answers(device).items():
        patches.set(c_module(), name, answer)
    answers = _python_answers(device)
    for module in (torch.cuda, torch.cuda.memory, torch.cuda.random):
        for name, answer in answers.items():
            if module is torch.cuda or hasattr(module, name):
                patches.set(module, name, answer)
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: torch.backends.cudnn.enabled and tensor.is_cuda)
    patches.set(cudnn_rnn, "get_cudnn_mode", _RNN_MODES.index)
    patches.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
    patches.set(torch, "Generator", HostGenerator)
    patches.set(torch.Tensor, "record_stream", lambda *_: None)
    _patch_foreach_grouping(patches)
    stub_compiler_modules(patches)


def _python_answers(device: EmulatedDevice) -> dict[str, Any]:
    """Return answers for functions that would otherwise start CUDA, or ask a driver."""
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_lazy_call": lambda function, **_: function(),
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": _set_device,
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": lambda _: 0,
        "get_device_properties": lambda _=None: _card_answer(device, "get_device_properties", _properties),
        "get_device_name": lambda _=None: _card_answer(device, "get_device_name", lambda card: card.name),
        "get_device_capability": lambda _=None: _card_answer(device, "get_device_capability", _capability),
        "get_arch_list": lambda: _card_answer(
            device, "get_arch_list", lambda card: ["sm_{}{}".format(*_capability(card))]
        ),
        "is_bf16_supported": lambda including_emulation=True: (
            including_emulation
            or _card_answer(device, "is_bf16_supported", lambda card: _capability(card) >= _LEAST_FOR_BF16)
        ),
        "synchronize": lambda _=None: None,
        "is_current_stream_capturing": lambda: False,
        "mem_get_info": lambda _=None: (
            device.allocator.memory.free_bytes,
            _card_answer(device, "mem_get_info", lambda card: card.total_bytes),
        ),
        "current_stream": lambda _=None: _STREAM,
        "default_stream": lambda _=None: _STREAM,
        "set_stream": _set_stream,
        "Stream": Stream,
        "Event": EmulatedEvent,
        "default_generators": (Generator(),),
    }


def _set_device(device: Any) -> None:  # noqa: ANN401 - a number, a name or a device
    _exchange_device(device)


def _exchange_device(device: Any) -> int:  # noqa: ANN401 - a number, a name or a device
    """Return the device of before, which is the only one.

    Raises:
        RuntimeError: Another is chosen.
    """
    check_ordinal(torch.device("cuda", max(device, 0)) if isinstance(device, int) else torch.device(device))
    return 0


def _c_answers(device: EmulatedDevice) -> dict[str, Callable[..., Any]]:
    """Return answers for the functions of the C++ module that CPU builds lack."""
    allocator = device.allocator
    return {
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_getDevice": lambda: 0,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_synchronize": lambda *_: None,
        "_cuda_memoryStats": lambda _=0: allocator.memory_stats(),
        "_cuda_emptyCache": lambda *_: device.empty_cache(),
        "_cuda_resetPeakMemoryStats": lambda _=0: allocator.reset_peak_stats(),
        "_cuda_resetAccumulatedMemoryStats": lambda _=0: allocator.reset_accumulated_stats(),
        "_cuda_setMemoryFraction": lambda fraction, _=0: allocator.set_memory_fraction(fraction),
        "_cuda_getMemoryFraction": lambda _=0: allocator.memory_fraction,
        "_cuda_record_memory_history": lambda enabled=None, *_, **__: device.record(enabled=bool(enabled)),
        "_cuda_memorySnapshot": lambda *_: {"segments": [], "device_traces": [list(device.history or ())]},
        "_cuda_clearCublasWorkspaces": device.clear_workspaces,
        "_cuda_cudaCachingAllocator_raw_alloc": lambda nbytes, _: device.malloc(nbytes),
        "_cuda_cudaCachingAllocator_raw_delete": device.free,
        # `torch.accelerator`, which optimizers use since torch 2.10.
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: 0,
        "_accelerator_setDeviceIndex": lambda _: None,
        "_accelerator_exchangeDevice": lambda _: 0,
        "_accelerator_maybeExchangeDevice": lambda _: 0,
        "_accelerator_synchronizeDevice": lambda _: None,
        "_accelerator_getStream": lambda _=0: _STREAM,
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_emptyCache": device.empty_cache,
        "_accelerator_getDeviceStats": lambda _=0: allocator.memory_stats(),
        "_accelerator_resetPeakStats": lambda _=0: allocator.reset_peak_stats(),
        "_accelerator_resetAccumulatedStats": lambda _=0: allocator.reset_accumulated_stats(),
        "_accelerator_getMemoryInfo": lambda _=0: (allocator.memory.free_bytes, device.card.total_bytes),
    }


def _set_stream(stream: Stream) -> None:
    """Accept the default stream only: memory is separate by stream, and a backward uses the stream of the forward."""
    if stream is not _STREAM:
        raise untraceable("a stream of the program's own")


class Stream:
    """A stream on which all work is done when it is queued."""

    cuda_stream = 0
    stream_id = 0
    device_index = 0
    device = CUDA

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Self:
        _set_stream(self)
        return self

    def __exit__(self, *_: object) -> None: ...

    def is_capturing(self) -> bool:
        """Return False: CUDA graphs are not emulated."""
        return False

    def query(self) -> bool:
        """Return True: all work is done."""
        return True

    def wait(self, *_: object) -> None:
        """Return at once."""

    synchronize = wait_stream = wait_event = wait

    def record_event(self, event: EmulatedEvent | None = None) -> EmulatedEvent:
        """Return an event that has happened."""
        return event or EmulatedEvent()


class EmulatedEvent:
    """An event that has happened."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def query(self) -> bool:
        """Return True: it has happened."""
        return True

    def wait(self, *_: object) -> None:
        """Return at once."""

    record = synchronize = wait

    def elapsed_time(self, _: object) -> float:
        """Return 0 milliseconds."""
        return 0.0


class Generator:
    """The device's random number generator, which draws no numbers."""

    _seed = 0

    def get_state(self) -> torch.Tensor:
        """Return a state of as many bytes as CUDA's."""
        return torch.zeros(16, dtype=torch.uint8)

    def set_state(self, _: object) -> None:
        """Do nothing."""

    def manual_seed(self, seed: int) -> None:
        """Keep the seed, to answer with it."""
        self._seed = seed

    def seed(self) -> int:
        """Return the seed; a new one would be as good."""
        return self._seed

    initial_seed = seed


class HostGenerator(torch.Generator):
    """A generator of the host in place of the device's: no kernel asks it for numbers."""

    def __new__(cls, device: object = "cpu") -> Self:
        """Make a generator of the host, whatever the device."""
        del device
        return super().__new__(cls)


_STREAM: Final = Stream()


def _card_answer(device: EmulatedDevice, what: str, answer: Callable[[Card], Any]) -> Any:  # noqa: ANN401 - as PyTorch has it
    """Return the card's answer, and record the question in the trace."""
    if device.op_trace is not None:
        device.op_trace.asked(what, answer)
    return answer(device.card)


def _capability(card: Card) -> tuple[int, int]:
    return card.compute_capability


def _properties(card: Card) -> SimpleNamespace:
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


def _patch_foreach_grouping(patches: Patches) -> None:
    """Replace the device in the groups of tensors that C++ makes for optimizers and `clip_grad_norm_`."""
    group = foreach_grouping()

    def grouped(*args: Any, **kwargs: Any) -> dict[tuple[torch.device | None, torch.dtype | None], Any]:  # noqa: ANN401
        return {
            (CUDA if device is not None and device.type == "xla" else device, dtype): tensors
            for (device, dtype), tensors in group(*args, **kwargs).items()
        }

    patches.set(c_module(), foreach_grouping().__name__, grouped)
