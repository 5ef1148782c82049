"""The question that a probe answers: built here, for the command line, the API, the check, fit and everybody else."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass, field, replace
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

from oomdoctor.axes import check_size_name, fill_sizes, read_sizes
from oomdoctor.errors import UsageError
from oomdoctor.modes import MODES, build_evaluation, build_generation, check_mode, generated_tokens
from oomdoctor.option_values import (
    Spelling,
    device_text,
    one_of,
    path_text,
    seconds,
    size_in_bytes,
    text_or_none,
    with_value,
)
from oomdoctor.results import Axis, EnvironmentVariable, Precision, SearchedSize, Variant
from oomdoctor.results.variant import Parallel
from oomdoctor.units import LARGEST_MICRO_BATCH, exact_size, parse_fraction, positive_number, whole_number

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

EngineName = Literal["auto", "cuda", "null", "trace"]
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
PARALLELS: Final[tuple[Parallel, ...]] = get_args(Parallel)
ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)

DEFAULT_HEADROOM: Final = 0.05
DEFAULT_TRIAL_TIMEOUT_SECONDS: Final = 300.0
DEFAULT_STEPS: Final = 3
STEP_COUNTS: Final = ("optimizer", "backward")
"""The first step makes the optimizer's state, the second has the peak that training has, and the third proves it."""

MICRO_BATCH: Final = "{micro_batch}"
ACCUMULATION: Final = "{accumulation_steps}"
"""Placeholders of a command."""

_OVERRIDE: Final = re.compile(r"(?P<file>.+?)(?::(?P<line>\d{1,9}))?:(?P<name>[^\W\d]\w*)\s*=(?P<value>.+)")
_PLACEHOLDER: Final = r"\{(?:micro_batch|accumulation_steps|world_size)\}"
_PLAIN_WORD: Final = re.compile(r"[\w@%+=:./-]*(\{\w+\}[\w@%+=:./-]*)+")


@dataclass(frozen=True, slots=True)
class LiteralOverride:
    """A value that trials of a command give to a name in one of its files, in place of the literal there.

    Attributes:
        file: The file, as given.
        line: The line of the literal; None where the name alone tells.
        name: The name.
        value: A literal of Python, with placeholders where sizes go.
    """

    file: str
    line: int | None
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """One question.

    Attributes:
        target: Reference to the user's file, as given; for a command, the command in one line.
        directory: Where relative references start, and where a command runs.
        target_batch: Samples per optimizer step over all devices; None to ask about plain steps of one micro-batch.
        world_size: Devices that share the target batch.
        ranks: Ranks that are asked about, of a file's world or where a launcher starts fewer, as given.
        mesh: Dimensions of the world's device mesh, outermost first; None where all ranks share the target batch.
        parallel: How a file's model is parallelised over the world; None where it says so itself, by `parallelize`.
        variant: How each trial differs from the target's plain step.
        headroom: Part of the capacity that the recommended size leaves free, between 0 and 1.
        gpu: Name of a catalogue card, or None for the local GPU, which `device` names by its index or UUID.
        memory_bytes: Capacity, what PyTorch may take; None for what the device has.
        card_bytes: Memory of the card in all, from which the CUDA context goes, instead; None for what the device has.
        reserve_bytes: Bytes of the card that others are known to hold, a desktop or NCCL, which lower its capacity.
        engine: `auto`, or the engine to use; `trial_timeout_seconds` is the longest time for loading and each trial.
        profile_micro_batch: Size at which memory is recorded by category and module; None for the maximum.
        profiles: Whether memory is recorded so; else the size is run, where it is given and fits.
        counts_cost: Whether what a step computes and touches is counted there.
        fastest: Whether optimizer steps of several sizes are timed as well.
        command: A command whose words have placeholders where the sizes go; None for a file.
        literals: Literals of the command's own files that its trials set.
        steps: Optimizer steps after which a trial of a command is ended.
        count_steps: What a step of a command is, one of `STEP_COUNTS`.
        fresh: Whether each trial of a command starts its Pythons anew, instead of forking one that has imported torch.
        guide: Whether a trace of the step tells where the search begins; only a file on a real GPU has need of it.
        watched: Whether the files and variables that the target uses are recorded, for an answer that is kept.
        inputs: Patterns of files below `directory` that such an answer depends on, besides those that are recorded.
    """

    target: str
    directory: Path
    target_batch: int | None = None
    world_size: int = 1
    ranks: str | None = None
    mesh: str | None = None
    parallel: Parallel | None = None
    variant: Variant = field(default_factory=Variant)
    headroom: float = DEFAULT_HEADROOM
    gpu: str | None = None
    device: str | None = None
    memory_bytes: int | None = None
    card_bytes: int | None = None
    reserve_bytes: int = 0
    engine: EngineName = "auto"
    trial_timeout_seconds: float = DEFAULT_TRIAL_TIMEOUT_SECONDS
    profile_micro_batch: int | None = None
    profiles: bool = True
    counts_cost: bool = False
    fastest: bool = False
    command: tuple[str, ...] | None = None
    literals: tuple[LiteralOverride, ...] = ()
    steps: int = DEFAULT_STEPS
    count_steps: str = STEP_COUNTS[0]
    fresh: bool = False
    guide: bool = True
    watched: bool = False
    inputs: tuple[str, ...] = ()

    @property
    def templates(self) -> tuple[str, ...]:
        """Texts in which a command's sizes are filled in: its words, and the values of its literals."""
        return (*(self.command or ()), *(literal.value for literal in self.literals))

    @property
    def options(self) -> str:
        """Target batch and card as they are typed, such as `--target-batch 256 --gpu t4`; empty without either."""
        options = {
            "--target-batch": self.target_batch and str(self.target_batch),
            "--gpu": self.gpu,
            "--device": self.device,
            "--memory": self.card_bytes and exact_size(self.card_bytes),
            "--capacity": self.memory_bytes and exact_size(self.memory_bytes),
            "--reserve": self.reserve_bytes and exact_size(self.reserve_bytes),
        }
        return command_line([word for name, value in options.items() if value for word in (name, value)])

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the environment that the trials start from: `base` with the variant's variables."""
        several = {} if self.variant.devices == 1 else {"OOMDOCTOR_NULL_DEVICES": str(self.variant.devices)}
        return {**base, **several, **{variable.name: variable.value for variable in self.variant.environment}}


