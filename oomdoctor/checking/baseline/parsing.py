"""The little JSON that a baseline file is made of, with the line of every value, so that a message can point there.

A baseline holds objects, strings, whole numbers and null. `json` tells no lines of values, and of two equal keys it
keeps the last without a word; after a merge that went wrong both matter.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

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
        """The next value with all that is in it."""
        token = self._next("a text, a whole number, an object or `null`")
        line = self.line
        if token["string"] is not None:
            return Node(line, json.loads(token["string"]))
        if token["number"] is not None:
            return Node(line, self._number(token["number"]))
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
            key, line = self._key(token), self.line
            if key in found:
                raise ParsingError(f"`{key}` stands there again, after line {found[key].line}", line)
            self._sign(":")
            found[key] = self.value(depth + 1)
            if self._sign(",}") == "}":
                break
            token = self._next("a key")
        return found

    def _key(self, token: re.Match[str]) -> str:
        if token["string"] is None:
            raise ParsingError("a key is missing", self.line)
        return str(json.loads(token["string"]))

    def _number(self, digits: str) -> int:
        # A number of any length would take Python long to read, and longer than this none is meant.
        if len(digits) > _LONGEST_NUMBER:
            raise ParsingError("a number has too many digits", self.line)
        return int(digits)

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
