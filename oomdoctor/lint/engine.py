"""From paths to findings: every file is read, parsed, run abstractly and checked by each rule."""

from __future__ import annotations

import ast
import gc
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from oomdoctor.lint.discovery import STANDARD_INPUT, Discovered, File, Globs, discover, repository_of
from oomdoctor.lint.flow.hints import calls_other_files, is_relevant
from oomdoctor.lint.flow.runs import runs_of
from oomdoctor.lint.module import Module, parse
from oomdoctor.lint.notebooks import (
    BrokenCellError,
    Document,
    Inputs,
    Notebook,
    digest,
    most_bytes,
    parse_document,
)
from oomdoctor.lint.project import Project
from oomdoctor.lint.reporting import FileView, FindingCollector
from oomdoctor.lint.rule import Hit, Rule, Subject
from oomdoctor.lint.settings import LintSettings, matching, selected
from oomdoctor.lint.source import Edit, UnreadableError, decode, resolved, with_line_feeds
from oomdoctor.results.lint import LintResult, Unreadable

FRAMES: Final = 3000
"""Calls inside each other. A sum of 300 terms is a tree 300 deep, and each level takes a few calls; the default of 1000
is too few for it, while 3000 stay within the stack that C code has."""

_COLLECTED_AFTER: Final = 5_000_000
"""Characters of source after which to look for what is in cycles all the same; files take theirs apart when done."""

DEEP: Final = 60
"""Levels of a tree from which on running out of frames is the code's fault, not that of a rule."""


class Collector:
    """Frees what is left behind in cycles, seldom: looking through all objects takes longer than parsing most files."""

    def __init__(self) -> None:
        self._characters = 0

    def done(self, characters: int) -> None:
        """Note that a text was judged."""
        self._characters += characters
        if self._characters >= _COLLECTED_AFTER:
            self._characters = 0
            gc.collect()


@contextmanager
def interpreter_settings() -> Iterator[Collector]:
    """Turn the collector off and allow deeper calls; both are as before in the end."""
    enabled, frames, frozen = gc.isenabled(), sys.getrecursionlimit(), gc.get_freeze_count()
    gc.disable()
    if not frozen:
        gc.freeze()  # what is there already need not be looked through each time
    sys.setrecursionlimit(max(frames, FRAMES))
    try:
        yield Collector()
    finally:
        sys.setrecursionlimit(frames)
        if not frozen:
            gc.unfreeze()
        if enabled:
            gc.enable()


def is_deep(tree: ast.AST) -> bool:
    """Return whether a tree has more levels than people write; found without recursion."""
    level: list[ast.AST] = [tree]
    for _ in range(DEEP):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True


def check_module(module: Module, rules: Sequence[Rule]) -> list[tuple[Rule, Hit]]:
    """Look for each rule's mistake.

    Args:
        module: The file; its project, where it has one, is followed into.
        rules: Rules to check.

    Returns:
        Each rule with each place where it fires, once, ordered by line, column and code. A place may lie in another
        file of the project.
    """
    # A part of the mistake may stand in a file that this one calls.
    everything = calls_other_files(module)
    wanted = [rule for rule in rules if everything or any(word in module.text for word in rule.words)]
    if not wanted or not is_relevant(module):
        return []
    subject = Subject(module, runs_of(module))
    found: dict[tuple[object, ...], tuple[Rule, Hit]] = {}
    for rule in wanted:
        for hit in rule.check(subject):
            line, column = position_of_hit(hit)
            key = (str(hit.module.path), line, column, rule.code)
            if key not in found or _is_worse(hit, found[key][1]):
                found[key] = (rule, hit)
    return [found[key] for key in sorted(found, key=lambda key: (key[0] != str(module.path), *key))]


def position_of_hit(hit: Hit) -> tuple[int, int]:
    """Line from 1, and column in UTF-8 bytes from 0."""
    return getattr(hit.node, "lineno", 1), getattr(hit.node, "col_offset", 0)


def _is_worse(hit: Hit, other: Hit) -> bool:
    """Return whether a hit says more than another run's hit at the same place."""
    return (
        hit.severity is not None
        and other.severity is not None
        and list(type(hit.severity)).index(hit.severity) > list(type(other.severity)).index(other.severity)
    )