def build_request(  # noqa: PLR0913 - one parameter an option
    target: str | os.PathLike[str] | Sequence[str],
    *,
    target_batch: int | None = None,
    directory: Path | None = None,
    world_size: int | None = None,
    ranks: str | None = None,
    mesh: str | None = None,
    parallel: str | None = None,
    devices: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    headroom: float | str | None = None,
    gpu: str | None = None,
    device: int | str | None = None,
    memory: int | str | None = None,
    capacity: int | str | None = None,
    reserve: int | str | None = None,
    engine: str | None = None,
    trial_timeout: float | None = None,
    literals: Sequence[str] = (),
    steps: int | None = None,
    count_steps: str | None = None,
    fresh: bool | None = None,
    guide: bool | None = None,
    inputs: Sequence[str] = (),
    at: Mapping[str, int] | Sequence[str] = (),
    searched: SearchedSize | None = None,
    fastest: bool | None = None,
    mode: str | None = None,
    prompt: int | None = None,
    new_tokens: int | None = None,
    cache: str | None = None,
    with_eval: bool | None = None,
    eval_batch: int | None = None,
    spelled: Spelling = str,
) -> ProbeRequest:
    """Build the question of one probe; None stands for a parameter's default everywhere.

    Args:
        target: The file as text or path; or a command as a sequence of words.
        target_batch: Samples per optimizer step over all devices; None where nothing is accumulated.
        directory: Where relative references start; None for the working directory.
        world_size: Devices that share the target batch.
        ranks: Ranks of a world that a launcher does not start whole: numbers, `first`, `last`, `all-distinct`.
        mesh: Dimensions of the world's device mesh, such as `dp=8,tp=4`; its product is the world size.
        parallel: One of `PARALLELS`, for a file whose model has no `parallelize`.
        devices: Devices of one process, over which `nn.DataParallel` divides each batch of a file.
        precision: One of `PRECISIONS`.
        optimizer: Name of a `torch.optim` class where the file builds none.
        headroom: A number in [0, 1), or text such as `5%`.
        gpu: Name of a catalogue card.
        device: Index or UUID of the local GPU.
        memory: Memory of the card in all: bytes, or a size such as `16GiB`.
        capacity: What PyTorch may take of it, given in the same way; instead of `memory`.
        reserve: Memory that others hold, given in the same way, which PyTorch may not take.
        engine: One of `ENGINES`.
        trial_timeout: Seconds.
        literals: Literals to set in a command's files, each as `FILE:NAME=VALUE` or `FILE:LINE:NAME=VALUE`.
        steps: Optimizer steps of a command's trial.
        count_steps: What is a step of a command: one of `STEP_COUNTS`.
        fresh: Whether each trial of a command starts its Pythons anew.
        guide: Whether a trace tells where the search on a real GPU begins.
        inputs: Patterns of files that an answer that is kept depends on, besides those that are recorded.
        at: Sizes other than the batch, by name or each as `NAME=SIZE`: keywords of the file's `make_batch`, or
            placeholders of a command.
        searched: A size other than the batch that is searched in its place, as `build_searched` returns it.
        fastest: Whether optimizer steps of several sizes are timed as well, on a real GPU.
        mode: One of `MODES`: what the trials of a file do with its model.
        prompt: Tokens of each prompt, where the mode is `generate`.
        new_tokens: Tokens that are generated for each.
        cache: How keys and values are kept: one of `CACHES`; None for `dynamic`.
        with_eval: Whether an evaluation comes between the training steps of a file.
        eval_batch: Samples in each of its batches; None for as many as the training has.
        spelled: How an error names a parameter.

    Raises:
        UsageError: A value is none that its parameter takes.
    """
    sizes = read_sizes(at, spelled("at"))
    literals = (literals,) if isinstance(literals, str) else literals
    command = _command(target)
    if command is not None and sizes:
        command, literals, sizes = *fill_sizes(command, literals, sizes), {}
    if fastest and command is not None:
        hint = "put model, batch and step into a file; `oomdoctor init` writes one"
        raise UsageError(f"`{spelled('fastest')}` times the steps of a file, and a command is given", hint=hint)
    if memory is not None and capacity is not None:
        raise UsageError(
            f"`{spelled('memory')}` and `{spelled('capacity')}` exclude each other",
            hint="the first is the card's memory in all, the second what PyTorch may take of it; give one",
        )
    if mode is not None and mode != MODES[0]:
        of_training = {
            "target_batch": target_batch is not None,
            "optimizer": optimizer is not None,
            "fastest": bool(fastest),
            "world_size": world_size not in (None, 1),
            "rank": ranks is not None,
            "mesh": mesh is not None,
            "parallel": parallel is not None,
            "devices": devices is not None,
            "with_eval": bool(with_eval),
        }
        check_mode(mode, command, [spelled(name) for name, is_given in of_training.items() if is_given], spelled)
    if mode == "generate":
        (prompt, new_tokens), sizes = generated_tokens(sizes, searched, prompt, new_tokens, spelled), {}
    variant = build_variant(
        precision=precision, optimizer=optimizer, devices=devices, axes=sizes, mode=mode, spelled=spelled
    )
    generation = build_generation(variant.mode, prompt, new_tokens, cache, spelled)
    evaluation = build_evaluation(with_eval, eval_batch, command, searched, spelled)
    own_sizes = () if searched is None else (searched.name,)
    if searched is not None and target_batch is not None and mesh is None:
        _check_searched(searched, target_batch, world_size or 1, spelled)
    return ProbeRequest(
        target=path_text(target) if command is None else command_line(command),
        command=command,
        directory=Path.cwd() if directory is None else directory,
        target_batch=None if target_batch is None else whole_number(spelled("target_batch"), target_batch),
        world_size=1 if world_size is None else whole_number(spelled("world_size"), world_size),
        ranks=text_or_none(spelled("rank"), ranks),
        mesh=text_or_none(spelled("mesh"), mesh),
        parallel=None if parallel is None else one_of(spelled("parallel"), parallel, PARALLELS),
        variant=replace(variant, searched=searched, generation=generation, evaluation=evaluation),
        headroom=DEFAULT_HEADROOM if headroom is None else parse_fraction(str(headroom), option=spelled("headroom")),
        gpu=text_or_none(spelled("gpu"), gpu),
        device=device_text(spelled("device"), device),
        memory_bytes=size_in_bytes(spelled("capacity"), capacity),
        card_bytes=size_in_bytes(spelled("memory"), memory),
        reserve_bytes=size_in_bytes(spelled("reserve"), reserve) or 0,
        engine=one_of(spelled("engine"), "auto" if engine is None else engine, ENGINES),
        trial_timeout_seconds=seconds(spelled("trial_timeout"), trial_timeout, DEFAULT_TRIAL_TIMEOUT_SECONDS),
        literals=tuple(read_override(text, spelled("set"), own_sizes) for text in literals),
        steps=DEFAULT_STEPS if steps is None else whole_number(spelled("steps"), steps),
        count_steps=one_of(spelled("count_steps"), count_steps or STEP_COUNTS[0], STEP_COUNTS),
        fresh=bool(fresh),
        guide=guide is not False,
        fastest=bool(fastest),
        inputs=tuple(inputs),
    )


