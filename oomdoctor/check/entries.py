"""Entries of a check: read from the configuration, validated, one for each combination of sizes and each card."""

from __future__ import annotations

import difflib
import itertools
import math
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from oomdoctor.axes import fill_sizes, read_grid, read_sizes
from oomdoctor.check.other_sizes import NOT_WITH_BUCKETS, NOT_WITH_LARGEST, bucket_rows, searched_size
from oomdoctor.command.lone_rank import world_mesh
from oomdoctor.command.template import REQUIRED, accumulates
from oomdoctor.config.layers import COMMAND_LINE, PREFIX
from oomdoctor.config.schema import CheckEntry
from oomdoctor.engines.catalogue import find_card
from oomdoctor.errors import UsageError
from oomdoctor.modes import build_evaluation, build_generation, generated_tokens
from oomdoctor.option_values import in_parameters
from oomdoctor.request import ACCUMULATION, DEFAULT_TRIAL_TIMEOUT_SECONDS, as_key, build_request, read_override
from oomdoctor.run.launcher import parse_ranks
from oomdoctor.search.probe_search import share_of
from oomdoctor.units import LARGEST_MICRO_BATCH, parse_fraction, parse_size
from oomdoctor.verification.run import VerifyRequest, build_verify_request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from oomdoctor.config.check import CheckConfiguration, SettledEntry
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import Bucket


DEFAULT_TOLERANCE: Final = 0.02


@dataclass(frozen=True, slots=True)
class Entry:
    """One `[[check]]` on one card, at one combination of sizes.

    Attributes:
        name: Its name; with what distinguishes it behind it, as `pretrain at context 512 on rtx-4090`, where the entry
            names several sizes or cards.
        request: The question.
        micro_batch: Size at which memory is recorded; None to go by the baseline, or else by the answer.
        min_micro_batch: Smallest maximum micro-batch that passes.
        max_accumulation_steps: Most accumulation steps that pass.
        max_memory_bytes: Most bytes that PyTorch may hold from the driver at `micro_batch`.
        headroom: Part of the capacity that has to stay free at `min_micro_batch`; None for no such limit.
        baseline: Whether the baseline file is compared.
        tolerance: Share by which a figure may be worse than in the baseline.
        verification: The question whether accumulating trains what the whole batch would; None where it is not asked.
        at_least: Smallest largest value that passes, where the question searches another size than the micro-batch.
        buckets: Micro-batches by size on which one process has to train in turn; none where they are not asked about.
        min_samples_per_second: Least samples in a second, with the fastest micro-batch, that pass.
    """

    name: str
    request: ProbeRequest
    micro_batch: int | None = None
    min_micro_batch: int | None = None
    max_accumulation_steps: int | None = None
    max_memory_bytes: int | None = None
    headroom: float | None = None
    baseline: bool = False
    tolerance: float = DEFAULT_TOLERANCE
    verification: VerifyRequest | None = None
    at_least: int | None = None
    buckets: tuple[Bucket, ...] = ()
    min_samples_per_second: float | None = None


DEFAULTS: Final = CheckEntry(
    world_size=1,
    precision="fp32",
    baseline=False,
    verify=False,
    tolerance=DEFAULT_TOLERANCE,
    trial_timeout=DEFAULT_TRIAL_TIMEOUT_SECONDS,
)
"""Defaults."""

_LONGEST_TIMEOUT_SECONDS: Final = 604_800
_COUNTS: Final = ("target-batch", "world-size", "micro-batch", "min-micro-batch", "max-accumulation-steps", "steps")
_OF_MODES: Final = ("prompt", "new_tokens", "cache", "with_eval", "eval_batch")
_FOR_FILES: Final = (
    *("precision", "optimizer", "guide", "parallel", "mode", *_OF_MODES),
    *("buckets", "bucket_file", "fastest", "min_samples_per_second"),
)
_FOR_COMMANDS: Final = ("set", "steps", "count_steps", "fresh")
_OF_TRAINING: Final = (
    *("target_batch", "optimizer", "world_size", "mesh", "rank", "parallel", "verify", "max_accumulation_steps"),
    *("with_eval", "fastest", "min_samples_per_second"),
)
"""What an evaluation has no use for."""


def chosen_entries(configuration: CheckConfiguration, names: Sequence[str] = ()) -> tuple[Entry, ...]:
    """Return the entries of these names, or all, on every card that they name and in the order of the configuration.

    Args:
        configuration: What holds.
        names: As the configuration has them, or with sizes and a card behind them as reports do.

    Raises:
        UsageError: There is no such entry, a value cannot be, or two contradict each other; the message names the entry
            and the key.
    """
    entries = _entries(configuration)
    known = list(dict.fromkeys(word for base, entry in entries for word in (base, entry.name)))
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            listed = ", ".join(f"`{each}`" for each in known)
            hint = f"did you mean `{near[0]}`?" if near else f"there are {listed}"
            raise UsageError(f"no entry of `{configuration.file}` is called `{name}`", hint=hint)
    return tuple(entry for base, entry in entries if not names or {base, entry.name} & set(names))


