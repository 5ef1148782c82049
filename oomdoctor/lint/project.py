"""The repository around a file: where its other modules lie, and what they define."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final

from oomdoctor.lint.module import Class, Function, Module, parse
from oomdoctor.lint.source import UnreadableError, check_size, decode, read, resolved, tokens, within

_DEFINED: Final = re.compile(r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
_IMPORTED: Final = re.compile(
    r"^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]{0,4000}\)|[^\n(]{0,1000})", re.MULTILINE
)
_TRAINING_TEXT: Final = re.compile(
    r"backward\(|zero_grad|\.step\(|\.eval\(|\.load\(|\.append\(|no_grad|cycle|OutOfMemory"
)
_NAME: Final = re.compile(r"(\w+)(?:\s+as\s+(\w+))?\s*(?:,|#[^\n]*|\)|$)")
_IMPORTED_MODULE: Final = re.compile(r"^[ \t]*import[ \t]+([^\n;#]{1,1000})", re.MULTILINE)
_MODULE: Final = re.compile(r"([\w.]+)(?:\s+as\s+(\w+))?\s*(?:,|$)")


@dataclass(frozen=True, slots=True)
class Outline:
    """The names that a file offers to others.

    Attributes:
        defined: Names of its functions and classes at the top level.
        imported: Names that it imports from elsewhere, with what they stand for there.
        modules: Modules that it imports as a whole, by the text that stands for them: `a.b`, or `c` of `a.b as c`.
        may_train: Whether parts of a training loop may be in it.
    """

    defined: frozenset[str]
    imported: Mapping[str, str]
    modules: Mapping[str, str]
    may_train: bool = False


def outline(text: str) -> Outline:
    """Tell what a file offers."""
    imported: dict[str, str] = {}
    for match in _IMPORTED.finditer(text):
        between = "" if match[1].endswith(".") else "."
        for name in _NAME.finditer(match[2].strip("( \t")):
            imported[name[2] or name[1]] = f"{match[1]}{between}{name[1]}"
    named = (found for match in _IMPORTED_MODULE.finditer(text) for found in _MODULE.finditer(match[1]))
    modules = {found[2] or found[1]: found[1] for found in named}
    return Outline(frozenset(_DEFINED.findall(text)), imported, modules, _TRAINING_TEXT.search(text) is not None)


_MOST_TOKENS: Final = 130_000
"""Tokens of all trees held at once: a bound on memory, 60 MB for code that people write, 130 MB at worst."""
_KEPT_TOKENS: Final = 110_000
"""Tokens of the trees that are kept for the next file's runs."""
_LARGEST_BYTES: Final = 256 * 1024
"""Bytes of a file that a call is followed into; larger ones hold data."""
_MOST_LINKS: Final = 4
"""Files that pass a name on to one another."""
_TRAINING_NAME: Final = re.compile(
    r"train|step|fit|update|optimi|backward|epoch|eval|valid|test|infer|predict|loss|run|batch|load|cycle|main|criterion|tune|adapt"
)
_MOST_FILES: Final = 2000
"""Files of a repository that are searched for callers."""
_FOREIGN: Final = frozenset({"site-packages", "node_modules", "venv", "build", "dist", "__pycache__"})
_HOLDS_DATA: Final = re.compile(
    r"(?:Mixin|Config|Pipeline|Tokenizer\w*|Processor|Output|Outputs|Scheduler|Transform|Dataset|Error|Enum|Args|Arguments"
    r"|Exception|Feature\w*|Type|Warning|Embeddings?|Attention|Layer|Block|Norm|Conv\w*|Pool\w*|Cache|Options|Params)$"
)
"""Classes that hold no training loop by their name, and are not read for it."""
_EMPTY: Final = Outline(frozenset(), MappingProxyType({}), MappingProxyType({}))


def may_be_training_part(name: str) -> bool:
    """Return whether a function of this name may hold a part of a training loop, and so is followed."""
    return bool(_TRAINING_NAME.search(name))


