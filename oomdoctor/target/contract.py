"""The functions of the user's file, what each has to give back, and their errors cut down to the user's lines."""

from __future__ import annotations

import random
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from traceback import StackSummary, TracebackException, format_exception_only, walk_tb
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import torch

from oomdoctor.agent.host_memory import HostMemoryError
from oomdoctor.errors import MissingNameError, NoAnswerError, OomdoctorError, TargetError
from oomdoctor.target.placement import default_training_step, described, loss_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from oomdoctor.target.reference import Reference


Role = Literal["build_model", "make_batch", "training_step", "build_optimizer", "parallelize", "evaluation_step"]
Result = TypeVar("Result")
Passes = Callable[[BaseException], bool]

DEFAULT_OPTIMIZER = "AdamW"


@dataclass(frozen=True, slots=True)
class FoundFunction:
    """Origin of one function of the contract.

    Attributes:
        role: Its name in the contract.
        name: Its name in the file, with the arguments of the reference; None where a default stands in.
        location: File and line, such as `model.py:12`; None where a default stands in or the source is not known.
        note: What the default does; empty for a function of the file.
    """

    role: Role
    name: str | None
    location: str | None = None
    note: str = ""

    @property
    def at(self) -> str:
        """Where it is, as it follows the name, such as ` at model.py:12`; empty where that is not known."""
        return f" at {self.location}" if self.location else ""

    def __str__(self) -> str:
        return self.note if self.name is None else f"`{self.name}`{self.at}"


