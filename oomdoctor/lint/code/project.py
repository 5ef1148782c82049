"""The repository around a file: where its other modules lie, and who calls a function from another file."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Class, Function, Module

_MOST_MODULES: Final = 24  # that are kept parsed: a bound on memory
_LARGEST_BYTES: Final = 256 * 1024  # of a file that is read on the way; larger ones hold data
_MOST_LINKS: Final = 4  # of a name that is imported from a file that imports it from another


class Project:
    """Files below one folder, parsed when a call leads there.

    Args:
        root: The folder that absolute imports are looked for in, with `src` below it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._modules: OrderedDict[Path, Module | None] = OrderedDict()

    def definition(self, qualified: str, importer: Module, links: int = 0) -> Function | Class | None:
        """The function or class of the repository that a qualified name means, through re-exports.

        Args:
            qualified: Such as `engine.train_one_epoch` or `.engine.train_one_epoch`.
            importer: The file in which the name stands.
            links: How many files led here.
        """
        source, _, name = qualified.rpartition(".")
        if qualified.startswith(".") and not source.strip("."):
            source = qualified[: len(qualified) - len(name)]
        if not source or links > _MOST_LINKS:
            return None
        module = self._module(source, importer)
        if module is None:
            return None
        found = module.top.get(name) or module.classes.get(name)
        if found is not None or name not in module.names:
            return found
        import ast  # noqa: PLC0415 - only for a name that is passed on

        onward = module.names.qualified(ast.Name(name))
        return None if onward is None else self.definition(onward, module, links + 1)

    def add(self, module: Module) -> None:
        """Remember a module that is parsed already, so that following a call does not parse it again."""
        self._remember(_resolved(module.path), module)

    def _module(self, dotted: str, importer: Module) -> Module | None:
        for path in self._candidates(dotted, importer):
            if path.is_file():
                return self._parsed(_resolved(path))
        return None

    def _candidates(self, dotted: str, importer: Module) -> list[Path]:
        level = len(dotted) - len(dotted.lstrip("."))
        parts = [part for part in dotted.split(".") if part]
        folder = importer.path.parent
        up = Path(folder, *[".."] * (level - 1))
        folders = [up] if level else [folder, self.root, self.root / "src"]
        found = []
        for base in folders:
            target = base.joinpath(*parts)
            found += [target.with_name(target.name + ".py")] if parts else []
            found.append(target / "__init__.py")
        return found

    def _parsed(self, path: Path) -> Module | None:
        from oomdoctor.lint.code.parsing import parse  # noqa: PLC0415 - parsing needs the project for its type alone

        if path in self._modules:
            self._modules.move_to_end(path)
            return self._modules[path]
        try:
            text = path.read_text(encoding="utf-8-sig") if path.stat().st_size <= _LARGEST_BYTES else None
            module = None if text is None else parse(text, path, self)
        except (OSError, SyntaxError, ValueError):  # what cannot be read is not followed; linting it says why
            module = None
        self._remember(path, module)
        return module

    def _remember(self, path: Path, module: Module | None) -> None:
        self._modules[path] = module
        if len(self._modules) > _MOST_MODULES:
            self._modules.popitem(last=False)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # a link that leads to itself
        return path