@dataclass(frozen=True, slots=True)
class FixableFile:
    """A file in which findings can be put right.

    Attributes:
        file: The file.
        digest: Tells whether it still holds what was linted.
        edits: Edits of each finding, which belong together, in the order of the findings.
    """

    file: File
    digest: bytes
    edits: tuple[tuple[Edit, ...], ...]


@dataclass(frozen=True, slots=True)
class LintRun:
    """The result of one run, and the fixes that can be made.

    Attributes:
        result: The findings.
        fixable: Files with findings that have edits, in the order of the files.
        inputs: Contents of the files.
    """

    result: LintResult
    fixable: tuple[FixableFile, ...]
    inputs: Inputs

    def read(self, fixable: FixableFile) -> tuple[bytes, Document]:
        """The bytes of a file, and the program in them, read again: none are kept from linting.

        Raises:
            UnreadableError: The file cannot be read any more, or its content has changed.
        """
        data = self.inputs.read(fixable.file)
        if digest(data) != fixable.digest:
            raise UnreadableError("changed while it was linted")
        # A run may have led into a file that has nothing to do with torch by itself.
        return data, parse_document(data, self.inputs.place(fixable.file).name) or decode(data)


def lint(
    paths: Sequence[str],
    settings: LintSettings,
    stdin: BinaryIO | None = None,
    *,
    overlay: Mapping[Path, bytes] | None = None,
    rules: Sequence[Rule] | None = None,
) -> LintRun:
    """Look for mistakes in files, in folders and in what standard input gives.

    Args:
        paths: Paths to lint; `-` is standard input.
        settings: Rules to use, and paths to skip.
        stdin: Standard input; the process's own where it is None.
        overlay: Contents that replace those on the disk, by resolved path.
        rules: Rules to select from; all rules where it is None.

    Raises:
        UsageError: A path does not exist, or a word of the settings names no rule.
    """
    if rules is None:
        from oomdoctor.lint.rules import ALL  # noqa: PLC0415 - what brings its own rules need not load these

        rules = ALL
    on = selected(rules, settings)
    ignores = [
        (Globs([glob], settings.root), matching(rules, words)) for glob, words in settings.per_file_ignores.items()
    ]
    found = discover(paths, settings)
    data = _standard_input(stdin, settings) if STANDARD_INPUT in paths else None
    inputs = Inputs(overlay or {}, data, settings.stdin_filename)
    with interpreter_settings() as collector:
        return _Pass(on, ignores, found, inputs, collector).run()


def _standard_input(stdin: BinaryIO | None, settings: LintSettings) -> bytes:
    """Read standard input, up to one byte more than is accepted."""
    return (stdin or sys.stdin.buffer).read(most_bytes(settings.stdin_filename or "") + 1)


