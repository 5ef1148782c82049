"""Choice of the engine that runs trials: `cuda`, `null` or `trace`, each automatic choice with its reason."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from oomdoctor.engines.catalogue import check_reserve, emulated_environment, find_card, generic_card
from oomdoctor.engines.cudnn_library import cudnn_variables
from oomdoctor.engines.installed import TorchBuild, find_torch
from oomdoctor.engines.monitor import has_local_gpu
from oomdoctor.engines.null_gpu.library import environment as null_gpu_environment
from oomdoctor.errors import NoAnswerError, UsageError
from oomdoctor.results import Reason
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.engines.catalogue import Card


_CONTEXT_OF = "a100-sxm4-80gb"
"""Card whose CUDA context a card of no model has: the generic one has its limits."""

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine of the trials.

    Attributes:
        kind: `cuda` for the local GPU, `null` for a null GPU, `trace` for an emulated device.
        card: The card of the null GPU or the emulated device; None for the local GPU.
        environment: The worker's whole environment.
        reasons: The reasons of the choice, and the sources of its numbers.
    """

    kind: Literal["cuda", "null", "trace"]
    card: Card | None
    environment: dict[str, str]
    reasons: tuple[Reason, ...]


def choose_engine(  # noqa: PLR0913 - what the command line has, and what runs there
    *,
    engine: Literal["auto", "cuda", "null", "trace"],
    gpu: str | None,
    device: str | None,
    memory_bytes: int | None,
    base: Mapping[str, str],
    card_bytes: int | None = None,
    reserve_bytes: int = 0,
    build: TorchBuild | None = None,
    may_trace: bool = True,
) -> Engine:
    """Choose the engine, and build the null GPU where it is needed.

    Args:
        engine: The engine to use, or `auto`.
        gpu: Name of a catalogue card.
        device: Index or UUID of a local GPU.
        memory_bytes: Capacity of the card.
        base: Environment to start from.
        card_bytes: Memory of the card in all, instead of its capacity.
        reserve_bytes: Bytes that others hold.
        build: The torch that the trials will import; None for this process's own.
        may_trace: Whether the trace engine may be chosen, which only our own worker can use.

    Raises:
        UsageError: The options contradict each other, or the card is unknown.
        NoAnswerError: There is no GPU and no card is named, or no engine can run here.
    """
    if sys.platform != "linux":
        raise NoAnswerError(f"trials run on Linux, and this is `{sys.platform}`", hint="use WSL or a Linux container")
    build = build or _torch()
    _check_options(engine=engine, gpu=gpu, device=device)
    if engine == "cuda" or (engine == "auto" and gpu is None and has_local_gpu()):
        check_reserve(reserve_bytes, memory_bytes)
        return _cuda(engine=engine, device=device, base=base, reasons=reserve_reasons(reserve_bytes))
    if "cudaMallocAsync" in base.get("PYTORCH_CUDA_ALLOC_CONF", "") + base.get("PYTORCH_ALLOC_CONF", ""):
        raise NoAnswerError(
            "the null GPU runs PyTorch's own allocator, and the environment asks for `backend:cudaMallocAsync`",
            hint="unset it in `PYTORCH_CUDA_ALLOC_CONF`, or probe on a machine with a CUDA GPU",
        )
    if gpu is None and memory_bytes is None and card_bytes is None:
        raise _no_gpu(engine)
    card = card_of(gpu, memory_bytes, card_bytes, base).with_reserve(reserve_bytes)
    reasons = (*_capacity_reasons(card, memory_bytes), *_allocator_reasons(base))
    if engine == "trace":
        _check_may_trace(may_trace=may_trace)
        return _trace(card, build, base, "asked for by `--engine trace`", reasons)
    try:
        environment = null_gpu_environment(card, build, base)
    except NoAnswerError as error:
        if engine == "null" or not may_trace:
            raise
        return _trace(card, build, base, error.message, reasons)
    return Engine("null", card, environment, (_null_reason(engine=engine, gpu=gpu, card=card), *reasons))


def _check_may_trace(*, may_trace: bool) -> None:
    if not may_trace:
        raise UsageError(
            "`--engine trace` runs the step of a file, and a command's processes need PyTorch's own CUDA code",
            hint="`--engine null` runs them on a null GPU",
        )


def _trace(card: Card, build: TorchBuild, base: Mapping[str, str], why: str, reasons: tuple[Reason, ...]) -> Engine:
    text = f"trace: {why}; no kernel runs, and what each would allocate is told by its operator"
    environment = {**emulated_environment(card, base), **_cudnn_where_it_can_be_asked(build, base)}
    return Engine("trace", card, environment, (Reason("engine", text), *reasons))


def _cudnn_where_it_can_be_asked(build: TorchBuild, base: Mapping[str, str]) -> dict[str, str]:
    try:
        return cudnn_variables(build, base)
    except (NoAnswerError, OSError):
        return {}  # the result says that its workspaces are not counted


def _torch() -> TorchBuild:
    build = find_torch()
    if build is None:
        raise NoAnswerError("PyTorch is not installed here", hint="install it beside oomdoctor: `pip install torch`")
    return build


def _check_options(*, engine: str, gpu: str | None, device: str | None) -> None:
    if gpu is not None and device is not None:
        raise UsageError(
            "`--gpu` and `--device` exclude each other",
            hint="`--gpu NAME` plays a card from the catalogue, `--device INDEX` chooses a GPU of this machine",
        )
    if gpu is not None and engine == "cuda":
        raise UsageError(
            "`--gpu` names a card to play, and `--engine cuda` runs on the local GPU",
            hint="drop one of the two; `--memory SIZE` asks the local GPU about a smaller one",
        )
    if device is not None and engine in ("null", "trace"):
        raise UsageError(
            f"`--device` chooses a GPU of this machine, and `--engine {engine}` uses none", hint="drop one"
        )


