"""Patterns of paths, as `.gitignore` has them and as git matches them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE: Final = re.compile(
    r"(?P<any_folders>(?:(?<=/)|^)\*\*/)"
    r"|(?P<all_below>(?<=/)\*\*$)"
    r"|(?P<stars>\*+)"
    r"|(?P<one>\?)"
    r"|(?P<set>\[(?P<turned>[!^])?(?P<members>\]?+(?:\[:\w+:\]|\\.|[^]\\])*)\])"
    r"|\\(?P<literal>.)"
    r"|(?P<broken>[\[\\])"
    r"|(?P<plain>.)",
    re.DOTALL,
)
_MEMBER: Final = re.compile(r"\[:(?P<class>\w+):\]|\\?(?P<first>.)(?:-\\?(?P<last>.))?", re.DOTALL)
_TRAILING: Final = re.compile(r"(?<!\\)[ ]+$|\r$")
_CLASSES: Final = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f", "digit": "0-9",
    "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~", "space": r"\s", "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wildcard:
    """One pattern.

    Attributes:
        regex: What it matches whole: a path relative to the pattern's folder, without a slash at either end.
        ignores: False where it begins with `!` and takes back what earlier ones say.
        folders_only: Whether it ends with `/`.
    """

    regex: re.Pattern[str]
    ignores: bool
    folders_only: bool

    def fits(self, name: str, *, is_dir: bool) -> bool:
        """Whether it means this path itself, not one that this lies in."""
        return (is_dir or not self.folders_only) and self.regex.fullmatch(name) is not None


def wildcard(line: str) -> Wildcard | None:
    """The pattern that a line holds; None for a comment, for an empty line and for what git never matches."""
    line = _TRAILING.sub("", line)
    if line.startswith("#"):
        return None
    ignores, body = not line.startswith("!"), line.removeprefix("!")
    folders_only, body = body.endswith("/"), body.removesuffix("/")
    if not body:
        return None
    # A slash at the beginning or in the middle ties the pattern to its folder; without one any depth is meant.
    head = "" if "/" in body else "(?:.*/)?"
    try:
        regex = re.compile(head + "".join(_translated(body.removeprefix("/"))), re.DOTALL)
    except (re.error, ValueError):
        return None
    return Wildcard(regex, ignores, folders_only)


def _translated(body: str) -> Iterator[str]:
    """The parts of a regular expression.

    Raises:
        ValueError: A bracket or a backslash has nothing after it.
    """
    for piece in _PIECE.finditer(body):
        if piece.lastgroup == "broken" or piece["broken"]:
            raise ValueError(body)
        if piece["members"] is not None:
            yield _set(piece["members"], turned=bool(piece["turned"]))
        elif piece["plain"] or piece["literal"]:
            yield re.escape(piece["plain"] or piece["literal"])
        else:
            yield _WILD[piece.lastgroup or ""]


_WILD: Final = {"any_folders": "(?:.*/)?", "all_below": ".+", "stars": "[^/]*", "one": "[^/]"}


def _set(members: str, *, turned: bool) -> str:
    inside = "".join(_member(member) for member in _MEMBER.finditer(members))
    return f"[^/{inside}]" if turned else f"(?!/)[{inside}]"


def _member(member: re.Match[str]) -> str:
    """A part of a set.

    Raises:
        ValueError: It is a class of characters that there is not.
    """
    if member["class"]:
        if member["class"] not in _CLASSES:
            raise ValueError(member["class"])
        return _CLASSES[member["class"]]
    first, last = member["first"], member["last"] or member["first"]
    # What begins a range is in the set for git even where the range is the wrong way round.
    span = f"-{re.escape(last)}" if first < last else ""
    return re.escape(first) + span