def build_variant(  # noqa: PLR0913 - one parameter for each way in which a trial can differ
    *,
    precision: str | None = None,
    optimizer: str | None = None,
    devices: int | None = None,
    environment: Mapping[str, str] | None = None,
    transformations: Sequence[str] = (),
    axes: Mapping[str, int] | None = None,
    mode: str | None = None,
    spelled: Spelling = str,
) -> Variant:
    """Build a variant; `oomdoctor.trial.variants` applies it.

    Args:
        precision: One of `PRECISIONS`; None for `fp32`.
        optimizer: Name of a `torch.optim` class where the file builds none; None for AdamW.
        devices: Devices of one process.
        environment: Variables of the worker's environment, such as the allocator's settings.
        transformations: Names of changes of `oomdoctor.remedies`, in the order in which they are made.
        axes: Sizes that `make_batch` takes as keywords besides the batch size.
        mode: One of `MODES`; None for `train`.
        spelled: How an error names a parameter.

    Raises:
        UsageError: A value is none that its parameter takes.
    """
    return Variant(
        precision=one_of(spelled("precision"), "fp32" if precision is None else precision, PRECISIONS),
        optimizer=text_or_none(spelled("optimizer"), optimizer),
        environment=tuple(starmap(EnvironmentVariable, sorted((environment or {}).items()))),
        transformations=tuple(transformations),
        axes=tuple(starmap(Axis, sorted((axes or {}).items()))),
        devices=1 if devices is None else whole_number(spelled("devices"), devices),
        mode=one_of(spelled("mode"), MODES[0] if mode is None else mode, MODES),
    )


