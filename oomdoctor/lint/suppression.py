"""`# noqa` comments, read as ruff reads them, and `# oomdoctor: noqa` for a whole file."""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.positions import LINE_END, Lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.rule import Rule

_LINE: Final = re.compile(r"#\s*noqa(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_FILE: Final = re.compile(r"#+\s*oomdoctor\s*:\s*noqa(?P<rest>.*)", re.DOTALL)
_LIST: Final = re.compile(r"\s*:(?P<words>.*)", re.DOTALL)
_WORD: Final = re.compile(r"[\s,]*(?P<word>(?:(?:[A-Z]+|oom)[0-9]+)+|[a-z]+(?:-[a-z0-9]+)+)(?=[\s,#]|$)")
_CODE: Final = re.compile(r"(?:[A-Z]+|oom)[0-9]+")
"""Our own may be in lower case, as on the command line; ruff would not take its own so."""
_SEPARATE: Final = re.compile(r"\s|$|#")

EVERY: Final = frozenset({"*"})
"""All rules."""


@dataclass(frozen=True, slots=True)
class Range:
    """Lines that belong together, from 1: a string over several lines, or what a backslash joins."""

    first: int
    last: int


class Suppressions:
    """What the comments of one file silence.

    Args:
        text: The file, as it is parsed.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._any = "noqa" in text.lower()

    def silences(self, rule: Rule, line: int, end_line: int) -> bool:
        """Whether a comment silences a rule for what goes from one line to another.

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
    """Whether a token is where an f-string or a template begins or ends."""
    return tokenize.tok_name[token.type].endswith(tuple(f"STRING_{edge}" for edge in edges or ("START", "END")))


def _of_line(comment: str) -> frozenset[str]:
    """The rules that a comment silences on its line; `EVERY` for all, empty for none."""
    found = _LINE.search(comment)
    return _words(found["rest"]) if found else frozenset()


def _words(rest: str) -> frozenset[str]:
    """What follows `noqa`: nothing or text after a space, for all rules; a colon and a list; else it means nothing."""
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
    """What looks like a comment, in a text that does not tokenize."""
    for number, line in enumerate(LINE_END.split(text), 1):
        column = line.find("#")
        if column >= 0:
            place = (number, column)
            yield tokenize.TokenInfo(tokenize.COMMENT, line[column:], place, (number, len(line)), line)
