"""The worker process, which holds torch, the device and the user's code; it answers one request at a time.

Requests: `{"op": "device"}` where that is asked first, `{"op": "load", ...}` once, then `{"op": "trial", ...}`,
`{"op": "foresee", ...}`, `{"op": "profile", ...}` and `{"op": "dependencies"}` as often as wanted; or, for many cards,
`{"op": "load_for_many", ...}` once, then `{"op": "fit", ...}`. Answers: `{"event": "device"}`, `{"event": "loaded"}`,
`{"event": "trial"}`, `{"event": "foreseen"}`, `{"event": "profiled"}`, `{"event": "dependencies"}`,
`{"event": "fitted"}`, or `{"event": "error"}` with one of our errors, after which the parent asks no more.

Usage: worker READ_FD WRITE_FD
"""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import sys
import traceback
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from oomdoctor.codec import decode, encode
from oomdoctor.engines.catalogue import Card, emulated_card
from oomdoctor.errors import OomdoctorError, TargetError
from oomdoctor.oom.classifier import classify
from oomdoctor.results import Outcome, PhaseName
from oomdoctor.target.contract import (
    Target,
    build,
    check_batch,
    check_batch_sizes,
    describe,
    is_out_of_memory,
    make_one_batch,
)
from oomdoctor.target.importing import load_target
from oomdoctor.target.reference import Reference
from oomdoctor.trial.dependency_watch import report, watch
from oomdoctor.trial.device import (
    capacity_bytes,
    current_card,
    current_device,
    device_kind,
    emulated_device,
    fault_of,
    has_kernels,
    held_memory,
    set_emulated_device,
    unknown_calls,
    zeros_read_count,
)
from oomdoctor.trial.guardian import die_with_parent
from oomdoctor.trial.meter import PhaseMeter
from oomdoctor.trial.profile.recorder import profile
from oomdoctor.trial.protocol import Channel, ChannelClosedError, Message, ProfileOutcome
from oomdoctor.trial.replay import largest_placeable
from oomdoctor.trial.trial import Attempt, TrialSetup, await_release, release_memory, run_trial, set_memory_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.multi_card.fitter import Fitter
    from oomdoctor.trial.dependency_recorder import Recorder


_SCORE: Final = Path("/proc/self/oom_score_adj")
_FIRST: Final = "1000"


def offer_to_oom_killer() -> None:
    """Be the first that the kernel ends when the host's memory is out; where there is no such file, it chooses."""
    with contextlib.suppress(OSError):
        _SCORE.write_text(_FIRST, encoding="ascii")


def main(arguments: list[str]) -> int:
    """Serve requests until the parent closes the channel."""
    die_with_parent()
    channel = Channel(int(arguments[0]), int(arguments[1]))
    worker = _Worker()
    with _device_to_run_on():
        try:
            while True:
                channel.send(_answer(worker, channel.receive()))
        except ChannelClosedError:
            return 0


@contextmanager
def _device_to_run_on() -> Iterator[None]:
    """Emulate a card where that is asked for; else there is a GPU, or a null GPU."""
    card = emulated_card(os.environ)
    if card is None:
        yield
        return
    from oomdoctor.engines.trace.emulation import emulated_cuda  # noqa: PLC0415 - only where something is emulated

    with emulated_cuda(card) as device:
        set_emulated_device(device)
        yield


def _answer(worker: _Worker, request: Message) -> Message:
    read_before = zeros_read_count()
    try:
        return _OPERATIONS[request["op"]](worker, request)
    except OomdoctorError as error:
        return {"event": "error", **_texts(fault_of(error, zeros_read=zeros_read_count() - read_before))}
    except SystemExit as exit_:
        ended = TargetError(
            f"the target's code called `exit({exit_.code!r})`",
            hint="remove the call from the functions that oomdoctor runs",
        )
        return {"event": "error", **_texts(ended)}
    except Exception:  # noqa: BLE001 - a bug of ours must reach the parent as such
        return {"event": "bug", "details": traceback.format_exc()}