def command_line(command: Sequence[str]) -> str:
    """Return the command as one types it: quoted where a shell would split a word; placeholders are not quoted."""
    return " ".join(word if _PLAIN_WORD.fullmatch(word) else shlex.quote(word) for word in command)


def as_option(parameter: str) -> str:
    """Return a parameter's name on the command line, such as `--target-batch`."""
    return f"--{parameter.replace('_', '-')}"


def as_key(parameter: str) -> str:
    """Return a parameter's name in a configuration, such as `target-batch`."""
    return parameter.replace("_", "-")


def _command(target: object) -> tuple[str, ...] | None:
    if isinstance(target, list | tuple) and target and all(isinstance(word, str) for word in target):
        return tuple(target)
    return None


def build_searched(
    largest: str | None,
    *,
    micro_batch: int | None = None,
    multiple_of: int | None = None,
    up_to: int | None = None,
    spelled: Spelling = str,
) -> SearchedSize | None:
    """Build the size that is searched in place of the micro-batch; None where none is named.

    Raises:
        UsageError: Its micro-batch is missing, a number is below 1, or the others are given without a name.
    """
    others = {"micro_batch": micro_batch, "multiple_of": multiple_of, "up_to": up_to}
    if largest is None:
        for name, value in others.items():
            if value is not None:
                hint = f"add it, as in `{with_value(spelled, 'largest', 'sequence_length')}`, or drop this"
                raise UsageError(f"`{spelled(name)}` is for `{spelled('largest')}`, which is missing", hint=hint)
        return None
    check_size_name(largest, spelled("largest"), with_value(spelled, "largest", largest), {})
    if micro_batch is None:
        hint = f"say at which size, as in `{with_value(spelled, 'micro_batch', 8)}`"
        raise UsageError(f"`{with_value(spelled, 'largest', largest)}` needs a micro-batch", hint=hint)
    samples = positive_number(spelled("micro_batch"), micro_batch, LARGEST_MICRO_BATCH)
    unit = 1 if multiple_of is None else positive_number(spelled("multiple_of"), multiple_of)
    bound = None if up_to is None else positive_number(spelled("up_to"), up_to)
    if bound is not None and bound < unit:
        raise UsageError(f"no multiple of {unit} is at most {bound}", hint=f"raise `{spelled('up_to')}`")
    return SearchedSize(largest, samples, unit, bound)


def _check_searched(searched: SearchedSize, target_batch: int, world_size: int, spelled: Spelling) -> None:
    share = whole_number(spelled("target_batch"), target_batch) // max(1, world_size)
    if 0 < share < searched.micro_batch:
        raise UsageError(
            f"`{spelled('micro_batch')}` is {searched.micro_batch}, and the target gives each device only {share}",
            hint=f"give {share} or fewer, or a larger `{spelled('target_batch')}`",
        )


def read_override(text: str, option: str = "set", sizes: Sequence[str] = ()) -> LiteralOverride:
    """Read `FILE:NAME=VALUE` or `FILE:LINE:NAME=VALUE`.

    Args:
        text: The text.
        option: The option that gives it, for the error.
        sizes: Names of placeholders besides those that every command has.

    Raises:
        UsageError: It is none, or the value is no literal.
    """
    match = _OVERRIDE.fullmatch(text)
    if match is None:
        hint = "write the file, the name and the value, as in `train.py:BATCH={micro_batch}`"
        raise UsageError(f"`{option} {text}` names no literal of a file", hint=hint)
    value = match["value"].strip()
    try:
        ast.literal_eval(re.sub("|".join((_PLACEHOLDER, *(f"[{{]{name}[}}]" for name in sizes))), "1", value))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        hint = "give a number or a `'text'`, or a placeholder such as `{micro_batch}`"
        raise UsageError(f"`{value}` in `{option} {text}` is no literal of Python", hint=hint) from None
    return LiteralOverride(match["file"], int(match["line"]) if match["line"] else None, match["name"], value)