@dataclass(slots=True)
class _Pass:
    """All files under the rules that are on, one after the other.

    Only one file's tree is held at a time, beside those that its project keeps for calls that lead into other files.
    """

    rules: tuple[Rule, ...]
    ignores: list[tuple[Globs, frozenset[str]]]
    found: Discovered
    inputs: Inputs
    collector: Collector
    collected: FindingCollector = field(default_factory=FindingCollector)
    counts: Counter[str] = field(default_factory=Counter)
    digests: dict[str, bytes] = field(default_factory=dict)
    roots: dict[Path, Path] = field(default_factory=dict)
    project: Project | None = None
    by_path: dict[Path, File] = field(default_factory=dict)

    def run(self) -> LintRun:
        for file in self.found.files:
            try:
                place = self.inputs.place(file)
                try:
                    document = self._read(file, place)
                    if document is not None:
                        self._check(file, place, document)
                except (UnreadableError, SyntaxError) as error:
                    self.found.unreadable.append(_unreadable(file, error))
            except Exception as error:
                error.add_note(f"while linting {file.shown}")
                raise
        return LintRun(self._result(), tuple(self._fixable()), self.inputs)

    def _read(self, file: File, place: Path) -> Document | None:
        data = self.inputs.read(file)
        self.digests[file.shown] = digest(data)
        document = parse_document(data, place.name)
        if document is None:
            # Whoever names a file asks about this one; of a folder, what has nothing to do with torch is passed over.
            if file.is_named and (anyway := parse_document(data, place.name, needs_torch=False)) is not None:
                self._note_broken(file, anyway)
                parse(anyway.text, place).close()
            self.counts["skipped"] += 1
        return document

    def _note_broken(self, file: File, document: Document) -> None:
        if isinstance(document, Notebook):
            self.found.unreadable += [_unreadable(file, error) for error in document.broken]

    def _check(self, file: File, place: Path, document: Document) -> None:
        self._note_broken(file, document)
        # The repository around a file, or the package; files come in order, so one at a time is enough.
        if place.parent not in self.roots:
            self.roots[place.parent] = repository_of(place.parent) or _import_root(place.parent)
        root = self.roots[place.parent]
        if self.project is None or self.project.root != root:
            self.project = Project(root, self.inputs.overlay)
        project = self.project
        text = with_line_feeds(document.text)
        module = project.take(place, text) or parse(text, place, project)
        self.counts["files"] += 1
        self.counts["lines"] += text.count("\n")
        try:
            self._collect(file, module, document)
        finally:
            module.close()  # its parts refer to each other, and nothing else would free them
            project.evict()
        self.collector.done(len(document.text))

    def _collect(self, file: File, module: Module, document: Document) -> None:
        views: dict[Module, FileView | None] = {}
        for rule, hit in _checked(module, self.rules):
            if hit.module not in views:
                own = hit.module is module
                views[hit.module] = self._view(file, module, document) if own else self._other(hit.module)
            view = views[hit.module]
            if view is not None:
                self.collected.add(view, rule, hit)

    def _other(self, module: Module) -> FileView | None:
        """Another file of the project that a run led into; None where it is not among those that are linted."""
        if not self.by_path:
            self.by_path.update((resolved(file.path), file) for file in self.found.files if file.path is not None)
        file = self.by_path.get(resolved(module.path))
        return None if file is None else self._view(file, module, None)

    def _view(self, file: File, module: Module, document: Document | None) -> FileView:
        place = self.inputs.place(file)
        ignored = (codes for globs, codes in self.ignores if globs.fit(place))
        return FileView.of(file, module, document, frozenset().union(*ignored))

    def _result(self) -> LintResult:
        return LintResult(
            findings=self.collected.ordered(),
            unreadable=tuple(sorted(self.found.unreadable, key=lambda one: (one.path, one.cell or 0, one.line or 0))),
            files=self.counts["files"],
            skipped_files=self.counts["skipped"],
            lines=self.counts["lines"],
            suppressed=len(self.collected.silenced - self.collected.findings.keys()),
            fixed=0,
            rules=tuple(rule.code for rule in self.rules),
        )

    def _fixable(self) -> Iterator[FixableFile]:
        by_path: dict[str, list[tuple[Edit, ...]]] = {}
        for key in sorted(self.collected.findings):
            finding, edits = self.collected.findings[key]
            if edits:
                by_path.setdefault(finding.path, []).append(edits)
        for file in self.found.files:
            if file.shown in by_path:
                yield FixableFile(file, self.digests[file.shown], tuple(by_path.pop(file.shown)))


def _import_root(folder: Path) -> Path:
    """The folder from which a package is imported: the first one up that is no package itself."""
    while (folder / "__init__.py").is_file() and folder.parent != folder:
        folder = folder.parent
    return folder


def _checked(module: Module, rules: Sequence[Rule]) -> list[tuple[Rule, Hit]]:
    """Return the hits of all rules in a module.

    Raises:
        UnreadableError: The code is nested too deeply to be followed.
    """
    try:
        return check_module(module, rules)
    except RecursionError:
        if not is_deep(module.tree):
            raise  # a rule that does not end, which is a bug
        raise UnreadableError("nested too deeply to be followed") from None


def _unreadable(file: File, error: UnreadableError | SyntaxError) -> Unreadable:
    cell = error.cell if isinstance(error, BrokenCellError) else None
    if isinstance(error, UnreadableError):
        return Unreadable(file.shown, error.line, error.column, _as_message(error.problem), cell)
    return Unreadable(file.shown, error.lineno, error.offset, _as_message(error.msg), cell)


def _as_message(problem: str) -> str:
    """Return Python's message in the form of all messages: beginning in lower case, without a full stop."""
    is_word = problem[1:2].islower()
    return (problem[:1].lower() if is_word else problem[:1]) + problem[1:].removesuffix(".")
