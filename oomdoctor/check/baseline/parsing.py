"""The JSON subset of a baseline file, with the line of every value, and its objects read strictly.

A baseline holds objects, strings, whole numbers and null. `json` gives no lines of values, and of two equal keys it
keeps the last without a word; after a merge that went wrong both matter.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType


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


_LARGEST: Final = 2**63 - 1
_KINDS: Final = {dict: "an object", str: "a text", int: "a number", type(None): "`null`"}


class Table:
    """One object. As a context it sees at its end that every member was asked for.

    Args:
        node: The object.
        name: What to call it in messages.

    Raises:
        ParsingError: It is no object.
    """

    def __init__(self, node: Node, name: str) -> None:
        if not isinstance(node.value, dict):
            raise ParsingError(f"`{name}` is {_kind(node)}, not an object", node.line)
        self._members = node.value
        self._line = node.line
        self._name = name
        self._asked: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.end()

    def end(self) -> None:
        """See that every member was asked for.

        Raises:
            ParsingError: One was not.
        """
        for key, node in self._members.items():
            if key not in self._asked:
                raise ParsingError(f"unknown key `{key}` in `{self._name}`", node.line)

    def key(self, key: str, known: Iterable[str]) -> str:
        """Return a key that has to be a known one.

        Raises:
            ParsingError: It is not.
        """
        if key not in known:
            raise ParsingError(f"unknown key `{key}` in `{self._name}`", self._members[key].line)
        return key

    def table(self, key: str) -> Table:
        """Return an object.

        Raises:
            ParsingError: It is missing or something else.
        """
        return Table(self._member(key), key)

    def tables(self) -> dict[str, Table]:
        """Return all members, each an object.

        Raises:
            ParsingError: One is something else.
        """
        return {key: self.table(key) for key in self._members}

    def optional_table(self, key: str) -> Table | None:
        """Return an object or null.

        Raises:
            ParsingError: It is missing or something else.
        """
        return None if self._member(key).value is None else self.table(key)

    def integer(self, key: str) -> int:
        """Return a whole number of at least 0.

        Raises:
            ParsingError: It is missing or something else.
        """
        node = self._member(key)
        if not isinstance(node.value, int):
            raise ParsingError(f"`{key}` is {_kind(node)}, not a whole number", node.line)
        if not 0 <= node.value <= _LARGEST:
            raise ParsingError(f"`{key}` is not between 0 and 2**63 - 1", node.line)
        return node.value

    def optional_integer(self, key: str) -> int | None:
        """Return a whole number of at least 0, or null.

        Raises:
            ParsingError: It is missing or something else.
        """
        return None if self._member(key).value is None else self.integer(key)

    def has(self, key: str) -> bool:
        """Return whether there is such a member at all."""
        return key in self._members

    def integers(self) -> dict[str, int]:
        """Return all members, each a whole number of at least 0.

        Raises:
            ParsingError: One is something else.
        """
        return {key: self.integer(key) for key in self._members}

    def text(self, key: str) -> str:
        """Return a text.

        Raises:
            ParsingError: It is missing or something else.
        """
        node = self._member(key)
        if not isinstance(node.value, str):
            raise ParsingError(f"`{key}` is {_kind(node)}, not a text", node.line)
        return node.value

    def optional_text(self, key: str) -> str | None:
        """Return a text or null.

        Raises:
            ParsingError: It is missing or something else.
        """
        return None if self._member(key).value is None else self.text(key)

    def choice(self, key: str, known: tuple[str, ...]) -> str:
        """Return a text that has to be one of several.

        Raises:
            ParsingError: It is missing or something else.
        """
        text = self.text(key)
        if text not in known:
            listed = ", ".join(f"`{one}`" for one in known)
            raise ParsingError(f"`{key}` is `{text}`, not one of {listed}", self._members[key].line)
        return text

    def _member(self, key: str) -> Node:
        self._asked.add(key)
        if key not in self._members:
            raise ParsingError(f"`{key}` is missing in `{self._name}`", self._line)
        return self._members[key]


def _kind(node: Node) -> str:
    return _KINDS[type(node.value)]
