"""Check's settings: the command line, then the environment, then the entry, then the top of the file, then defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.config.files import SHARED, chosen_configuration
from oomdoctor.config.layers import COMMAND_LINE, DEFAULT, Layer, Settled, read_environment, read_top, settle
from oomdoctor.config.schema import CheckEntry, CheckKeys, SharedKeys
from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from oomdoctor.config.files import ConfigurationFile


_LONGEST_NAME: Final = 200
_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({"gpus": "gpu"})
"""Options that are not called as their keys; `--gpu` may be given several times."""

_NOT_FOR_COMMANDS: Final[Mapping[str, None]] = MappingProxyType({"precision": None, "optimizer": None, "guide": None})
"""Keys that a command has no use for, so that only an entry of its own that has one is wrong."""

_A_COMMAND: Final = '`command = ["python", "train.py", "--batch-size", "{micro_batch}"]`'

_LINES: Final = """\
[[{table}]]
name = "pretrain"
target = "model.py"
gpu = "rtx-4090"
target-batch = 256
min-micro-batch = 8"""


@dataclass(frozen=True, slots=True)
class SettledEntry:
    """One `[[check]]`.

    Attributes:
        name: Its name, or where it has none its target, or the words of its command.
        file: The file as messages call it.
        settled: What holds for it, and where each value came from.
    """

    name: str
    file: str
    settled: Settled[CheckEntry]

    def refusal(self, key: str, problem: str, hint: str | None = None) -> UsageError:
        """Return the error for a value that cannot be, naming the file, the entry and the key.

        Args:
            key: The key as in a file.
            problem: What is wrong, to follow the place.
            hint: What to do about it.
        """
        return UsageError(f"{self._place(key)} {problem}", hint=hint)

    def _place(self, key: str) -> str:
        origin = self.settled.origins.get(key.replace("-", "_"), self.file)
        if origin == COMMAND_LINE:
            return f"`--{_OPTIONS.get(key, key)}`"
        if origin in (self.file, DEFAULT):
            return f"`{key}` of `{self.name}` in `{self.file}`"
        return f"`{key}` at {origin}" if origin == _top(self.file) else f"`{origin}`"


@dataclass(frozen=True, slots=True)
class CheckConfiguration:
    """All that was said about check.

    Attributes:
        file: The configuration file as messages call it.
        folder: Its folder, absolute; what targets are relative to.
        entries: What is to be checked, in the order of the file.
        shared: What holds for all of them alike.
        notes: Sentences for `--verbose`.
    """

    file: str
    folder: Path
    entries: tuple[SettledEntry, ...]
    shared: Settled[CheckKeys]
    notes: tuple[str, ...]

    @property
    def jobs(self) -> int | None:
        """Number of entries that run at once; None where it is not set."""
        return self.shared.values.jobs

    def lines(self) -> Iterator[str]:
        """Yield all that holds, and where each value came from; an entry's keys below its name."""
        yield from self.notes
        yield from (line for line in self.shared.lines() if line.startswith("jobs = "))
        for entry in self.entries:
            yield f"{entry.name}:"
            yield from (f"  {line}" for line in entry.settled.lines())


def configure_check(
    command_line: CheckKeys, environment: Mapping[str, str], *, config: Path | None, defaults: CheckEntry
) -> CheckConfiguration:
    """Lay the command line over the environment, and both over the entries of the configuration file.

    Args:
        command_line: What was given there; None where nothing was.
        environment: Variables by name.
        config: The file to read instead of looking for one.
        defaults: What holds where nobody says anything.

    Raises:
        UsageError: There is no entry, or a file or a variable has what the schema does not.
    """
    file = chosen_configuration(config, environment)
    if file is None or not file.values.check:
        raise _nothing_to_check(file)
    above = [
        Layer.of(command_line, COMMAND_LINE),
        read_environment(CheckKeys, "check", environment),
        read_top(CheckKeys, environment),
    ]
    layers = [
        *above,
        Layer.of(
            CheckKeys(**{field.name: getattr(file.values, field.name) for field in fields(CheckKeys)}), _top(file.name)
        ),
    ]
    named, shared = _named(file), settle(layers, CheckKeys())
    jobs = shared.values.jobs
    if jobs is not None and jobs < 1:
        raise UsageError(f"`jobs` is {jobs}, not 1 or more, and comes from {shared.origins['jobs']}")
    return CheckConfiguration(
        file=file.name,
        folder=Path(file.name).absolute().parent,
        entries=tuple(SettledEntry(name, file.name, _settled(entry, file, layers, defaults)) for name, entry in named),
        shared=shared,
        notes=(f"configuration: {file.name}", *file.notes, *_name_notes(named)),
    )


