"""Sizes of many configurations of a model, each asked about once.

A configuration fills the placeholders of a target, such as `model.py:build_model(width={width})`, and is probed for a
card of the catalogue on a null GPU. The probes run in workers that are forked from one process that has imported torch,
so that a sweep starts one interpreter, and the trial's own process holds no memory of it. Models of one file and card
share a worker, one after the other, where the file leaves it as it was.
"""

from __future__ import annotations

import ast
import atexit
import os
import re
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypedDict

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.monitor import cuda_devices, read_gpus
from oomdoctor.errors import NoAnswerError, OomdoctorError, UsageError
from oomdoctor.multi_card.workers import WorkerPool
from oomdoctor.option_values import by_parameters
from oomdoctor.progress import SilentProgress
from oomdoctor.request import build_request
from oomdoctor.search.probe_search import per_device_target
from oomdoctor.trial.answer import document_of
from oomdoctor.trial.probe import engine_for, probe
from oomdoctor.trial.process import CancelToken
from oomdoctor.trial.shared_workers import SharedWorkers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from oomdoctor.option_values import Given, Returned
    from oomdoctor.request import EngineName, ProbeRequest
    from oomdoctor.results import Accumulation, Precision, ProbeDocument


_PLACEHOLDER: Final = re.compile(r"\{([^\W\d]\w*(?:\.\w+)*)\}")
_SENTENCE: Final = re.compile(r"(?<=\.)\s+(?=[A-Z])")
_OF_COMMANDS: Final = frozenset({"micro_batch", "accumulation_steps", "world_size"})
_CARD_HINT: Final = 'name a card, such as `gpu="rtx-4090"`; `oomdoctor gpus --known` lists all'


class SizeOptions(TypedDict, total=False):
    """Options of `oomdoctor.probe`, each with the meaning that it has there."""

    world_size: int
    memory: int | str | None
    capacity: int | str | None
    reserve: int | str | None
    precision: Precision
    optimizer: str | None
    headroom: float | str
    engine: EngineName
    trial_timeout: float
    at: Mapping[str, int] | Sequence[str]


@dataclass(frozen=True, slots=True)
class Sizing:
    """What a configuration takes on a card.

    Attributes:
        document: The answer of its probe.
    """

    document: ProbeDocument

    @property
    def plan(self) -> Accumulation | None:
        """Plan that reaches the target batch; None where nothing fits."""
        return self.document.result.accumulation

    @property
    def why(self) -> str | None:
        """Why there is no plan, in one sentence; None where there is one."""
        if self.plan is not None:
            return None
        result = self.document.result
        trials = sorted(result.trials, key=lambda trial: trial.micro_batch)
        error = next((trial.error for trial in trials if trial.error), "the model alone does not")
        # PyTorch's third sentence begins what `oomdoctor diagnose` reads.
        first = " ".join(_SENTENCE.split(error, 2)[:2])
        return f"no micro-batch of `{result.target}` fits {result.device.name}: {first}"

    def figures(self) -> dict[str, bool | int]:
        """Return the plan as figures by name, as trials of a sweep report them; all are 0 where nothing fits."""
        plan = self.plan
        return {
            "oomdoctor/fits": plan is not None,
            "oomdoctor/micro_batch": 0 if plan is None else max(plan.micro_batches),
            "oomdoctor/steps": 0 if plan is None else plan.steps,
            "oomdoctor/effective_batch": 0 if plan is None else plan.effective_batch,
        }


def size(
    target: str | Sequence[str],
    parameters: Mapping[str, object],
    *,
    target_batch: int,
    gpu: str | None = None,
    **options: Unpack[SizeOptions],
) -> Sizing:
    """Size a configuration, in a process of its own; the same question is asked once, from however many threads.

    Args:
        target: As of `oomdoctor.probe`, with placeholders for parameters, such as `{width}`: literals among the
            arguments, text elsewhere, as in `timm:{architecture}`.
        parameters: Values by name.
        target_batch: Samples per optimizer step over all devices.
        gpu: Card to ask about, which may be `{name}` as well; None for the first that this process sees.
        options: Options of `oomdoctor.probe`.

    Raises:
        UsageError: A placeholder has no value, or a value is no literal; or the question contradicts itself.
        TargetError: The user's file is at fault.
        NoAnswerError: There is no card to ask about, a crash, or a time limit.
    """
    return Sizing(_own_sizer().ask(build_question(target, parameters, target_batch, gpu, options)))


