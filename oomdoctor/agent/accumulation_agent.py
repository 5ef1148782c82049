"""Accumulation agent: what a script does in each optimizer step, and the gradient that it steps with.

The parent runs the script twice, with the whole batch in one micro-batch and with its parts in several, and compares.
Gradients are sent as sketches: each number times a random sign, added up in a few hundred buckets. Sums and inner
products of gradients are those of their sketches, but for a few per cent of the difference between two.
"""

# ruff: noqa: ANN401, SLF001 - torch has no type here, nor public ways

from __future__ import annotations

import array
import atexit
import base64
import dataclasses
import functools
import math
import os
import sys
import sysconfig
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import comparable_runs, settings, training_hooks
from .accumulation_messages import AccumulationEvent, AccumulationWindow, EventKind
from .comparable_runs import SampleRows
from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_BUCKETS = 512
_AVERAGING = frozenset(
    [
        *("lerp", "lerp_", "add", "add_", "sub", "sub_", "mul", "mul_"),
        *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__"),
        *("_foreach_lerp", "_foreach_lerp_", "_foreach_add", "_foreach_add_", "_foreach_mul", "_foreach_sub"),
    ]
)
"""Functions of which a moving average of weights is made."""
_LONGEST_SCHEDULE = 64
_MOST_ROWS = 4096
_LIBRARIES = tuple(
    [str(Path(sysconfig.get_paths()[name])) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    + [str(Path(sysconfig.get_paths()[name]).resolve()) + os.sep for name in ("stdlib", "purelib")]
    + [str(Path(__file__).parent) + os.sep, "<"]
)
"""Beginnings of the names of files that are no user's."""


class AccumulationAgent:
    """Records the accumulation of one process.

    Args:
        torch: The module, just imported.
        send: Sends a message to the parent.
    """

    def __init__(self, torch: Any, send: Callable[[AccumulationWindow], Any]) -> None:
        self._torch = torch
        self._send = send
        self._epoch = comparable_runs.ShortEpoch(torch, settings.ACCUMULATION)
        self._weights = comparable_runs.FixedWeights(torch)
        self._samples = SampleRows(torch, settings.ACCUMULATION[0])
        self._optimizers: list[Any] = []
        self._signs: dict[int, Any] = {}
        self._start = ""
        self._first_sums: list[float] = []  # of the weights, at the first backward of a window
        self._depth = 0  # of calls of modules, schedulers and clipping that are running
        self._in_step = False
        self._in_backward = 0
        self._is_busy = False  # at a measurement of its own
        self._batch_norms: dict[str, None] = {}
        self._schedule: dict[str, int] = {}
        self._has_dropout = False
        self._reset()

    def _reset(self) -> None:
        """Begin a window."""
        self._events: list[AccumulationEvent] = []
        self._forget_forwards()
        self._has_drawn = False

    def _forget_forwards(self) -> None:
        """Await the forwards of the next backward."""
        self._called: Any = None  # the module that is called with the samples
        self._rows: tuple[int, ...] = ()
        self._shape: tuple[int, ...] = ()
        self._sizes: tuple[int, ...] = ()
        self._random_state: Any = None

    def begin(self) -> None:
        """Make the run comparable, and record from now on."""
        torch = self._torch
        comparable_runs.seed(torch)
        comparable_runs.without_dropout(torch, self._dropped)
        comparable_runs.without_autocast(torch)
        self._epoch.apply()
        self._watch_optimizers()
        training_hooks.watch_backward(torch, self._backward_begins, self._backward_ended)
        self._watch_calls()
        self._watch_averages()
        atexit.register(guarded(self.end))

    # --- what is listened to -----------------------------------------------------------------------------------------

    def _watch_optimizers(self) -> None:
        module: Any = sys.modules["torch.optim.optimizer"]
        module.register_optimizer_step_pre_hook(self._step_begins)
        module.register_optimizer_step_post_hook(self._step_ended)
        made, prepare = guarded(self._made), module.Optimizer._patch_step_function

        @functools.wraps(prepare)
        def prepared(optimizer: Any) -> Any:
            made(optimizer)
            return prepare(optimizer)

        module.Optimizer._patch_step_function = prepared

    def _watch_calls(self) -> None:
        torch = self._torch
        _precede(torch.optim.Optimizer, "zero_grad", lambda *_: self._note("zero_grad"))
        _precede(torch.nn.Module, "zero_grad", lambda *_: self._note("zero_grad"))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            unlimited = comparable_runs.without_limit(getattr(torch.nn.utils.clip_grad, name))
            clip = self._within(unlimited, guarded(self._clips))
            setattr(torch.nn.utils.clip_grad, name, clip)
            setattr(torch.nn.utils, name, clip)
        kinds: list[Any] = [one for one in vars(torch.optim.lr_scheduler).values() if isinstance(one, type)]
        for kind in kinds:
            if "step" in vars(kind) and kind is not torch.optim.Optimizer:
                kind.step = self._within(kind.step, guarded(self._schedules))
        torch.nn.Module.__call__ = self._within(torch.nn.Module.__call__, guarded(self._forward))
        average = getattr(sys.modules.get("torch.optim.swa_utils"), "AveragedModel", None)
        if average is not None:
            _precede(average, "update_parameters", lambda *_: self._note_average())

    def _within(self, original: Callable[..., Any], begins: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is told of, but for calls inside others."""

        @functools.wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            if self._depth == 0 and not self._is_busy:
                begins(arguments, named)
            self._depth += 1
            try:
                return original(*arguments, **named)
            finally:
                self._depth -= 1

        return call

    def _watch_averages(self) -> None:
        averaged, torch = guarded(self._averages), self._torch

        class Averages(torch.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
            def __torch_function__(self, function: Any, _types: Any, arguments: Any = (), named: Any = None) -> Any:
                if getattr(function, "__name__", "") in _AVERAGING:
                    averaged(function.__name__, arguments)
                return function(*arguments, **(named or {}))

        Averages().__enter__()  # for the rest of the process

    # --- events ------------------------------------------------------------------------------------------------------

    def _note(self, kind: EventKind, **fields: Any) -> None:
        if not self._is_busy:
            self._events.append(AccumulationEvent(kind, user_line(), **fields))

    def _made(self, optimizer: Any) -> None:
        if not any(one is optimizer for one in self._optimizers):
            self._optimizers.append(optimizer)

    def _dropped(self) -> None:
        self._has_dropout = True

    def _forward(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        module = arguments[0]
        if not self._torch.is_grad_enabled() or not module.training or self._in_backward:
            return  # a backward computes checkpointed blocks again
        if self._rows:
            if module is self._called and len(self._rows) < _MOST_ROWS:
                self._add_rows(arguments, named)
        elif any(one.requires_grad for one in module.parameters()):
            self._called, self._random_state = module, self._random_numbers()
            self._add_rows(arguments, named)
            self._note_batch_norms(module)

    def _add_rows(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Add the samples of a forward to those of the next backward, which may be of several forwards' losses."""
        self._is_busy = True
        try:
            rows, shape = self._samples.of([*arguments[1:], *named.values()])
        finally:
            self._is_busy = False
        self._rows += rows
        if shape:
            self._sizes += shape[:1]
            self._shape = (sum(self._sizes), *shape[1:])

    def _note_batch_norms(self, module: Any) -> None:
        norms = self._torch.nn.modules.batchnorm._BatchNorm
        for name, part in module.named_modules():
            if isinstance(part, norms) and part.training:
                self._batch_norms.setdefault(name)

    def _backward_begins(self) -> None:
        self._in_backward += 1
        if self._in_backward > 1 or self._is_busy:
            return
        sums = self._sums()
        if not self._start:
            self._start = self._sketch(chain.from_iterable(self._parameters()))
        drawn = self._random_state is not None and not self._torch.equal(self._random_state, self._random_numbers())
        self._has_drawn = self._has_drawn or bool(drawn)
        is_first = not any(event.kind == "backward" for event in self._events)
        is_lost = not is_first and not self._has_gradients()
        if is_first:
            self._first_sums = sums
        has_moved = sums != self._first_sums
        read = {"rows": self._rows, "shape": self._shape, "sizes": self._sizes}
        self._note("backward", **read, is_lost=is_lost, has_moved=has_moved)
        self._forget_forwards()

    def _backward_ended(self) -> None:
        self._in_backward -= 1
        if self._in_backward or not self._events:
            return
        last = self._events[-1]
        if last.kind == "backward":
            self._events[-1] = dataclasses.replace(last, accumulated=self._gradient())

    def _clips(self, *_: Any) -> None:
        if any(event.kind == "backward" for event in self._events):
            self._note("clip")

    def _schedules(self, arguments: tuple[Any, ...], _: Any) -> None:
        if not self._start:
            return  # it makes a step when it is made
        scheduler = arguments[0]
        keywords = [getattr(one, "keywords", {}) for one in getattr(scheduler, "lr_lambdas", ())]
        for holder in (vars(scheduler), *keywords):
            lengths = {name: one for name, one in holder.items() if type(one) is int and one > 0 and name[0] != "_"}
            lengths.pop("last_epoch", None)
            self._schedule.update(list(lengths.items())[:_LONGEST_SCHEDULE])
        self._note("scheduler")

    def _averages(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Note an average of weights: arithmetic on a weight outside of forward, backward and step."""
        if self._depth or self._in_step or self._in_backward or self._is_busy or not self._start:
            return
        tensors = list(self._samples.tensors(arguments))
        own = {one.data_ptr() for one in chain.from_iterable(self._parameters())}
        weights = [one for one in tensors if one.data_ptr() in own]
        if not weights or (weights[0].requires_grad and self._torch.is_grad_enabled()):
            return
        if not (name.endswith("_") and not name.endswith("__") and tensors[0].data_ptr() in own):
            self._note_average()

    def _note_average(self) -> None:
        if not self._events or self._events[-1].kind != "average":
            self._note("average")

    # --- the step ----------------------------------------------------------------------------------------------------

    def _step_begins(self, optimizer: Any, arguments: Any, named: Any) -> Any:
        """Record the gradient; where the backward is inside, as with Lightning, once the closure has run."""
        guarded(self._made)(optimizer)
        guarded(self._weights.keep)(optimizer)
        closure = arguments[1] if len(arguments) > 1 else named.get("closure")
        place = user_line()
        if not callable(closure):
            self._in_step = True
            guarded(self._record)(optimizer, place)
            return None
        calls: list[None] = []

        @functools.wraps(closure)
        def run() -> Any:
            if calls:  # LBFGS runs it again, with other weights
                self._is_busy = True
                return closure()
            self._in_step = False
            try:
                return closure()
            finally:
                calls.append(None)
                guarded(self._record)(optimizer, place)
                self._in_step = True

        given = {name: value for name, value in named.items() if name != "closure"}
        return (arguments[0], run, *arguments[2:]), given

    def _step_ended(self, *_: Any) -> None:
        self._in_step = False
        self._is_busy = True
        guarded(self._weights.put_back)()
        self._is_busy = False

    def _record(self, optimizer: Any, place: str) -> None:
        index = next(index for index, one in enumerate(self._optimizers) if one is optimizer)
        rates = tuple(float(group["lr"]) for group in optimizer.param_groups if "lr" in group)
        self._tell(index, place, rates, self._gradient())

    def end(self) -> None:
        """Send the window after the last step, if it has begun."""
        if self._start:
            self._tell(None, "", (), self._gradient())

    def _tell(self, optimizer: int | None, place: str, rates: tuple[float, ...], gradient: str) -> None:
        window = AccumulationWindow(
            optimizer=optimizer,
            place=place,
            events=tuple(self._events),
            gradient=gradient,
            norm=self._norm(),
            weights=self._start,
            rates=rates,
            schedule=dict(self._schedule),
            orders=tuple(map(tuple, self._epoch.orders)),
            is_cut=self._epoch.is_cut,
            is_even=self._epoch.is_even,
            batch_norms=tuple(self._batch_norms),
            has_dropout=self._has_dropout,
            has_drawn=self._has_drawn,
            has_hooks=any(one._backward_hooks for one in chain.from_iterable(self._parameters())),
            is_half=any(one.element_size() < 4 for one in chain.from_iterable(self._parameters())),  # noqa: PLR2004 - bytes
        )
        self._reset()
        self._send(window)

    # --- measuring ---------------------------------------------------------------------------------------------------

    def _parameters(self) -> Iterable[list[Any]]:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield group["params"]

    def _has_gradients(self) -> bool:
        self._is_busy = True
        try:
            return any(
                one.grad is not None and bool(one.grad.detach().any())
                for one in chain.from_iterable(self._parameters())
            )
        finally:
            self._is_busy = False

    def _sums(self) -> list[float]:
        """Return the sum of each weight's numbers, which changes where the weight does."""
        self._is_busy = True
        try:
            weights = [getattr(one, "_local_tensor", one).detach() for one in chain.from_iterable(self._parameters())]
            return [float(weight.sum()) for weight in weights if not weight.is_complex()]
        finally:
            self._is_busy = False

    def _gradient(self) -> str:
        return self._sketch(one.grad for one in chain.from_iterable(self._parameters()))

    def _norm(self) -> float | None:
        gradients = [one.grad for one in chain.from_iterable(self._parameters()) if one.grad is not None]
        self._is_busy = True
        try:
            norm = float(sum(float(one.detach().float().norm()) ** 2 for one in gradients) ** 0.5)
            return norm if math.isfinite(norm) else None
        finally:
            self._is_busy = False

    def _sketch(self, tensors: Iterable[Any]) -> str:
        """Return a sketch as text: its numbers in double precision, in base 64."""
        torch, self._is_busy = self._torch, True
        try:
            with torch.no_grad():
                total = torch.zeros(_BUCKETS, dtype=torch.float64, device="cpu")
                for index, tensor in enumerate(tensors):
                    if tensor is not None:
                        total += self._folded(index, getattr(tensor, "_local_tensor", tensor))
                return base64.b64encode(array.array("d", total.tolist()).tobytes()).decode()
        finally:
            self._is_busy = False

    def _folded(self, index: int, tensor: Any) -> Any:
        """Return a tensor's numbers times their signs, added up in buckets."""
        torch = self._torch
        dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
        numbers = dense.detach().to("cpu").to(torch.float64).flatten()
        signs = self._signs.get(index)
        if signs is None or len(signs) != len(numbers):
            generator = torch.Generator(device="cpu").manual_seed(index)
            signs = torch.randint(0, 2, (len(numbers),), generator=generator, dtype=torch.int8, device="cpu") * 2 - 1
            self._signs[index] = signs
        padding = -len(numbers) % _BUCKETS
        return torch.nn.functional.pad(numbers * signs, (0, padding)).view(-1, _BUCKETS).sum(0)

    def _random_numbers(self) -> Any:
        """Return the state of the random numbers, which changes when one is drawn."""
        torch = self._torch
        state = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state = torch.cat([state, torch.cuda.get_rng_state()])
        return state


def user_line() -> str:
    """Return the innermost line that is no library's, as `file:line`; empty where there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_LIBRARIES) and "-packages" not in name:
            path, here = str(Path(name).absolute()), str(Path.cwd()) + os.sep
            return f"{path[len(here) if path.startswith(here) else 0 :]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _precede(owner: Any, name: str, begins: Callable[..., Any]) -> None:
    """Let a method of a class call `begins` first."""
    original, begins = getattr(owner, name), guarded(begins)

    @functools.wraps(original)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        begins(self)
        return original(self, *arguments, **named)

    setattr(owner, name, call)