def _settled(
    entry: CheckEntry, file: ConfigurationFile, layers: Sequence[Layer[CheckKeys]], defaults: CheckEntry
) -> Settled[CheckEntry]:
    *above, top = (_of_entry(layer) for layer in layers)
    if entry.command is not None:
        # What is said of all entries is said of those that are files: a command decides these itself.
        above, top = [_for_command(layer) for layer in above], _for_command(top)
        defaults = replace(defaults, **_NOT_FOR_COMMANDS)
    return settle(list(_with_one_choice([*above, Layer.of(entry, file.name), top])), defaults)


def _for_command(layer: Layer[CheckEntry]) -> Layer[CheckEntry]:
    return replace(layer, values=replace(layer.values, **_NOT_FOR_COMMANDS))


def _of_entry(layer: Layer[CheckKeys]) -> Layer[CheckEntry]:
    shared = {field.name: getattr(layer.values, field.name) for field in fields(SharedKeys)}
    return Layer(CheckEntry(**shared), layer.origins)


def _with_one_choice(layers: Sequence[Layer[CheckEntry]]) -> Iterator[Layer[CheckEntry]]:
    """Yield the layers, of which only the first that names any card does so, whether as `gpu` or as `gpus`.

    Raises:
        UsageError: A layer has both.
    """
    is_chosen = False
    for layer in layers:
        values = layer.values
        if values.gpu is not None and values.gpus is not None:
            origin = layer.origins["gpu"]
            raise UsageError(f"`gpu` and `gpus` exclude each other, and both come from {origin}", hint="keep one")
        yield replace(layer, values=replace(values, gpu=None, gpus=None)) if is_chosen else layer
        is_chosen = is_chosen or values.gpu is not None or values.gpus is not None


def _top(file: str) -> str:
    return f"the top of {file}"


def _named(file: ConfigurationFile) -> list[tuple[str, CheckEntry]]:
    """Return each entry with its name.

    Raises:
        UsageError: One has no target and no command, or both, or no name that a report could show, or that of another.
    """
    found: dict[str, CheckEntry] = {}
    for number, entry in enumerate(file.values.check, 1):
        place = f"`[[{_table(file)}]]` {number} of `{file.name}`"
        own_name = _own_name(entry, f"{place}, called `{entry.name}`," if entry.name else place)
        name = own_name if entry.name is None else entry.name
        if not name.isprintable() or name != name.strip() or not 0 < len(name) <= _LONGEST_NAME:
            hint = f'one line of at most {_LONGEST_NAME} characters, for example `name = "pretrain"`'
            raise UsageError(f"{place} needs another `name`", hint=hint)
        if name in found:
            raise UsageError(f"two entries of `{file.name}` are called `{name}`", hint="give each a `name` of its own")
        found[name] = entry
    return list(found.items())


def _own_name(entry: CheckEntry, place: str) -> str:
    """Return the name of an entry that has none: its target, or the words of its command.

    Raises:
        UsageError: It has not exactly one of a target and a command.
    """
    target = (entry.target or "").strip()
    if target and entry.command is not None:
        raise UsageError(
            f"{place} has both `target` and `command`", hint="keep one; the other may be an entry of its own"
        )
    if target:
        return target
    if entry.command is None:
        raise UsageError(f"{place} has no `target`", hint=f'for example `target = "train/model.py"`, or {_A_COMMAND}')
    if not entry.command:
        raise UsageError(f"`command` of {place} has no words", hint=f"for example {_A_COMMAND}")
    return " ".join(entry.command).strip()


def _name_notes(named: Sequence[tuple[str, CheckEntry]]) -> Iterator[str]:
    for name, entry in named:
        if entry.name is None:
            kind = "target" if entry.command is None else "command"
            yield f"an entry without a name is called as its {kind}, `{name}`"


def _nothing_to_check(file: ConfigurationFile | None) -> UsageError:
    where = "add entries to `pyproject.toml`" if file is None else f"add entries to `{file.name}`"
    message = "there is no configuration here, and so nothing to check"
    if file is not None:
        message = f"`{file.name}` has no `[[{_table(file)}]]`, and so nothing to check"
    return UsageError(message, hint=f"{where}:\n\n{_LINES.format(table=_table(file))}")


def _table(file: ConfigurationFile | None) -> str:
    return "tool.oomdoctor.check" if file is None or Path(file.name).name == SHARED else "check"