def _by_options(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    return by_parameters(function, (*SizeOptions.__annotations__, "target_batch", "gpu"))


@_by_options
def build_question(
    target: str | Sequence[str],
    parameters: Mapping[str, object],
    target_batch: int,
    gpu: str | None,
    options: SizeOptions,
) -> ProbeRequest:
    """Return the question of `size`, with its arguments and errors."""
    check_options(target_batch, options)
    is_generic = gpu is None and (options.get("memory") is not None or options.get("capacity") is not None)
    if gpu is None and not is_generic:
        gpu = card_here(os.environ)
    request = build_request(
        _filled(target, parameters),
        target_batch=target_batch,
        gpu=fill(gpu, parameters, str) if isinstance(gpu, str) else gpu,
        guide=False,
        **options,
    )
    return replace(request, profiles=False)


def _filled(target: str | Sequence[str], parameters: Mapping[str, object]) -> str | Sequence[str]:
    if isinstance(target, list | tuple):
        return [fill(str(word), parameters, str) for word in target]
    if not isinstance(target, str):
        raise UsageError(
            f"`target` is `{target!r:.80}`, which names no file",
            hint="write it as text: `model.py:build_model(width={width})`",
        )
    begin = target.find("(", max(0, target.find(":")))
    name, arguments = (target, "") if begin < 0 else (target[:begin], target[begin:])
    return fill(name, parameters, str) + fill(arguments, parameters)


def check_options(target_batch: int, options: Mapping[str, object]) -> None:
    """See that what a sweep asks of each configuration can be asked, before any is.

    Raises:
        UsageError: The target batch is no number of samples, or an option is none.
    """
    known = SizeOptions.__annotations__.keys()
    if unknown := sorted(options.keys() - known):
        raise UsageError(f"`{unknown[0]}` is no option of a size", hint=f"its options are {', '.join(sorted(known))}")
    per_device_target(target_batch)


def fill(text: str, parameters: Mapping[str, object], written: object = None) -> str:
    """Return a target with each `{name}` as the literal of its parameter.

    Args:
        text: The target, or a word of a command, whose own placeholders stay.
        parameters: Values by name; `{model.width}` is the `width` of a parameter `model`, unless one is called so.
        written: How a value is written; None for a literal of Python.

    Raises:
        UsageError: A name is no parameter, or a value cannot be written as a literal.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if written is not None and name in _OF_COMMANDS:
            return found[0]
        try:
            found_value = parameters[name] if name in parameters else _nested(name, parameters)
        except (KeyError, TypeError):
            known = ", ".join(f"`{known}`" for known in parameters) or "none so far"
            raise UsageError(
                f"`{found[0]}` of `{text}` is no parameter of the configuration",
                hint=f"its parameters are {known}; a parameter has a value once it was suggested",
            ) from None
        return str(found_value) if written is not None else _literal(name, found_value)

    return _PLACEHOLDER.sub(value, text)


def _nested(name: str, parameters: Mapping[str, object]) -> object:
    value: Any = parameters
    for part in name.split("."):
        value = value[part]
    return value


def _literal(name: str, value: object) -> str:
    item = getattr(value, "item", None)
    plain = item() if callable(item) and getattr(value, "ndim", None) == 0 else value  # such as NumPy's numbers
    try:
        ast.literal_eval(repr(plain))
    except (ValueError, SyntaxError):
        raise UsageError(
            f"the parameter `{name}` is `{value!r:.80}`, which is no literal of Python",
            hint="a target takes numbers, texts, True, False, None, and lists, tuples and dicts of them",
        ) from None
    return repr(plain)


def card_here(environment: Mapping[str, str]) -> str:
    """Return the catalogue's key of the first GPU that a process of this environment sees.

    Raises:
        UsageError: The catalogue has no such card, or several.
        NoAnswerError: There is no GPU, or only CUDA knows which comes first.
    """
    try:
        visible = cuda_devices(read_gpus().gpus, environment)
    except NoAnswerError as error:
        raise NoAnswerError("this process has no GPU to size for", hint=_CARD_HINT, details=error.details) from None
    if not visible or visible[0].name is None:
        raise NoAnswerError("it is not known which GPU this process has first", hint=_CARD_HINT)
    return find_card(visible[0].name).key


class Sizer:
    """Asks each question once, with workers that are forked from one process."""

    def __init__(self) -> None:
        self._stop = CancelToken()
        self._pool = WorkerPool(self._stop)
        self._workers = SharedWorkers(self._pool.start)
        self._lock = Lock()
        self._answers: dict[tuple[ProbeRequest, str], Future[ProbeDocument]] = {}

    @_by_options
    def ask(self, request: ProbeRequest) -> ProbeDocument:
        """Return the answer to a question, which another thread may be finding.

        Raises:
            OomdoctorError: There is none; it is asked anew the next time.
        """
        key = (request, _content(request))
        with self._lock:
            known = self._answers.get(key)
            future = self._answers.setdefault(key, Future())
        if known is None:
            try:
                future.set_result(self._probed(request))
            except BaseException as error:
                del self._answers[key]
                future.set_exception(error)
                raise
        return future.result()

    def _probed(self, request: ProbeRequest) -> ProbeDocument:
        with self._lock:
            engine = None if request.command is not None else engine_for(request)  # builds the null GPU once
        workers = self._workers.for_probe()
        try:
            run = probe(request, SilentProgress(), engine=engine, stop=self._stop, start=workers)
        except OomdoctorError:
            if not workers.has_shared:
                raise
            # Whatever an earlier model has left behind shall not be the reason.
            run = probe(request, SilentProgress(), engine=engine, stop=self._stop, start=self._pool.start)
        return document_of(run)

    def close(self) -> None:
        """End the workers, and the process that they are forked from."""
        self._stop.set()
        self._workers.close()
        self._pool.__exit__()


def _content(request: ProbeRequest) -> str:
    """Return a digest of the target's file, which may be edited between two questions; empty where it is no file."""
    path = request.directory / request.target.partition(".py")[0]
    path = path.with_name(f"{path.name}.py")
    return sha256(path.read_bytes()).hexdigest() if request.command is None and path.is_file() else ""


_making: Final = Lock()


def _own_sizer() -> Sizer:
    """Return this process's sizer; threads that ask at once have one."""
    with _making:
        return _sizer(os.getpid())


@cache
def _sizer(process: int) -> Sizer:
    """Return the sizer of a process: a fork of it would share its channels."""
    sizer = Sizer()
    atexit.register(lambda: sizer.close() if os.getpid() == process else None)
    return sizer
