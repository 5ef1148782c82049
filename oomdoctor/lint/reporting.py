"""From a rule's hits to findings: positions, excerpts, `# noqa` comments and duplicates."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from oomdoctor.lint.discovery import File
from oomdoctor.lint.module import Function, Module
from oomdoctor.lint.notebooks import Document
from oomdoctor.lint.rule import Hit, Rule
from oomdoctor.lint.source import LINE_END, Edit, Lines, Script
from oomdoctor.results.lint import Finding, Severity

Extent = tuple[tuple[int, int], tuple[int, int]]
"""Start and end, each as a line from 1 and a column in UTF-8 bytes from 0."""


def extent(node: ast.AST) -> Extent:
    """Return the part of a node to point at: an expression whole, and only the head of a compound statement."""
    start = (getattr(node, "lineno", 1), getattr(node, "col_offset", 0))
    body = getattr(node, "body", None)
    head = _end(node) if (isinstance(body, list) and isinstance(node, ast.stmt | ast.ExceptHandler)) else None
    end = head or (getattr(node, "end_lineno", None) or start[0], getattr(node, "end_col_offset", None) or start[1])
    return start, max(start, end)


def qualified_name(function: Function) -> str:
    """A function's name with those of the class and the function that it is defined in."""
    names = [function.name, function.class_.name] if function.class_ else [function.name]
    if function.parent is not None:
        names.append(qualified_name(function.parent))
    return ".".join(reversed(names))


def _end(node: ast.AST) -> tuple[int, int]:
    """Return the end of a statement's head: of its last expression, else of its first word and its name."""
    ends = [(child.end_lineno or child.lineno, child.end_col_offset or 0) for child in _head(node)]
    name = getattr(node, "name", None)
    words = _WORDS.get(type(node), "") + (f" {name}" if name else "")
    word = (getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + len(words.encode()))
    return max([word, *ends])


def _head(node: ast.AST) -> Iterator[ast.expr | ast.arg]:
    for name, value in ast.iter_fields(node):
        if name in _BODIES:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.withitem):
                yield child.optional_vars or child.context_expr
            elif isinstance(child, ast.arguments):
                yield from (*child.posonlyargs, *child.args, *child.kwonlyargs)
            elif isinstance(child, ast.expr):
                yield child


_BODIES = frozenset({"body", "orelse", "finalbody", "handlers", "decorator_list", "type_params"})
_WORDS = {
    ast.Try: "try",
    ast.TryStar: "try",
    ast.ExceptHandler: "except",
    ast.ClassDef: "class",
    ast.FunctionDef: "def",
}


