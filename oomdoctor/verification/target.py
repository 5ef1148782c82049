"""Verify a target in the worker: build it on the CPU in double precision, see that it can be afforded, and judge it."""

from __future__ import annotations

import inspect
import math
import re
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from oomdoctor.agent.host_memory import free_host_bytes
from oomdoctor.errors import NoAnswerError, TargetError
from oomdoctor.target.contract import build, failure, make_one_batch, seed_host, step_hint, take_loss
from oomdoctor.target.importing import load_target
from oomdoctor.target.placement import check_batch, check_batch_sizes
from oomdoctor.target.splitting import is_plain_sequence, parts_of, rows_of, samples_in
from oomdoctor.units import format_size
from oomdoctor.verification.gradients import Laboratory
from oomdoctor.verification.judgement import BATCH_NORM, TOLERANCES, Judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oomdoctor.results.verify import VerifyResult
    from oomdoctor.target.contract import Target
    from oomdoctor.target.reference import Reference
    from oomdoctor.verification.gradients import Batch

Precision: TypeAlias = Literal["fp64", "fp32"]
_TYPES: Final = {"fp64": torch.float64, "fp32": torch.float32}
_WHOLE_BATCHES: Final = 14
"""Forward and backward passes of the whole batch that a verdict takes, the parts' passes added up."""
_BACKWARD: Final = 3
"""FLOPs of forward and backward together over those of the forward."""
_BATCHED: Final = 0.5
"""Time of a sample in a batch over that of a sample alone."""
_SPEED_SIZE: Final = 512
_SPEED_RUNS: Final = 5
_SIZE_WORDS: Final = ("layer", "depth", "block", "width", "dim", "hidden", "embd", "channel", "head")


def verify_target(
    reference: Reference, *, samples: int, parts: int, precision: Precision, limit_seconds: float
) -> VerifyResult:
    """Load a target and judge whether accumulating equals the whole batch.

    Args:
        reference: The target.
        samples: Samples of the whole batch.
        parts: Equal micro-batches that it is cut into.
        precision: `fp64` or `fp32`.
        limit_seconds: Longest time that the runs may be expected to take.

    Raises:
        TargetError: The user's file is at fault.
        UsageError: The batch cannot be cut so.
        NoAnswerError: The CPU has not the memory, or would take longer.
    """
    dtype = _TYPES[precision]
    with _default_type(dtype):
        target = load_target(reference)
        seed_host(0)
        model = build(target).to(device="cpu", dtype=dtype).train()
        batch = _batch(target, samples)
        has_lists = _has_sample_lists(batch, samples)
        _check_samples(target, batch, samples, has_lists=has_lists)
        batch = tree_map(partial(_converted, dtype), batch)
        step, backward = partial(_step, target), partial(_backward, target)
        laboratory = Laboratory(model, step, batch, samples, backward, has_lists)
        _check_cost(target, laboratory, parts, dtype, limit_seconds)
        return Judge(laboratory, parts, TOLERANCES[precision], target.own_roots).judge(reference.text, precision)


@contextmanager
def _default_type(dtype: torch.dtype) -> Iterator[None]:
    """Let the tensors that the user's code makes have the type of the model."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _batch(target: Target, samples: int) -> Batch:
    batch = make_one_batch(target, samples)
    check_batch(batch)
    return batch


def _has_sample_lists(item: object, samples: int) -> bool:
    """Return whether a nest holds a list with an item a sample, such as images of different sizes."""
    if isinstance(item, list | tuple) and len(item) == samples and is_plain_sequence(item):
        return any(rows_of(part) != samples for part in item)
    return any(_has_sample_lists(part, samples) for _, part in parts_of(item))


def _check_samples(target: Target, batch: Batch, samples: int, *, has_lists: bool) -> None:
    found = samples if has_lists else samples_in(batch)
    if found != samples:
        check_batch_sizes(batch, samples, make_one_batch(target, 2 * samples), 2 * samples)
        raise TargetError(
            f"`make_batch({samples})` returned {found} samples, and verifying cuts them by the leading dimension",
            hint="let each tensor of the batch lead with the samples",
        )


def _converted(dtype: torch.dtype, item: object) -> object:
    return item.to(dtype) if isinstance(item, torch.Tensor) and item.is_floating_point() else item


def _step(target: Target, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Run the user's step, and take what it raises for the user's error."""
    try:
        output = target.training_step(model, batch)
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        raised = _failure(target, error)
    else:
        loss = take_loss(target, output)
        if not bool(torch.isfinite(loss)):
            raise TargetError(
                "the loss is not finite, so that gradients cannot be compared",
                hint="let `make_batch` return data for which the loss is a number, and draw masks there that decide "
                "what counts: in the step, draws are replaced by their expected values, which may choose nothing",
            )
        return loss
    raise raised


def _backward(target: Target, loss: torch.Tensor) -> None:
    """Run the backward pass, and take what it raises for the user's error."""
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        raised = _failure(target, error)
    else:
        return
    raise raised


def _failure(target: Target, error: Exception) -> TargetError:
    """Return the error to raise in place of the step's; one of ours says already what is wrong."""
    if isinstance(error, TargetError):
        return error
    hint = step_hint(target, error)
    if hint is None and torch.get_default_dtype() is torch.float64 and _OTHER_TYPE.search(str(error)):
        hint = "the step computes in a type of its own: `--precision fp32` verifies it in single precision"
    return failure(error, "the training step", target.own_roots, hint=hint)


_OTHER_TYPE: Final = re.compile(r"dtype|scalar type|float32|fp32")


