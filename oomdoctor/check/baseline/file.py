"""The baseline file: read strictly, written whole or not at all, and byte for byte the same for the same figures.

It has one line a figure, sorted, whole numbers, so that its diff shows what moved:

"pretrain": {
  "circumstances": {"capacity_bytes": ..., "card": ..., "torch": ..., ...},
  "memory": {
    "categories": {"activations": 706740224, ...},
    "micro_batch": 8,
    "micro_steps": 2,
    "modules": {"activations": {"encoder.layers.*.attention": 432013312, ...}, ...},
    "peak_allocated_bytes": 1180696576,
    "peak_phase": "iteration 2 backward",
    "peak_reserved_bytes": 1244659712,
    "phases": {"iteration 2 backward": {"activations": 706740224, ...}, ...}
  },
  "micro_batch": {"accumulation_steps": 22, "limited_by": "memory", "maximum": 12}
}

An entry that is a command has no `memory`, and `trials` by micro-batch instead, each with `micro_steps`,
`peak_allocated_bytes`, `peak_reserved_bytes` and `phases`, whose values are sizes. One that was traced has both, and
its `memory` is null.

The file is JSON, and `json` gives no lines of values, and of two equal keys it keeps the last without a word; after a
merge that went wrong both matter, so that it is parsed here.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, get_args, get_origin

from oomdoctor.check.baseline.figures import Baseline, Circumstances, Figures, MemoryFigures, TrialFigures
from oomdoctor.codec import ADDED_LATER, Decoder, Path, choices, encode
from oomdoctor.errors import UsageError
from oomdoctor.output import write_atomically
from oomdoctor.results import Category

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping
    from dataclasses import Field


_DEEPEST: Final = 20
_LONGEST_NUMBER: Final = 40
# Possessive, so that a string of many megabytes takes no memory for ways back.
_TOKEN: Final = re.compile(
    r'[ \t\r\n]*+(?:(?P<string>"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+")'
    r"|(?P<number>-?(?:0|[1-9][0-9]*+))|(?P<null>null\b)|(?P<sign>[{}:,]))"
)
_SPACE: Final = re.compile(r"[ \t\r\n]*+")
_CONFLICT: Final = re.compile(r"^(?:<{7}|={7}|>{7}|\|{7})(?: [^\r\n]*)?\r?$", re.MULTILINE)


class ParsingError(ValueError):
    """The text is not what a baseline is made of.

    Args:
        problem: What is wrong.
        line: On which line, from 1.
        is_conflict: Whether git left a merge conflict there.
    """

    def __init__(self, problem: str, line: int, *, is_conflict: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line
        self.is_conflict = is_conflict


@dataclass(frozen=True, slots=True)
class Node:
    """One value.

    Attributes:
        line: Where it begins, from 1.
        value: An object's members by key, a text, a number, or None for null.
    """

    line: int
    value: dict[str, Node] | str | int | None


def parse(text: str) -> Node:
    """Read the one value of a text.

    Raises:
        ParsingError: There is none, it is broken, has a kind of value that no baseline has or a key twice, or something
            follows it.
    """
    conflict = _CONFLICT.search(text)
    if conflict:
        raise ParsingError(
            "git left a merge conflict there", text.count("\n", 0, conflict.start()) + 1, is_conflict=True
        )
    reader = _Reader(text)
    node = reader.value(0)
    reader.expect_end()
    return node


class _Reader:
    """Reads tokens from the front; `line` is that of the last one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.line = 1

    def value(self, depth: int) -> Node:
        """Return the next value with all that is in it."""
        token = self._next("a text, a whole number, an object or `null`")
        line = self.line
        if token["string"] is not None:
            return Node(line, json.loads(token["string"]))
        if token["number"] is not None:
            digits = token["number"]
            if len(digits) > _LONGEST_NUMBER:
                raise ParsingError("a number has too many digits", self.line)
            return Node(line, int(digits))
        if token["null"] is not None:
            return Node(line, None)
        if token["sign"] != "{":
            raise ParsingError(f"`{token['sign']}` is out of place", line)
        if depth >= _DEEPEST:
            raise ParsingError("objects are nested too deeply", line)
        return Node(line, self._members(depth))

    def expect_end(self) -> None:
        """See that nothing follows.

        Raises:
            ParsingError: Something does.
        """
        self._skip_space()
        if self._at != len(self._text):
            raise ParsingError("something follows the end", self.line)

    def _members(self, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        token = self._next("a key")
        while not (token["sign"] == "}" and not found):
            if token["string"] is None:
                raise ParsingError("a key is missing", self.line)
            key, line = str(json.loads(token["string"])), self.line
            if key in found:
                raise ParsingError(f"`{key}` stands there again, after line {found[key].line}", line)
            self._sign(":")
            found[key] = self.value(depth + 1)
            if self._sign(",}") == "}":
                break
            token = self._next("a key")
        return found

    def _sign(self, wanted: str) -> str:
        sign = self._next(f"`{wanted[0]}`")["sign"]
        if sign is None or sign not in wanted:
            raise ParsingError(f"`{wanted[0]}` is missing", self.line)
        return sign

    def _next(self, wanted: str) -> re.Match[str]:
        self._skip_space()
        token = _TOKEN.match(self._text, self._at)
        if token is None:
            problem = f"{wanted} is missing" if self._at < len(self._text) else "the file ends in the middle"
            raise ParsingError(problem, self.line)
        self._at = token.end()
        return token

    def _skip_space(self) -> None:
        space = _SPACE.match(self._text, self._at)
        if space:
            self.line += space[0].count("\n")
            self._at = space.end()


# PyTorch allows no full stop in a module's name, so that no module can be called one of these.
_MODULE_KEYS: Final[Mapping[str | None, str]] = MappingProxyType({"": ".model", None: ".elsewhere"})
_MODULES: Final[Mapping[str, str | None]] = MappingProxyType({key: module for module, key in _MODULE_KEYS.items()})
_LONGEST_SIZE: Final = 18
_LARGEST: Final = 2**63 - 1
_KINDS: Final = {dict: "an object", str: "a text", int: "a number", type(None): "`null`"}
_WANTED: Final = {int: "a whole number", str: "a text"}


def to_plain(figures: Figures) -> dict[str, object]:
    """Return an entry as the file has it."""
    plain: dict[str, object] = {
        "circumstances": encode(figures.circumstances),
        "micro_batch": encode(_SavedAnswer(figures.accumulation_steps, figures.limited_by, figures.maximum)),
    }
    if figures.is_command or figures.trials:
        trials = {str(size): asdict(trial) for size, trial in figures.trials.items()}
        plain["trials"] = {
            size: {key: value for key, value in trial.items() if key != "micro_batch"} for size, trial in trials.items()
        }
    if not figures.is_command:
        plain["memory"] = None if figures.memory is None else encode(_with_module_keys(figures.memory))
    return plain


def _with_module_keys(memory: MemoryFigures) -> MemoryFigures:
    """Return the figures with a key of the file for what has no name of its own in the model."""
    modules: dict[Category, dict[str | None, int]] = {
        category: {_MODULE_KEYS.get(module, module): size for module, size in rows.items()}
        for category, rows in memory.modules.items()
    }
    return replace(memory, modules=modules)


@dataclass(frozen=True, slots=True)
class _SavedAnswer:
    accumulation_steps: int | None
    limited_by: Literal["memory", "target", "limit"]
    maximum: int


@dataclass(frozen=True, slots=True)
class _SavedEntry:
    """An entry as the file has it; a command has `trials` and no `memory`."""

    circumstances: Circumstances
    micro_batch: _SavedAnswer
    memory: MemoryFigures | None = field(default=None, metadata=ADDED_LATER)
    trials: dict[int, TrialFigures] = field(default_factory=dict, metadata=ADDED_LATER)

    def figures(self, *, is_command: bool) -> Figures:
        """Return the entry's figures."""
        answer = self.micro_batch
        return Figures(
            circumstances=self.circumstances,
            maximum=answer.maximum,
            limited_by=answer.limited_by,
            accumulation_steps=answer.accumulation_steps,
            memory=self.memory,
            is_command=is_command,
            trials=self.trials,
        )


@dataclass(frozen=True, slots=True)
class _SavedFile:
    schema_version: int
    entries: dict[str, _SavedEntry]


class _BaselineDecoder(Decoder):
    """Builds figures from the plain data of a file; every key has to be known, and an error has its line.

    Args:
        lines: Line of each value by its path.
    """

    def __init__(self, lines: Mapping[Path, int]) -> None:
        self._lines = lines

    def value(self, hint: object, value: object, path: Path, field: Field[Any] | None = None) -> object:
        """Return one value as its type hint asks; the keys of an object are categories, modules or sizes, too."""
        if get_origin(hint) is not dict:
            return super().value(hint, value, path, field)
        kind, of_item = get_args(hint)
        if not isinstance(value, dict):
            self.refuse(hint, value, path, field)
        found = {}
        for key, item in value.items():
            data = self._trial(key, item, path) if kind is int else item
            found[self._key(kind, key, path)] = self.value(of_item, data, (*path, key), field)
        return found

    def _trial(self, key: str, item: object, path: Path) -> object:
        """Return a trial with its size, which is its key."""
        if not key.isascii() or not key.isdecimal() or len(key) > _LONGEST_SIZE:
            self.unknown(key, {}, path)
        if isinstance(item, dict) and "micro_batch" in item:
            self.unknown("micro_batch", {}, (*path, key))
        return {**item, "micro_batch": int(key)} if isinstance(item, dict) else item

    def _key(self, kind: object, key: str, path: Path) -> object:
        if kind is Category and key not in tuple(Category):
            self.unknown(key, {}, path)
        if kind is Category:
            return Category(key)
        return int(key) if kind is int else key if kind is str else _MODULES.get(key, key)

    def unknown(self, key: str, _known: Mapping[str, Field[Any]], path: Path) -> None:
        """Refuse a key that nothing has."""
        raise ParsingError(f"unknown key `{key}` in `{_name(path)}`", self._lines[(*path, key)])

    def missing(self, field: Field[Any], path: Path) -> NoReturn:
        """Refuse an object that lacks a field."""
        raise ParsingError(f"`{field.name}` is missing in `{_name(path)}`", self._lines[path])

    def refuse(self, hint: object, value: object, path: Path, _field: Field[Any] | None) -> NoReturn:
        """Refuse a value of another kind."""
        if isinstance(value, str) and (known := choices(hint)):
            listed = ", ".join(f"`{one}`" for one in known)
            raise ParsingError(f"`{_name(path)}` is `{value}`, not one of {listed}", self._lines[path])
        wanted = next((word for kind, word in _WANTED.items() if kind in (hint, *get_args(hint))), "an object")
        self.refuse_as(f"is {_KINDS[type(value)]}, not {wanted}", value, path)

    def check_range(self, hint: object, value: object, path: Path) -> None:
        """Refuse a number that no figure can be."""
        if hint is int and isinstance(value, int) and not 0 <= value <= _LARGEST:
            self.refuse_as("is not between 0 and 2**63 - 1", value, path)

    def refuse_as(self, wanted: str, _value: object, path: Path) -> NoReturn:
        """Refuse a value, in words."""
        raise ParsingError(f"`{_name(path)}` {wanted}", self._lines[path])


def _name(path: Path) -> str:
    return str(path[-1]) if path else "the file"


NAME: Final = "oomdoctor-baseline.json"
SCHEMA_VERSION: Final = 1

_MAXIMUM_BYTES: Final = 16 * 1024**2
UPDATE: Final = "oomdoctor check --update"
"""The command that writes the baseline of the configuration that is found unnamed."""
_HINT: Final = "`{update}`, of all entries, writes it anew; the repository's history has the last good one"
_CONFLICT_HINT: Final = "take one side whole, then run `{update}`, which measures what both changed"


def write_baseline(path: pathlib.Path, baseline: Baseline) -> None:
    """Write a baseline; the same figures always give the same bytes.

    Raises:
        UsageError: The file cannot be written.
    """
    entries = {name: to_plain(figures) for name, figures in baseline.entries.items()}
    text = json.dumps({"schema_version": SCHEMA_VERSION, "entries": entries}, indent=2, sort_keys=True)
    write_atomically(path, f"{text}\n")


def read_baseline(path: pathlib.Path, update: str = UPDATE) -> Baseline:
    """Read a baseline.

    Args:
        path: The file.
        update: The command that writes it anew, for hints.

    Raises:
        UsageError: There is no such file, it cannot be read, or it is not a baseline; the message has the line.
    """
    text = _read_text(path, update)
    try:
        return Baseline(_entries(parse(text)))
    except ParsingError as error:
        hint = (_CONFLICT_HINT if error.is_conflict else _HINT).format(update=update)
        raise UsageError(
            f"the baseline `{path}` cannot be used, line {error.line}: {error.problem}", hint=hint
        ) from None


def _entries(root: Node) -> dict[str, Figures]:
    lines: dict[Path, int] = {}
    data = _plain(root, (), lines)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is int and version != SCHEMA_VERSION:
        raise ParsingError(f"it has `schema_version` {version}, and this oomdoctor reads {SCHEMA_VERSION}", root.line)
    found = {}
    for name, entry in _BaselineDecoder(lines).table(_SavedFile, data, ()).entries.items():
        path = ("entries", name)
        has_memory, has_trials = ((*path, key) in lines for key in ("memory", "trials"))
        if not has_memory and not has_trials:
            raise ParsingError(f"`memory` is missing in `{name}`", lines[path])
        found[name] = entry.figures(is_command=not has_memory)
    return found


def _plain(node: Node, path: Path, lines: dict[Path, int]) -> object:
    """Return a value without lines, which are noted by path."""
    lines[path] = node.line
    if isinstance(node.value, dict):
        return {key: _plain(member, (*path, key), lines) for key, member in node.value.items()}
    return node.value


def _read_text(path: pathlib.Path, update: str) -> str:
    if path.exists() and not path.is_file():
        raise UsageError(f"the baseline `{path}` is not a file", hint="move it away")
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAXIMUM_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"there is no baseline `{path}`", hint=f"`{update}` writes it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"the baseline `{path}` cannot be read: {reason}") from None
    if len(data) > _MAXIMUM_BYTES:
        raise UsageError(
            f"the baseline `{path}` is larger than 16 MiB, which none is", hint=_HINT.format(update=update)
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"the baseline `{path}` cannot be used, line {line}: it is not UTF-8", hint=_HINT.format(update=update)
        ) from None
