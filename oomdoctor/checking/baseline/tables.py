"""Objects of a baseline file, read strictly: what is missing, unknown or of another kind is an error with its line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from oomdoctor.checking.baseline.parsing import Node, ParsingError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

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
        """A key that has to be a known one.

        Raises:
            ParsingError: It is not.
        """
        if key not in known:
            raise ParsingError(f"unknown key `{key}` in `{self._name}`", self._members[key].line)
        return key

    def table(self, key: str) -> Table:
        """An object.

        Raises:
            ParsingError: It is missing or something else.
        """
        return Table(self._member(key), key)

    def tables(self) -> dict[str, Table]:
        """All members, each an object.

        Raises:
            ParsingError: One is something else.
        """
        return {key: self.table(key) for key in self._members}

    def optional_table(self, key: str) -> Table | None:
        """An object or null.

        Raises:
            ParsingError: It is missing or something else.
        """
        return None if self._member(key).value is None else self.table(key)

    def integer(self, key: str) -> int:
        """A whole number of at least 0.

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
        """A whole number of at least 0, or null.

        Raises:
            ParsingError: It is missing or something else.
        """
        return None if self._member(key).value is None else self.integer(key)

    def has(self, key: str) -> bool:
        """Whether there is such a member at all."""
        return key in self._members

    def integers(self) -> dict[str, int]:
        """All members, each a whole number of at least 0.

        Raises:
            ParsingError: One is something else.
        """
        return {key: self.integer(key) for key in self._members}

    def text(self, key: str) -> str:
        """A text.

        Raises:
            ParsingError: It is missing or something else.
        """
        node = self._member(key)
        if not isinstance(node.value, str):
            raise ParsingError(f"`{key}` is {_kind(node)}, not a text", node.line)
        return node.value

    def optional_text(self, key: str) -> str | None:
        """A text or null.

        Raises:
            ParsingError: It is missing or something else.
        """
        return None if self._member(key).value is None else self.text(key)

    def choice(self, key: str, known: tuple[str, ...]) -> str:
        """One of several texts.

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