def _texts(error: OomdoctorError) -> Message:
    kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == OomdoctorError.__module__)
    return {"kind": next(kinds), "message": error.message, "hint": error.hint, "details": error.details}


class _Worker:
    """The state between requests."""

    _used: Recorder
    _setup: TrialSetup
    _cap_bytes: int | None
    _start_bytes: int
    _is_frozen = False
    _fitting: Fitter

    def device(self, _: Message) -> Message:
        """What it runs on, before anything is loaded."""
        return {"event": "device", "card": encode(current_card(current_device()))}

    def load(self, request: Message) -> Message:
        self._used = watch()
        device = current_device()
        self._cap_bytes = request["memory_bytes"]
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        context_bytes = total_bytes - torch.cuda.mem_get_info(device)[0]
        target = load_target(Reference(**request["reference"]))
        model = _build(target)
        _check_batches(target)
        recorder = PhaseMeter()
        set_memory_limit(capacity_bytes(self._cap_bytes))
        error = _place_model(model, device, recorder)
        release_memory(model)
        self._setup = TrialSetup(
            target, model, device, request["precision"], request["optimizer"], device_kind() == "cuda"
        )
        self._start_bytes = torch.cuda.memory_allocated()
        with self._used.quietly():
            _import_what_optimizers_import()
        return {
            "event": "loaded",
            "name": torch.cuda.get_device_name(device),
            "compute_capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
            "has_kernels": has_kernels(torch.cuda.get_arch_list(), torch.cuda.get_device_capability(device)),
            "total_bytes": total_bytes,
            "used_before_bytes": context_bytes,
            "capacity_bytes": capacity_bytes(self._cap_bytes),
            "weights_bytes": _weights_bytes(model),
            "placement_error": error,
            "held": held_memory(),
            "phases": [encode(phase) for phase in recorder.phases],
            "found": describe(target),
            "versions": _versions(),
        }

    def trial(self, request: Message) -> Message:
        attempt = run_trial(self._setup, request["micro_batch"], request["micro_steps"], request["allowed_bytes"])
        await_release(self._setup.model, self._start_bytes)
        self._freeze()
        return {
            "event": "trial",
            "trial": encode(attempt.trial),
            "problem": _problem_of(attempt),
            "trace": attempt.trace,
            "loss_is_finite": attempt.loss_is_finite,
            "zeros_read": attempt.zeros_read,
            "optimizer": attempt.optimizer_name,
            "held": held_memory(),
            "capacity_bytes": capacity_bytes(self._cap_bytes),
            "unknown_calls": unknown_calls(),
        }

    def profile(self, request: Message) -> Message:
        """Say what memory is made of at one size; what keeps that from being said is no fault of the probe's."""
        try:
            found = profile(
                self._setup,
                request["micro_batch"],
                request["micro_steps"],
                request["allowed_bytes"],
                request["peak_allocated_bytes"],
            )
        except Exception as error:  # noqa: BLE001 - the answer is there already, and stays right without this
            found = ProfileOutcome(None, f"{type(error).__name__}: {error}", Outcome.FAILED)
        await_release(self._setup.model, self._start_bytes)
        return {
            "event": "profiled",
            "memory": encode(found.memory),
            "reason": found.reason,
            "outcome": found.outcome.value,
            "held": held_memory(),
        }

    def _freeze(self) -> None:
        """Leave what the first trial did not leave behind out of later collections: torch has a million objects."""
        if not self._is_frozen and torch.cuda.memory_allocated() == self._start_bytes:
            gc.freeze()
            self._is_frozen = True

    def foresee(self, request: Message) -> Message:
        """Replay traces of other sizes; nothing of the user's runs."""
        set_memory_limit(request["allowed_bytes"])
        traces = {int(size): trace for size, trace in request["traces"].items()}
        size = largest_placeable(
            traces, request["low"], request["high"], request["allowed_bytes"], retries=request["retries"]
        )
        return {"event": "foreseen", "size": size}

    def load_for_many(self, request: Message) -> Message:
        """Load the target on an emulated device, to ask about many cards."""
        from oomdoctor.multi_card.fitter import Fitter, begin_journal  # noqa: PLC0415 - only where something is emulated

        if request["gives_way"]:
            offer_to_oom_killer()
        device = emulated_device()
        cards = [decode(Card, card, "card") for card in request["cards"]]
        begin_journal(device, cards)
        loaded = self.load(request | {"memory_bytes": None})
        self._fitting = Fitter(
            setup=self._setup,
            device=device,
            cards=cards,
            target_batch=request["target_batch"],
            world_size=request["world_size"],
            start_bytes=self._start_bytes,
            weights_bytes=loaded["weights_bytes"],
            explain=_problem_of,
        )
        return loaded

    def fit(self, request: Message) -> Message:
        """One card's answer, or one's with another capacity, without a trial on it."""
        fitted = self._fitting.fit(request["gpu"], request["headroom"], request["capacity_bytes"])
        return {"event": "fitted", "fitted": encode(fitted), "questions": self._fitting.questions}

    def dependencies(self, _: Message) -> Message:
        """What the target used so far."""
        return {"event": "dependencies", "dependencies": encode(report(self._used))}