def _entries(configuration: CheckConfiguration) -> list[tuple[str, Entry]]:
    """Return each entry with its name in the configuration.

    Raises:
        UsageError: A value cannot be, or two entries end up with one name.
    """
    found = [
        (settled.name, entry)
        for settled in configuration.entries
        for entry in _EntryReader(settled, _for_question(settled)).entries(configuration.folder)
    ]
    for name, count in Counter(entry.name for _, entry in found).items():
        if count > 1:
            hint = "give each a `name` of its own, and name each card once"
            raise UsageError(f"{count} entries of `{configuration.file}` are called `{name}`", hint=hint)
    return found


def _for_question(settled: SettledEntry) -> CheckEntry:
    """Return what holds for an entry, without what the file says of all entries and its question has no use for.

    Raises:
        UsageError: It says so itself.
    """
    values, origins = settled.settled.values, settled.settled.origins
    for keys, why in _of_no_use(values):
        for key in keys:
            if getattr(values, key) and origins.get(key) == settled.file:
                raise settled.refusal(as_key(key), why, "drop one of the two")
        values = replace(values, **dict.fromkeys(keys))
    return values


def _of_no_use(values: CheckEntry) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield keys that an entry's question has no use for, and why."""
    if values.mode not in (None, "train"):
        yield _OF_TRAINING, f"is for training, and `mode` asks for `{values.mode}`"
    if values.mode == "generate":
        yield ("buckets", "bucket_file"), "is for training and evaluating, and `mode` asks for `generate`"
    if values.largest is not None:
        yield NOT_WITH_LARGEST, f"is about micro-batches, and `largest` searches `{values.largest}`"
    elif values.buckets is not None or values.bucket_file is not None:
        yield NOT_WITH_BUCKETS, "says nothing of buckets, whose sizes and micro-batches are given"