class Project:
    """Files below one folder, parsed when a call leads there.

    Args:
        root: The folder that absolute imports are looked for in, with `src` below it.
        overlay: Contents that replace those on the disk, by resolved path.

    Attributes:
        recorded: Grad modes by position in other files, of the runs that begin in a file; filled by
            `oomdoctor.lint.flow.runs`.
    """

    def __init__(self, root: Path, overlay: Mapping[Path, bytes] | None = None) -> None:
        self.root = root
        self._overlay = overlay or {}
        self._outlines: dict[Path, Outline] = {}
        self._modules: OrderedDict[Path, Module] = OrderedDict()
        self._sizes: dict[Path, int] = {}
        self._in_use = 0
        self._refused: set[Path] = set()
        self._found: dict[tuple[str, Path], Path | None] = {}
        self._locations: dict[tuple[str, Path], tuple[Path, str] | None] = {}
        self._files: list[Path] | None = None
        self.recorded: dict[Path, dict[tuple[str, int, int], set[str]]] = {}

    def definition(self, qualified: str, importer: Module) -> Function | Class | None:
        """The function or class of the repository that a qualified name means, through files that pass it on.

        Args:
            qualified: Qualified name, such as `engine.train_one_epoch` or `.engine.train_one_epoch`.
            importer: The file in which the name stands.
        """
        place = self._cached_location(qualified, importer.path.parent)
        if place is None:
            return None
        path, name = place
        module = self._parsed(path)
        return None if module is None else module.top.get(name) or module.classes.get(name)

    def defines_training_part(self, qualified: str, importer: Module) -> bool:
        """Return whether the name means a function of the repository that may hold a part of a training loop."""
        name = qualified.rpartition(".")[2]
        place = self._cached_location(qualified, importer.path.parent) if may_be_training_part(name) else None
        return place is not None and self._outline(place[0]).may_train

    def training_parts_in(self, dotted: str, importer: Module) -> frozenset[str]:
        """Functions of a module of the repository that may hold a part of a training loop; none where it has no such.

        Args:
            dotted: The module, such as `package.engine`.
            importer: The file in which it is imported.
        """
        path = self._file(dotted, importer.path.parent)
        if path is None or not self._outline(path).may_train:
            return frozenset()
        return frozenset(name for name in self._outline(path).defined if may_be_training_part(name))

    def callers(self, name: str, definer: Module, most: int) -> list[Module]:
        """Files of the repository that import this name, or a module with it, from the file that defines it.

        Args:
            name: Name of a function or a class at the top level of `definer`.
            definer: The file.
            most: Largest number of files to return.
        """
        own = resolved(definer.path)
        found: list[Module] = []
        if self._files is None:
            self._files = list(islice(_scripts(self.root), _MOST_FILES))
        for path in self._files:
            if path != own and len(found) < most and self._imports(path, name, own):
                module = self._parsed(path)
                found += [] if module is None else [module]
        return found

    def _imports(self, path: Path, name: str, own: Path) -> bool:
        outline_ = self._outline(path)
        for meaning in outline_.imported.values():
            if meaning.rpartition(".")[2] == name:
                place = self._locate(meaning, path.parent, 0)
                if place is not None and place[0] == own:
                    return True
        modules = [local for local, meaning in outline_.imported.items() if meaning.rpartition(".")[2] == own.stem]
        modules += [local for local, dotted in outline_.modules.items() if self._file(dotted, path.parent) == own]
        text = self._text(path) if modules else None
        return text is not None and any(f"{local}.{name}(" in text for local in modules)

    def _cached_location(self, qualified: str, folder: Path) -> tuple[Path, str] | None:
        key = (qualified, folder)
        if key not in self._locations:
            self._locations[key] = self._locate(qualified, folder, 0)
        return self._locations[key]

    def _locate(self, qualified: str, folder: Path, links: int) -> tuple[Path, str] | None:
        """The file in which a name is defined, and its name there."""
        source, name = _split(qualified)
        is_wanted = (
            may_be_training_part(name) if name[:1].islower() or name[:1] == "_" else not _HOLDS_DATA.search(name)
        )
        if not source or links > _MOST_LINKS or not is_wanted:
            return None
        path = self._file(source, folder)
        if path is None:
            return None
        offered = self._outline(path)
        if name in offered.defined:
            return path, name
        onward = offered.imported.get(name)
        return None if onward is None else self._locate(onward, path.parent, links + 1)

    def _file(self, dotted: str, folder: Path) -> Path | None:
        key = (dotted, folder)
        if key not in self._found:
            level = len(dotted) - len(dotted.lstrip("."))
            parts = [part for part in dotted.split(".") if part]
            up = Path(folder, *[".."] * (level - 1))
            candidates = []
            for base in [up] if level else [folder, self.root, self.root / "src"]:
                target = base.joinpath(*parts)
                candidates += [target.with_name(target.name + ".py")] if parts else []
                candidates.append(target / "__init__.py")
            self._found[key] = next((resolved(path) for path in candidates if _is_file(path)), None)
        return self._found[key]

    def _outline(self, path: Path) -> Outline:
        if path not in self._outlines:
            text = self._text(path)
            self._outlines[path] = _EMPTY if text is None else outline(text)
        return self._outlines[path]

    def _parsed(self, path: Path) -> Module | None:
        if path in self._modules:
            self._modules.move_to_end(path)
            return self._modules[path]
        if path in self._refused:
            return None
        text = self._text(path)
        if text is None or not self._fits(path, text):
            self._refused.add(path)
            return None
        try:
            module = parse(text, path, self)
        except SyntaxError:  # linting the file itself says why
            self._outlines[path] = _EMPTY
            return None
        self._modules[path] = module
        self._in_use += self._sizes[path]
        return module

    def _fits(self, path: Path, text: str) -> bool:
        if path not in self._sizes:
            self._sizes[path] = tokens(text)
        return self._in_use + self._sizes[path] <= _MOST_TOKENS

    def take(self, path: Path, text: str) -> Module | None:
        """The module of a file that is to be linted itself, if a call has led there before; it is the taker's then."""
        module = self._modules.get(resolved(path))
        if module is None or module.text != text:
            return None
        del self._modules[module.path]
        self._in_use -= self._sizes[module.path]
        return module

    def evict(self) -> None:
        """Make room for the next file's runs: those of the last one hold no part of other files any more."""
        while self._in_use > _KEPT_TOKENS:
            path, module = self._modules.popitem(last=False)
            self._in_use -= self._sizes[path]
            module.close()
        self._refused.clear()

    def _text(self, path: Path) -> str | None:
        data = self._overlay.get(path)
        try:
            text = decode(read(path, _LARGEST_BYTES) if data is None else within(data, _LARGEST_BYTES)).text
            check_size(text)
        except UnreadableError:  # the same: what cannot be read is not followed
            return None
        return text


def _scripts(folder: Path) -> Iterator[Path]:
    """Python files below a folder, hidden folders and installed packages not among them."""
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _FOREIGN)
        for name in sorted(names):
            if name.endswith(".py"):
                yield resolved(Path(base, name))


def _split(qualified: str) -> tuple[str, str]:
    """A module and a name in it: `.` and `train` for `.train`, `a.b` and `c` for `a.b.c`."""
    source, _, name = qualified.rpartition(".")
    if not source.strip(".") and qualified.startswith("."):
        source = qualified[: len(qualified) - len(name)]
    return source, name


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long for the file system, or has a NUL
        return False