def _check_memory(target: Target, model: torch.nn.Module, parts: int) -> None:
    """See that the gradients of all parts find room: each is as large as the weights."""
    weights_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    needed, free = weights_bytes * (3 * parts + 8), free_host_bytes()
    if free is not None and needed > free:
        raise NoAnswerError(
            f"verifying needs about {format_size(needed)} of host memory for the gradients of the micro-batches, and "
            f"{format_size(free)} are free",
            hint=_smaller(target),
        )


def _check_cost(target: Target, laboratory: Laboratory, parts: int, dtype: torch.dtype, limit_seconds: float) -> None:
    """Refuse what takes longer than the limit or has no room: by its FLOPs, before it runs, then by a sample's time."""
    flops = _forward_flops(target, laboratory)
    passes = _WHOLE_BATCHES * laboratory.samples
    seconds = flops * _BACKWARD * passes / _flops_per_second(dtype)  # no step is faster than a matrix product
    smaller = partial(_affordable, target, laboratory, flops)
    _refuse_longer(smaller, seconds, limit_seconds, f"a sample's forward is {flops / 1e9:,.2f} GFLOP")
    _check_memory(target, laboratory.model, parts)
    begin = time.perf_counter()
    laboratory.run(_one_sample(laboratory), [1.0])
    seconds = time.perf_counter() - begin
    _refuse_longer(smaller, seconds * passes * _BATCHED, limit_seconds, f"a sample takes {seconds:.2g} s")


def _refuse_longer(smaller: Callable[[float, float], str], seconds: float, limit_seconds: float, why: str) -> None:
    if seconds > limit_seconds:
        raise NoAnswerError(
            f"verifying would take about {max(1, round(seconds / 60))} minutes on this CPU: {why}",
            hint=f"{smaller(limit_seconds, seconds)}; whether accumulating is equal does not depend on the size. Or "
            f"give this one its time: `--trial-timeout {_whole_minutes(seconds)}`",
        )


def _one_sample(laboratory: Laboratory) -> list[Batch]:
    """Return a part of one sample, or of two where a batch norm refuses one."""
    norms = any(isinstance(module, BATCH_NORM) for module in laboratory.model.modules())
    size = 2 if norms else 1
    return laboratory.parts([size, laboratory.samples - size])[:1]


def _forward_flops(target: Target, laboratory: Laboratory) -> int:
    """Count the FLOPs of one sample's forward without running it; where the step reads data, those up to there."""
    part = _one_sample(laboratory)[0]
    counter = FlopCounterMode(display=False)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), counter, suppress(Exception):
            target.training_step(laboratory.model, part)
    finally:
        laboratory.restore()
    return int(counter.get_total_flops())


def _flops_per_second(dtype: torch.dtype) -> float:
    """Measure the speed of a matrix product, at its best: others may use the CPU meanwhile."""
    matrix = torch.ones(_SPEED_SIZE, _SPEED_SIZE, dtype=dtype)
    seconds = []
    for _ in range(_SPEED_RUNS):
        begin = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - begin)
    return float(2 * _SPEED_SIZE**3 / min(seconds))


def _smaller(target: Target, divisor: int = 4) -> str:
    """Return how to name a smaller model, with the parameters that `build_model` has for its size."""
    reference = target.reference
    if sizes := _divided_sizes(target, divisor):
        kept = {name: value for name, value in reference.kwargs.items() if name not in sizes}
        words = ", ".join(f"{name}={value!r}" for name, value in {**kept, **sizes}.items())
        return f"verify a smaller model of the same kind: `{reference.with_keywords(words)}`"
    example = reference.with_keywords("layers=2")
    return f"verify a smaller model of the same kind: give `{reference.builder}` parameters, as in `{example}`"


def _whole_minutes(seconds: float) -> int:
    """Return at least so many seconds in whole minutes."""
    return math.ceil(seconds / 60) * 60


def _divided_sizes(target: Target, divisor: int) -> dict[str, int]:
    """Return the sizes that `build_model` takes, divided; empty where it takes none."""
    sizes: dict[str, int] = {}
    with suppress(TypeError, ValueError):
        for name, parameter in inspect.signature(_builder(target)).parameters.items():
            size = target.reference.kwargs.get(name, parameter.default)
            if isinstance(size, int) and any(word in name.lower() for word in _SIZE_WORDS):
                sizes[name] = max(1, size // divisor)
    return sizes


def _builder(target: Target) -> Callable[..., object]:
    """Return `build_model` without the reference's arguments."""
    return target.build_model.func if isinstance(target.build_model, partial) else target.build_model


def _affordable(target: Target, laboratory: Laboratory, flops: int, limit_seconds: float, seconds: float) -> str:
    """Return the name of a smaller model that takes half of the limit; where none does, the smallest and its time."""
    hint = _smaller(target)
    for divisor in _DIVISORS if _divided_sizes(target, 1) else ():
        with suppress(Exception):  # sizes that the user's code does not take together
            part = _flops_of_smaller(target, laboratory, divisor) / flops
            hint, needed = _smaller(target, divisor), 2 * seconds * part
            if needed <= limit_seconds:
                return hint
            hint += f" with `--trial-timeout {_whole_minutes(needed)}`"
    return hint


def _flops_of_smaller(target: Target, laboratory: Laboratory, divisor: int) -> int:
    sizes = {**target.reference.kwargs, **_divided_sizes(target, divisor)}
    model = build(replace(target, build_model=partial(_builder(target), **sizes)))
    model = model.to(device="cpu", dtype=torch.get_default_dtype()).train()
    return _forward_flops(target, Laboratory(model, laboratory.step, laboratory.batch, laboratory.samples))


_DIVISORS: Final = (2, 4, 8, 16, 32, 64)