_OPERATIONS = {
    "device": _Worker.device,
    "load": _Worker.load,
    "trial": _Worker.trial,
    "foresee": _Worker.foresee,
    "profile": _Worker.profile,
    "dependencies": _Worker.dependencies,
    "load_for_many": _Worker.load_for_many,
    "fit": _Worker.fit,
}


def _problem_of(attempt: Attempt) -> Message | None:
    """What a trial that failed for another reason than memory failed with."""
    if attempt.problem is None:
        return None
    return _texts(fault_of(attempt.problem, zeros_read=attempt.zeros_read))


def _versions() -> Message:
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    return {name: version for name, version in versions.items() if version}  # a CPU build has no CUDA


def _import_what_optimizers_import() -> None:
    """Import early, from a shallow stack, what the first optimizer would import from deep in a trial's.

    There CPython 3.11's stack of frames may sit at the edge of a chunk, which every call of 900 modules' import then
    maps and unmaps again: 160,000 times, which takes as long as all the rest.
    """
    import_module("torch._dynamo")


def _build(target: Target) -> torch.nn.Module:
    try:
        model = build(target, passes=is_out_of_memory)
    except torch.OutOfMemoryError as error:
        raise TargetError(
            "`build_model` itself ran out of GPU memory",
            hint="let it build the model on the CPU; oomdoctor places it",
            details=str(error),
        ) from None
    if any(torch.nn.parameter.is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise TargetError(
            "the model has lazy modules whose parameters do not exist yet",
            hint="run one batch through it at the end of `build_model`, for example `model(make_batch(2))`",
        )
    return model


def _check_batches(target: Target) -> None:
    """See early that `make_batch` makes batches and heeds its argument; where it raises is the trials' matter."""
    try:
        few, more = make_one_batch(target, 2), make_one_batch(target, 4)
    except (torch.OutOfMemoryError, TargetError):
        return
    check_batch(few)
    check_batch_sizes(few, 2, more, 4)


def _place_model(model: torch.nn.Module, device: torch.device, recorder: PhaseMeter) -> str | None:
    """Move the model; the text of the OOM where it does not fit, and then it is back on the CPU."""
    try:
        with recorder.phase(0, PhaseName.LOAD):
            model.to(device).train()
    except Exception as error:
        if classify(error).outcome is not Outcome.OOM:
            raise
        text = str(error)
    else:
        return None
    model.to("cpu")
    return text


def _weights_bytes(model: torch.nn.Module) -> int:
    """Bytes of parameters and buffers, shared storages once."""
    storages = (tensor.untyped_storage() for tensor in (*model.parameters(), *model.buffers()))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