_LINE: Final = re.compile(r"#\s*noqa(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_FILE: Final = re.compile(r"#+\s*oomdoctor\s*:\s*noqa(?P<rest>.*)", re.DOTALL)
_LIST: Final = re.compile(r"\s*:(?P<words>.*)", re.DOTALL)
_WORD: Final = re.compile(r"[\s,]*(?P<word>(?:(?:[A-Z]+|oom)[0-9]+)+|[a-z]+(?:-[a-z0-9]+)+)(?=[\s,#]|$)")
_CODE: Final = re.compile(r"(?:[A-Z]+|oom)[0-9]+")
"""A rule's code; ours may be in lower case, as on the command line, which ruff does not accept of its own."""
_SEPARATE: Final = re.compile(r"\s|$|#")

EVERY: Final = frozenset({"*"})
"""All rules."""


@dataclass(frozen=True, slots=True)
class Range:
    """Lines that belong together, from 1: a string over several lines, or what a backslash joins."""

    first: int
    last: int


class Suppressions:
    """The `# noqa` comments of one file.

    Args:
        text: The file, as it is parsed.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._any = "noqa" in text.lower()

    def silences(self, rule: Rule, line: int, end_line: int) -> bool:
        """Return whether a comment silences a rule for the lines from one to another.

        The comment stands where that begins or where it ends, or at the end of the string or the joined lines in which
        one of those lies.
        """
        if not self._any:
            return False
        return self._names(self._whole, rule) or any(
            self._names(self._by_line.get(number, frozenset()), rule)
            for first in {line, end_line}
            for number in {first, self._last(first)}
        )

    @staticmethod
    def _names(words: frozenset[str], rule: Rule) -> bool:
        return bool(words & {*EVERY, rule.code, rule.name})

    def _last(self, line: int) -> int:
        return next((found.last for found in self._ranges if found.first <= line <= found.last), line)

    @cached_property
    def _tokens(self) -> tuple[tokenize.TokenInfo, ...]:
        """Comments and strings over several lines; nothing where the text has none that can be told."""
        wanted = []
        # A line end alone is one for the parser and none for `tokenize`.
        lines = io.StringIO(LINE_END.sub("\n", self._text)).readline
        try:
            for token in tokenize.generate_tokens(lines):
                if token.type == tokenize.COMMENT or token.start[0] != token.end[0] or _is_edge(token):
                    wanted.append(token)  # noqa: PERF401 - what came before an error is kept
        except (tokenize.TokenError, SyntaxError, ValueError, RecursionError):
            return tuple(_comments_by_line(self._text))
        return tuple(wanted)

    @cached_property
    def _by_line(self) -> dict[int, frozenset[str]]:
        found = {token.start[0]: _of_line(token.string) for token in self._tokens if token.type == tokenize.COMMENT}
        return {line: words for line, words in found.items() if words}

    @cached_property
    def _whole(self) -> frozenset[str]:
        words: frozenset[str] = frozenset()
        for token in self._tokens:
            alone = token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
            found = _FILE.match(token.string) if alone else None
            words |= _words(found["rest"]) if found else frozenset()
        return words

    @cached_property
    def _ranges(self) -> tuple[Range, ...]:
        return (*self._strings(), *self._joined_lines())

    def _strings(self) -> Iterator[Range]:
        begun: list[int] = []  # of f-strings, which Python 3.12 takes apart
        for token in self._tokens:
            if token.type == tokenize.STRING:
                yield Range(token.start[0], token.end[0])
            elif _is_edge(token, "START"):
                begun.append(token.start[0])
            elif _is_edge(token, "END") and begun:
                yield Range(begun.pop(), token.end[0])

    def _joined_lines(self) -> Iterator[Range]:
        lines = Lines(self._text)
        number = 1
        while number <= len(lines):
            last = number
            while lines.line(last).endswith("\\"):
                last += 1
            if last > number:
                yield Range(number, last)
            number = last + 1


def _is_edge(token: tokenize.TokenInfo, *edges: str) -> bool:
    """Return whether a token is the beginning or the end of an f-string or a template."""
    return tokenize.tok_name[token.type].endswith(tuple(f"STRING_{edge}" for edge in edges or ("START", "END")))


def _of_line(comment: str) -> frozenset[str]:
    """The rules that a comment silences on its line; `EVERY` for all, empty for none."""
    found = _LINE.search(comment)
    return _words(found["rest"]) if found else frozenset()


def _words(rest: str) -> frozenset[str]:
    """Return the rules that the text after `noqa` names: all for nothing, or for a space; a list after a colon."""
    if found := _LIST.match(rest):
        return frozenset(_listed(found["words"]))
    return EVERY if _SEPARATE.match(rest) else frozenset()


def _listed(words: str) -> Iterator[str]:
    """The words at the beginning that are codes or names; what follows them is a reason."""
    at = 0
    while found := _WORD.match(words, at):
        codes = _CODE.findall(found["word"])
        yield from [code.upper() for code in codes] or [found["word"]]
        at = found.end()


def _comments_by_line(text: str) -> Iterator[tokenize.TokenInfo]:
    """Yield the apparent comments of a text that does not tokenize."""
    for number, line in enumerate(LINE_END.split(text), 1):
        column = line.find("#")
        if column >= 0:
            place = (number, column)
            yield tokenize.TokenInfo(tokenize.COMMENT, line[column:], place, (number, len(line)), line)


LONGEST_SOURCE: Final = 2000
"""Characters of an endless line that are kept for each finding in it."""

_RANKS: Final = {severity: rank for rank, severity in enumerate(Severity)}


@dataclass(frozen=True, slots=True)
class FileView:
    """A file with the tables that turn its hits into findings.

    Attributes:
        file: The file.
        module: Its code.
        document: Script or notebook; it names lines by cell.
        lines: Its text by lines, as it is parsed.
        shown: The same as people see it.
        suppressions: The `# noqa` comments of the file.
        ignored: Codes of the rules that the configuration silences in it.
    """

    file: File
    module: Module
    document: Document
    lines: Lines
    shown: Lines
    suppressions: Suppressions
    ignored: frozenset[str] = frozenset()

    @classmethod
    def of(cls, file: File, module: Module, document: Document | None, ignored: frozenset[str]) -> FileView:
        """A view of a file; `document` is None for one that was parsed on the way from another."""
        document = document or Script(module.text)
        return cls(
            file, module, document, Lines(module.text), Lines(document.shown()), Suppressions(module.text), ignored
        )

    def finding(self, rule: Rule, hit: Hit) -> Finding:
        """Return the finding of a hit."""
        start, end = extent(hit.node)
        cell, line = self.document.place(start[0])
        function = self.module.function_at(hit.node)
        return Finding(
            code=rule.code,
            name=rule.name,
            path=self.file.shown,
            line=line,
            column=self.lines.column(*start) + 1,
            end_line=self.document.place(end[0])[1],
            end_column=self.lines.column(*end) + 1,
            severity=hit.severity or rule.severity,
            concern=rule.concern,
            message=hit.message,
            help=hit.help,
            function=None if function is None else qualified_name(function),
            source=_source(self.shown.line(start[0]), self.lines.column(*start)),
            cell=cell,
            fixable=bool(hit.edits),
        )

    def silences(self, rule: Rule, hit: Hit) -> bool:
        """Return whether the configuration or a comment silences a rule at a hit."""
        start, end = extent(hit.node)
        return rule.code in self.ignored or self.suppressions.silences(rule, start[0], end[0])


Key = tuple[str, int, int, int, str]


@dataclass(slots=True)
class FindingCollector:
    """The findings so far.

    Attributes:
        findings: Findings with their edits, by position and rule: of several runs' findings the worst.
        silenced: The places where a finding was silenced.
    """

    findings: dict[Key, tuple[Finding, tuple[Edit, ...]]] = field(default_factory=dict)
    silenced: set[Key] = field(default_factory=set)

    def add(self, view: FileView, rule: Rule, hit: Hit) -> None:
        """Note a place where a rule fires."""
        finding = view.finding(rule, hit)
        key = (finding.path, finding.cell or 0, finding.line, finding.column, finding.code)
        if view.silences(rule, hit):
            self.silenced.add(key)
        elif key not in self.findings or _RANKS[finding.severity] > _RANKS[self.findings[key][0].severity]:
            self.findings[key] = (finding, hit.edits)

    def ordered(self) -> tuple[Finding, ...]:
        """Findings by path, cell, line, column and code."""
        return tuple(self.findings[key][0] for key in sorted(self.findings))


def _source(line: str, column: int) -> str:
    """Return the beginning of a line, from which columns count; empty where the finding lies behind that."""
    return line[:LONGEST_SOURCE] if column < LONGEST_SOURCE else ""