@dataclass(frozen=True, slots=True)
class Target:
    """A target, imported.

    Attributes:
        reference: How it was named.
        name: The same as text.
        description: First line of the module's docstring; empty without one.
        own_roots: Directories or files that hold the user's code.
        build_model: Builds the model, with the reference's arguments.
        make_batch: Makes a batch of so many samples.
        training_step: The file's, or the default one.
        build_optimizer: The file's; None where it has none.
        parallelize: The file's, of a model and a device mesh; None where it has none.
        found: One entry for each function of the contract.
        sizes: Sizes other than the batch by keyword, such as a sequence length; `make_batch` takes each, `build_model`
            those that it has.
        choices: What a generated file has chosen, by its name, with where it is from.
        evaluation_step: The file's, whose outputs an evaluation keeps; None where it has none.
    """

    reference: Reference
    name: str
    description: str
    own_roots: tuple[Path, ...]
    build_model: Callable[[], object]
    make_batch: Callable[[int], object]
    training_step: Callable[[torch.nn.Module, Any], torch.Tensor]
    build_optimizer: Callable[[torch.nn.Module], object] | None
    found: tuple[FoundFunction, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    parallelize: Callable[[torch.nn.Module, DeviceMesh], object] | None = None
    evaluation_step: Callable[[torch.nn.Module, Any], object] | None = None

    def at(self, role: Role) -> str:
        """Return `FoundFunction.at` of a function of the contract; empty where the file has none."""
        return next((found.at for found in self.found if found.role == role), "")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error, or what caused it, is PyTorch's own OutOfMemoryError."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        if isinstance(link, torch.OutOfMemoryError):
            return True
        seen.add(id(link))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return False


def build(target: Target, *, passes: Passes = is_out_of_memory, on_meta: bool = False) -> torch.nn.Module:
    """Build the model, where the user's code builds it; placing it is left to the caller.

    Args:
        target: The user's functions.
        passes: Which errors go through as they are, instead of becoming a TargetError.
        on_meta: Whether the model may be on the meta device, for its caller to give it memory.

    Raises:
        TargetError: The function raised, or did not return a module whose parameters are all there.
    """
    model = call_user(target, target.build_model, call=target.reference.call, passes=passes)
    if not isinstance(model, torch.nn.Module):
        raise TargetError(
            f"`{target.reference.call}`{target.at('build_model')} returned {described(model)}, not a `torch.nn.Module`",
            hint=_hint_for_model(model),
        )
    if any(torch.nn.parameter.is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise TargetError(
            "the model has lazy modules whose parameters do not exist yet",
            hint="run one batch through it at the end of `build_model`, as `training_step` does, for example "
            "`model(make_batch(2))` where the model takes the whole batch",
        )
    if not on_meta and any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise TargetError(
            "the model was left on the meta device, where its parameters have no memory",
            hint='build it on the CPU, or give it memory at the end of `build_model`: `model.to_empty(device="cpu")`',
        )
    return model


def seed_host(seed: int) -> None:
    """Seed what draws numbers on the host: PyTorch, `random` and, where the user's code has imported it, NumPy.

    The generators of GPUs stay as they are: one that is seeded has cuDNN allocate the state of its dropout anew.
    """
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)


def make_one_batch(target: Target, batch_size: int, *, seed: int = 0, passes: Passes = is_out_of_memory) -> Any:  # noqa: ANN401 - any nest
    """Have the file make a batch of `batch_size` samples; placing it is left to the caller.

    Args:
        target: The user's functions.
        batch_size: Samples.
        seed: What is drawn: lengths that the file draws are the same in every trial, whatever the model drew before.
        passes: Which errors go through as they are, instead of becoming a TargetError.

    Raises:
        TargetError: The function raised, or returned nothing.
    """
    call = f"make_batch({', '.join([str(batch_size), *(f'{name}={size}' for name, size in target.sizes.items())])})"
    seed_host(seed)
    batch = call_user(target, partial(target.make_batch, **target.sizes), batch_size, call=call, passes=passes)
    if batch is None:
        raise TargetError(
            f"`{call}`{target.at('make_batch')} returned None", hint="end `make_batch` with a `return` of the batch"
        )
    return batch


def take_loss(target: Target, output: object) -> torch.Tensor:
    """Return the loss in what the file's `training_step` returned: a tensor, its `.loss` or its `["loss"]`.

    Raises:
        TargetError: There is none, or `backward()` would not work on it.
    """
    loss: Any = loss_in(output)
    check_loss(output if loss is None else loss, target.at("training_step"))
    return cast("torch.Tensor", loss)


def check_loss(loss: object, at: str = "") -> None:
    """See that `loss.backward()` will work.

    Args:
        loss: What was returned.
        at: Where the function is, as an error says it.

    Raises:
        TargetError: It is not a floating-point scalar tensor that is attached to the graph.
    """
    if not isinstance(loss, torch.Tensor):
        hint = _HINT_FOR_NO_LOSS if loss is None else _HINT_FOR_NO_TENSOR
        raise TargetError(f"`training_step`{at} returned {described(loss)}, not a tensor", hint=hint)
    if loss.dim() != 0:
        raise TargetError(
            f"`training_step`{at} returned {described(loss)}, not a scalar",
            hint="reduce the loss over the batch, for example with `loss.mean()`",
        )
    if not loss.is_floating_point():
        raise TargetError(
            f"`training_step`{at} returned a loss of type `{loss.dtype}`, which has no gradient",
            hint="return the loss that is trained on, not a count or an accuracy",
        )
    if not loss.requires_grad:
        raise TargetError(
            f"`training_step`{at} returned a loss that is not attached to the graph: there is no gradient to compute",
            hint="look for `torch.no_grad()`, `.detach()`, `.item()` or `torch.tensor(loss)` on the way to the loss, "
            "or for a model whose parameters are all frozen",
        )


def describe(target: Target) -> dict[str, str]:
    """Return for each function of the contract where it was found, or its default, and what a generated file chose."""
    return {entry.role: str(entry) for entry in target.found} | dict(target.choices)


def step_failure(target: Target, error: BaseException, part: str = "the training step") -> TargetError:
    """Return the error to raise in place of one that forward, backward or the optimizer's step ended with.

    Args:
        target: The user's file.
        error: What was raised.
        part: What called the code that raised it.
    """
    return failure(error, part, target.own_roots, hint=step_hint(target, error))


def step_hint(target: Target, error: BaseException) -> str | None:
    """Return the hint for an error of the user's code; None for an unknown one."""
    text = "".join(format_exception_only(error))  # an error whose `__str__` raises has a text here too
    if _WRONG_DEVICE.search(text):
        return _HINT_FOR_WRONG_DEVICE
    if "backward through the graph a second time" in text:
        return _HINT_FOR_SECOND_BACKWARD
    if target.training_step is default_training_step and _WRONG_CALL.search(text):
        return _HINT_FOR_WRONG_CALL
    return None


_WRONG_DEVICE = re.compile(
    r"\b(?:on|at) the same device\b|have the same device type"
    r"|Input type \(.*\) and weight type \(.*\) should be the same"
    r"|is not on the expected device"
    r"|must have its parameters and buffers on device"
    r"|Cannot copy out of meta tensor"
    r"|Expected a '\w+' device type for generator"
    r"|Found no NVIDIA driver|not compiled with CUDA enabled|No CUDA GPUs are available"
    r"|invalid device ordinal|[Dd]evice index value \d+ is out of index range"
)
_HINT_FOR_WRONG_DEVICE = (
    "oomdoctor places the model and the batch; remove `.to(...)`, `.cuda()` and `device=` with a fixed device, and "
    "make further tensors where the data is, as in `torch.arange(n, device=x.device)`"
)
_HINT_FOR_SECOND_BACKWARD = (
    "oomdoctor calls `backward()` and steps the optimizer; leave both out of `training_step` and return the loss"
)
_WRONG_CALL = re.compile(r"forward\(\) (?:takes|got|missing)")
_HINT_FOR_WRONG_CALL = (
    "without a `training_step` a tuple or list is called as `model(*batch)`, a dict as `model(**batch)`; define "
    "`training_step(model, batch)` where the model wants it otherwise"
)
_HINT_FOR_NO_LOSS = "end `training_step` with `return loss`"
_HINT_FOR_NO_TENSOR = "return the loss tensor itself, before `.item()` or `float(...)`, and nothing besides"


def _hint_for_model(value: object) -> str:
    if value is None:
        return "end the function with `return model`"
    if isinstance(value, type):
        return f"return an instance of it: `return {value.__name__}(...)`"
    if isinstance(value, tuple | list) and any(isinstance(item, torch.nn.Module) for item in value):
        return "return the model alone"
    return "the function has to build the model and return it"


_PACKAGE = Path(__file__).parent.parent
_EXAMPLES = _PACKAGE / "examples"
_STANDARD_LIBRARY = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
_INSTALLED = frozenset({"site-packages", "dist-packages"})

_FIRST_LINES, _LAST_LINES = 20, 40
_LONGEST_LINE = 400
_LONGEST_SUMMARY = 200


def user_traceback(error: BaseException, own_roots: Sequence[Path] = ()) -> str:
    """Return the traceback of `error` and of what caused it, without the frames of libraries.

    Where an error was raised inside a library, that one innermost frame stays: it names the operation.

    Args:
        error: What the user's code raised; no reference to it or to its frames is kept.
        own_roots: Directories or files of the user's code; other files that belong to no library are taken as theirs.

    Returns:
        At most 61 lines without a final newline.
    """
    tree = TracebackException.from_exception(error, compact=True)
    links = [tree]
    while links:
        link = links.pop()
        kept = [frame for frame in link.stack if is_own_file(frame.filename, own_roots)]
        innermost = link.stack[-1] if link.stack else None
        if innermost is not None and innermost not in kept and _is_library(Path(innermost.filename)):
            kept.append(innermost)
        link.stack = StackSummary.from_list(kept)
        links += [other for other in (link.__cause__, link.__context__, *(link.exceptions or ())) if other is not None]
    lines = [
        line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."
        for line in "".join(tree.format()).rstrip().splitlines()
    ]
    omitted = len(lines) - _FIRST_LINES - _LAST_LINES
    if omitted > 0:
        lines[_FIRST_LINES : _FIRST_LINES + omitted] = [f"... {omitted} lines left out ..."]
    return "\n".join(lines)


def raised_in_user_code(error: BaseException, own_roots: Sequence[Path] = ()) -> bool:
    """Return whether a line of the user's took part in raising `error`."""
    return any(is_own_file(frame.f_code.co_filename, own_roots) for frame, _ in walk_tb(error.__traceback__))


def summary(error: BaseException) -> str:
    """Return the error in one line of at most 200 characters, such as `ValueError: no such size`."""
    lines = [line for line in format_exception_only(error) if not line.startswith(" ")]
    name, colon, rest = "".join(lines).strip().partition(": ")  # some texts begin with an empty line
    first = next(iter(f"{name}{colon}{rest.lstrip()}".splitlines()), type(error).__name__)
    return first if len(first) <= _LONGEST_SUMMARY else f"{first[:_LONGEST_SUMMARY]}..."


def call_user(
    target: Target, function: Callable[..., Result], *args: object, call: str, passes: Passes = is_out_of_memory
) -> Result:
    """Call a function of the user's file.

    Args:
        target: The user's functions.
        function: What to call.
        args: Its arguments.
        call: The call as the error shows it, such as `make_batch(37)`.
        passes: Whether an error goes to the caller as it is, for example because it tells of memory.

    Raises:
        TargetError: The function raised or called exit. It holds no reference to the error, whose frames hold tensors.
        NoAnswerError: What it does has no room on this host.
    """
    try:
        return function(*args)
    except BaseException as error:  # SystemExit is raised by `exit()`, and any other may be
        if passes(error) or isinstance(error, NoAnswerError):  # what cannot be traced is no fault of the code's
            raise
        if isinstance(error, HostMemoryError):
            raised: OomdoctorError = NoAnswerError.of_text(str(error))
        else:
            raised = failure(error, f"`{call}`", target.own_roots, hint=step_hint(target, error))
    raise raised  # outside of the `except`, whose error would otherwise live on as the context


@contextmanager
def blamed(target: Target, what: str, *, passes: Passes = is_out_of_memory) -> Iterator[None]:
    """Turn whatever the user's objects raise inside, while we handle them, into an error of the target's.

    Args:
        target: The user's functions.
        what: What was done, such as `` placing the model ``.
        passes: As for `call_user`.

    Raises:
        TargetError: Something was raised; it holds no reference to that.
    """
    try:
        yield
    except BaseException as error:
        if passes(error) or isinstance(error, OomdoctorError):
            raise
        raised = failure(error, what, target.own_roots, hint=step_hint(target, error))
    else:
        return
    raise raised


def failure(error: BaseException, what: str, own_roots: Sequence[Path], *, hint: str | None = None) -> TargetError:
    """Return the error to raise in place of one of the user's code.

    Args:
        error: What the code raised; `exit()` arrives as SystemExit.
        what: What raised it, such as `` `make_batch(37)` ``.
        own_roots: As for `user_traceback`.
        hint: What to do about it, where that is known.
    """
    details = user_traceback(error, own_roots)
    if isinstance(error, SystemExit):
        return TargetError(f"{what} called exit with {error.code!r}", hint=hint or _EXIT_HINT, details=details)
    kind = MissingNameError if isinstance(error, ImportError | NameError) else TargetError
    if isinstance(error, ImportError):
        hint = hint or _IMPORT_HINT
    elif isinstance(error, MemoryError) or _NO_HOST_MEMORY in summary(error):
        hint = hint or _HOST_MEMORY_HINT
    return kind(f"{what} raised `{summary(error)}`", hint=hint, details=details)


_IMPORT_HINT = "install what it names in the environment that oomdoctor runs in"
_NO_HOST_MEMORY = "DefaultCPUAllocator: can't allocate memory"
_HOST_MEMORY_HINT = (
    "the memory of this machine ran out, not the GPU's: make smaller tensors on the CPU, or run where there is more"
)
_EXIT_HINT = 'what oomdoctor calls must return; put what only a script does under `if __name__ == "__main__":`'


def is_own_file(filename: str, own_roots: Sequence[Path]) -> bool:
    """Return whether a file is the user's, and not a library's, Python's or ours."""
    path = Path(filename)
    if filename.startswith("<"):  # made at run time: `<frozen importlib._bootstrap>`, `<string>`
        return False
    if path.is_relative_to(_PACKAGE):
        return path.is_relative_to(_EXAMPLES)
    if any(path.is_relative_to(root) and not _is_installed(path.relative_to(root)) for root in own_roots):
        return not _is_standard(path)
    return not _is_installed(path) and not _is_standard(path)


def _is_library(path: Path) -> bool:
    return _is_installed(path) and not path.is_relative_to(_PACKAGE)


def _is_installed(path: Path) -> bool:
    return not _INSTALLED.isdisjoint(path.parts)


def _is_standard(path: Path) -> bool:
    return any(path.is_relative_to(root) and not _is_installed(path.relative_to(root)) for root in _STANDARD_LIBRARY)