@dataclass(frozen=True, slots=True)
class _EntryReader:
    """Reads and checks one entry."""

    settled: SettledEntry
    values: CheckEntry

    def entries(self, folder: Path) -> Iterator[Entry]:
        """Yield one entry for each combination of sizes and each card."""
        self._check_kind()
        self._check_mode()
        self._check_counts()
        self._check_sizes()
        self._check_device()
        cards = self._cards()
        for sizes, gpu in itertools.product(self._combinations(), cards):
            words = [self.settled.name]
            if self.values.over:
                words.append("at " + ", ".join(f"{name} {sizes[name]}" for name in self.values.over))
            yield self._entry(" ".join([*words, *([f"on {gpu}"] if len(cards) > 1 else [])]), folder, sizes, gpu)

    def _entry(self, name: str, folder: Path, sizes: Mapping[str, int], gpu: str | None) -> Entry:
        values, request = self.values, self._request(folder, sizes, gpu)
        is_searched = request.variant.searched is not None
        return Entry(
            name=name,
            request=request,
            micro_batch=None if is_searched else values.micro_batch,
            min_micro_batch=values.min_micro_batch,
            max_accumulation_steps=values.max_accumulation_steps,
            max_memory_bytes=self._size("max-memory", values.max_memory),
            headroom=self._share("headroom", values.headroom),
            baseline=bool(values.baseline),
            tolerance=_given_or(self._share("tolerance", values.tolerance), DEFAULT_TOLERANCE),
            verification=self._verification(folder, request.command) if values.verify else None,
            at_least=values.at_least,
            buckets=bucket_rows(self.settled, values, folder),
            min_samples_per_second=values.min_samples_per_second,
        )

    def _combinations(self) -> Iterator[dict[str, int]]:
        """Yield the sizes besides the batch, once for each combination of those that have several values."""
        with self._placed("at"):
            given = read_sizes(self.values.at or {})
        with self._placed("over"):
            grid = read_grid(self.values.over or {})
        if both := given.keys() & grid.keys():
            raise self.settled.refusal("over", f"has values of `{min(both)}`, and `at` has one", "drop one of the two")
        for sizes in itertools.product(*grid.values()):
            yield {**given, **dict(zip(grid, sizes, strict=True))}

    def _verification(self, folder: Path, command: tuple[str, ...] | None) -> VerifyRequest:
        if command is not None and not accumulates(command):
            hint = f'let the command take its accumulation steps, as in `"--grad-accum", "{ACCUMULATION}"`'
            raise self.settled.refusal("verify", f"needs `{ACCUMULATION}` in the command", hint)
        return build_verify_request(
            (self.values.target or "").strip() if command is None else command,
            trial_timeout=self.values.trial_timeout,
            directory=folder,
        )

    def _request(self, folder: Path, sizes: Mapping[str, int], gpu: str | None) -> ProbeRequest:
        values = self.values
        for pattern in self.values.inputs or ():
            if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
                hint = 'name files below it, as in `inputs = ["uv.lock", "data/**/*.json"]`'
                raise self.settled.refusal("inputs", "has a pattern outside the folder of the configuration", hint)
        seconds = _given_or(self.values.trial_timeout, DEFAULT_TRIAL_TIMEOUT_SECONDS)
        if not 1 <= seconds <= _LONGEST_TIMEOUT_SECONDS:
            problem = f"is {seconds:g}, not from 1 to {_LONGEST_TIMEOUT_SECONDS} seconds"
            raise self.settled.refusal("trial-timeout", problem)
        searched = searched_size(self.settled, values)
        command, literals = self._filled(sizes, () if searched is None else (searched.name,))
        request = build_request(
            (values.target or "").strip() if command is None else command,
            directory=folder,
            target_batch=values.target_batch,
            world_size=values.world_size,
            mesh=values.mesh,
            ranks=values.rank,
            parallel=values.parallel,
            precision=values.precision,
            optimizer=values.optimizer,
            headroom=self._share("headroom", values.headroom),
            gpu=gpu,
            memory=None if self._overridden() == "memory" else self._size("memory", values.memory),
            capacity=None if self._overridden() == "capacity" else self._size("capacity", values.capacity),
            reserve=self._size("reserve", values.reserve),
            trial_timeout=seconds,
            literals=literals,
            steps=values.steps,
            count_steps=values.count_steps,
            fresh=values.fresh,
            engine=values.engine,
            device=values.device,
            guide=values.guide,
            inputs=self.values.inputs or (),
            mode=values.mode,
            prompt=values.prompt,
            new_tokens=values.new_tokens,
            cache=values.cache,
            with_eval=values.with_eval,
            eval_batch=values.eval_batch,
            at=sizes if command is None else (),
            searched=searched,
            fastest=bool(values.fastest or values.min_samples_per_second),
            spelled=as_key,
        )
        # A frontier's cells are asked about in this way, by the command line too.
        return request if searched is None else replace(request, profiles=False, guide=False)

    def _filled(
        self, sizes: Mapping[str, int], searched: tuple[str, ...]
    ) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        """Return the command and the literals that it sets, with sizes where they have placeholders of their names."""
        command, literals = self.values.command, self.values.set or ()
        if command is not None:
            with self._placed("over" if self.values.over else "at"):
                command, literals = fill_sizes(command, literals, sizes)
        with self._placed("set"):
            for text in literals:
                read_override(text, sizes=searched)
        return command, literals

    def _check_kind(self) -> None:
        """See that a file has no keys of a command, and a command none of a file's and a place for its size."""
        command = self.values.command
        wrong, of_what, why = (
            (_FOR_COMMANDS, "a file", "a trial of a file always takes two steps, in a process that is kept")
            if command is None
            else (_FOR_FILES, "a command", "give the command the option of its own that says so")
        )
        for key in wrong:
            if getattr(self.values, key) is not None:
                raise self.settled.refusal(key.replace("_", "-"), f"cannot be said of {of_what}", f"drop it; {why}")
        if command is not None and not any(REQUIRED in text for text in (*command, *(self.values.set or ()))):
            line = f'`command = ["python", "train.py", "--batch-size", "{REQUIRED}"]`'
            hint = f"put it where the batch size goes, as in {line}; for a literal add `set = "
            hint += f'["train.py:BATCH={REQUIRED}"]`'
            raise self.settled.refusal("command", f"has no `{REQUIRED}`", hint)
        if command is not None and any("\0" in word for word in command):
            raise self.settled.refusal("command", "has a null character, which no program can be given")

    def _check_mode(self) -> None:
        """See that what is said of generating and of evaluating goes with the mode."""
        values = self.values
        tokens = values.prompt, values.new_tokens
        with self._placed("mode"):
            if values.mode == "generate":
                searched = searched_size(self.settled, values)
                tokens = generated_tokens(next(self._combinations()), searched, *tokens, as_key)
            build_generation(values.mode or "train", *tokens, values.cache, as_key)
        with self._placed("with-eval"):
            build_evaluation(values.with_eval, values.eval_batch, values.command, None, as_key)

    def _overridden(self) -> str | None:
        """Return which of `memory` and `capacity` the other replaces: the command line goes before the environment."""
        origins = self.settled.settled.origins
        strength = {
            key: 2 if origins.get(key) == COMMAND_LINE else int(origins.get(key, "").startswith(PREFIX))
            for key in ("memory", "capacity")
        }
        if strength["memory"] == strength["capacity"]:
            return None
        return min(strength, key=strength.__getitem__)

    def _check_device(self) -> None:
        """See that a local GPU and a card to play are not asked for at once, nor a card's memory and its capacity."""
        values = self.values
        if values.memory is not None and values.capacity is not None and self._overridden() is None:
            raise self.settled.refusal(
                "capacity", "is what PyTorch may take, and `memory` the card's in all", "drop one of the two"
            )
        if values.device is not None and (values.gpu is not None or values.gpus is not None):
            raise self.settled.refusal(
                "device", "chooses a GPU of this machine, and `gpu` a card to play", "drop one of the two"
            )

    def _check_counts(self) -> None:
        values = self.values
        if values.target_batch is None:
            self._check_plain()
        for key in _COUNTS:
            value = getattr(values, key.replace("-", "_"))
            if value is not None and value < 1:
                raise self.settled.refusal(key, f"is {value}, not 1 or more")

        least = self.values.min_samples_per_second
        if least is not None and not 0 < least < math.inf:
            raise self.settled.refusal("min-samples-per-second", f"is {least:g}, not above 0")

    def _check_plain(self) -> None:
        """See that nothing is said of a target batch where there is none, and plain steps are asked about."""
        values = self.values
        has_ranks = any(given is not None for given in (values.mesh, values.rank, values.parallel))
        sharing = 0 if has_ranks else (values.world_size or 1) - 1
        found = {"world-size": sharing, "max-accumulation-steps": values.max_accumulation_steps}
        for key, given in found.items():
            if given:
                hint = "say how many samples an optimizer step sees, as in `target-batch = 256`, or drop it"
                hint += '; `rank = "all-distinct"` asks about ranks of the world' if key == "world-size" else ""
                raise self.settled.refusal(key, "is about a target batch, and there is none", hint)

    def _check_sizes(self) -> None:
        """See that micro-batches are no larger than what one device trains on, which is the largest that is tried."""
        values = self.values
        with self._placed("mesh"):
            mesh = world_mesh(values.mesh, values.world_size or 1)
        with self._placed("rank"):
            parse_ranks(values.rank, mesh.world_size, "rank", mesh.pipeline_ranks)
        with self._placed("target-batch"):
            share = share_of(values.target_batch, mesh.data_parallel if values.target_batch else 1)
        for key, size in (("micro-batch", values.micro_batch), ("min-micro-batch", values.min_micro_batch)):
            if size is not None and share is not None and size > share:
                raise self.settled.refusal(key, f"is {size}, and `target-batch` gives each device only {share}")
            if size is not None and share is None and size > LARGEST_MICRO_BATCH:
                raise self.settled.refusal(key, f"is {size}, and no micro-batch above {LARGEST_MICRO_BATCH} is tried")
        if values.max_memory is not None and values.micro_batch is None and values.min_micro_batch is None:
            raise self.settled.refusal(
                "max-memory", "does not say at which size", "add `micro-batch = 8`, the size that you train with"
            )

    def _cards(self) -> tuple[str | None, ...]:
        values = self.values
        if values.gpus is None:
            self._check_card("gpu", values.gpu)
            return (values.gpu,)
        if not values.gpus:
            raise self.settled.refusal("gpus", "names no card", "leave it out for the local GPU")
        for gpu in values.gpus:
            self._check_card("gpus", gpu)
        return values.gpus

    def _check_card(self, key: str, gpu: str | None) -> None:
        if gpu is not None:
            with self._placed(key):
                find_card(gpu)

    def _size(self, key: str, text: str | None) -> int | None:
        with self._placed(key):
            return None if text is None else parse_size(text)

    def _share(self, key: str, value: str | float | None) -> float | None:
        if isinstance(value, int | float) and 0 <= value < 1:
            return float(value)
        with self._placed(key):
            return None if value is None else parse_fraction(str(value))

    @contextmanager
    def _placed(self, key: str) -> Iterator[None]:
        """Say of an error in a value where the value stands."""
        try:
            yield
        except UsageError as error:
            raise self.settled.refusal(key, f"is wrong: {error.message}", self._hint(key, error.hint)) from None

    def _hint(self, key: str, hint: str | None) -> str | None:
        """Return a hint that names keys where it names options, unless the value was given as an option."""
        origin = self.settled.settled.origins.get(key.replace("-", "_"))
        if hint is None or origin == COMMAND_LINE:
            return hint
        return in_parameters(hint, CheckEntry.__dataclass_fields__, as_key)


def _given_or(value: float | None, default: float) -> float:
    return default if value is None else value