def _no_gpu(engine: str) -> NoAnswerError:
    why = f"`--engine {engine}` was asked for" if engine in ("null", "trace") else "this machine has no NVIDIA GPU"
    return NoAnswerError(
        f"{why}, and neither `--gpu` nor `--memory` says which card to play",
        hint="for example `--gpu rtx-4090` or `--memory 24GiB`; `oomdoctor gpus --known` lists the cards",
    )


def _cuda(*, engine: str, device: str | None, base: Mapping[str, str], reasons: tuple[Reason, ...] = ()) -> Engine:
    environment = dict(base)
    if device is not None:
        environment["CUDA_VISIBLE_DEVICES"] = _visible_device(device, base.get("CUDA_VISIBLE_DEVICES"))
    why = "asked for by `--engine cuda`" if engine == "cuda" else "a GPU of this machine, as no `--gpu` was named"
    return Engine("cuda", None, environment, (Reason("engine", f"cuda: {why}"), *reasons, *_allocator_reasons(base)))


def _visible_device(device: str, visible: str | None) -> str:
    """Return CUDA_VISIBLE_DEVICES for `device`, a UUID or an index into the devices that are visible now."""
    if not device.isdecimal() or visible is None:
        return device
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    if int(device) >= len(entries):
        raise UsageError(
            f"there is no device {device} in `CUDA_VISIBLE_DEVICES={visible}`",
            hint="indices count from 0 among the visible devices; `oomdoctor gpus` lists them",
        )
    return entries[int(device)]


def card_of(gpu: str | None, memory_bytes: int | None, card_bytes: int | None, base: Mapping[str, str]) -> Card:
    """Return the card to play: that of the catalogue, or a generic one, with the memory that was asked for.

    Args:
        gpu: Name of a catalogue card; None for a generic one.
        memory_bytes: Capacity; None for what the card has.
        card_bytes: Memory of the card in all, instead.
        base: Environment, which says how kernels are loaded: that decides the context.

    Raises:
        UsageError: The card is unknown, its CUDA context leaves nothing of its memory, or it never has so much.
    """
    if gpu is None and card_bytes is None and memory_bytes is not None:
        return generic_card(memory_bytes)
    card = find_card(_CONTEXT_OF if gpu is None else gpu).with_loading(base)
    if gpu is not None:
        _check_memory(card, memory_bytes or card_bytes or 0)
    if card_bytes is None and memory_bytes is not None:
        return replace(card, total_bytes=memory_bytes + card.context_bytes)
    if card_bytes is None:
        return card
    if card_bytes <= card.context_bytes:
        raise UsageError(
            f"`--memory` gives the card {format_size(card_bytes)} in all, and the CUDA context takes "
            f"{format_size(card.context_bytes)}",
            hint="`--capacity SIZE` says what PyTorch may take, without the context",
        )
    if gpu is None:
        source = f"that of `{_CONTEXT_OF}`: {card.context_source}"
        card = replace(generic_card(0), context_bytes=card.context_bytes, context_source=source)
    return replace(card, total_bytes=card_bytes, total_source="as `--memory` says")


_MOST_TIMES: Final = 4
"""Memory of a card beyond which a size is a mistake; cards with twice the memory of their kind are sold."""


def _check_memory(card: Card, asked_bytes: int) -> None:
    if asked_bytes > _MOST_TIMES * card.total_bytes:
        raise UsageError(
            f"a {card.name} has {format_size(card.total_bytes)}, and {format_size(asked_bytes)} is asked about",
            hint="name the card that has so much, or give the memory without a card",
        )


def _null_reason(*, engine: str, gpu: str | None, card: Card) -> Reason:
    if engine == "null":
        return Reason("engine", "null GPU: asked for by `--engine null`")
    if gpu is None:
        major, minor = card.compute_capability
        text = f"no local GPU and no `--gpu`; a generic card of compute capability {major}.{minor} is played"
        return Reason("engine", f"null GPU: {text}")
    return Reason("engine", f"null GPU: `--gpu {gpu}` names a card to play; PyTorch's own CUDA code runs on it")


def _capacity_reasons(card: Card, memory_bytes: int | None) -> tuple[Reason, ...]:
    if memory_bytes is not None:
        given = Reason("capacity", f"{format_size(memory_bytes)}, as `--capacity` says")
        return (given, *reserve_reasons(card.reserve_bytes))
    return (
        Reason("capacity", f"{format_size(card.total_bytes)} in all ({card.total_source}), less the CUDA context"),
        Reason("context", f"{format_size(card.context_bytes)} ({card.context_source})"),
        *reserve_reasons(card.reserve_bytes),
    )


def reserve_reasons(reserve_bytes: int) -> tuple[Reason, ...]:
    """Return what lowers the capacity where others are said to hold memory."""
    if not reserve_bytes:
        return ()
    return (Reason("reserve", f"{format_size(reserve_bytes)} held by others, as `--reserve` says"),)


def _allocator_reasons(base: Mapping[str, str]) -> tuple[Reason, ...]:
    """Return the user's allocator settings, which hold in the trials as in training."""
    settings = [f"{name}={base[name]}" for name in ALLOCATOR_VARIABLES if base.get(name)]
    return tuple(Reason("allocator", f"`{setting}` is set and was used") for setting in settings)
