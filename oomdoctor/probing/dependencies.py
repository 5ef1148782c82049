"""What an answer depended on: what the target looked at on disk, and variables of the environment that it asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL_VARIABLES: Final = "*"
"""Among the names of variables: the whole environment was read, for example to be copied."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What the target's code used, as the worker saw it from before the target was imported.

    Attributes:
        seen: Each thing that was looked at, such as `content /home/a/model.py`, and what was there when it was looked
            at first; `oomdoctor.probing.looking` looks again.
        variables: Names of environment variables that were read, sorted; `*` where all were.
        working_directory: The worker's, where a relative path was used or it was asked for; else None.
        unseen: Why something else may have been used that nobody saw, such as a program that was started; an answer
            with any of these must not be used again.
    """

    seen: dict[str, str] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    working_directory: str | None = None
    unseen: tuple[str, ...] = ()

    def __or__(self, other: Dependencies) -> Dependencies:
        """What either used; what the two saw differently was changed between them."""
        changed = [
            f"`{key}` changed meanwhile" for key, state in other.seen.items() if self.seen.get(key, state) != state
        ]
        return Dependencies(
            seen={**other.seen, **self.seen},
            variables=tuple(sorted({*self.variables, *other.variables})),
            working_directory=self.working_directory or other.working_directory,
            unseen=tuple(dict.fromkeys((*self.unseen, *other.unseen, *changed))),
        )


def line_of(news: Dependencies) -> bytes:
    """One line of an account that several processes write; the general way to serialise takes too long to import."""
    # As `asdict` would have it, which takes ten times as long, thousands of times.
    fields = {
        "seen": news.seen,
        "variables": news.variables,
        "working_directory": news.working_directory,
        "unseen": news.unseen,
    }
    return json.dumps(fields).encode() + b"\n"


def read_lines(account: bytes) -> Iterator[Dependencies]:
    """What stands in an account; a line that is none, such as one whose writer was ended, says so."""
    for line in account.splitlines():
        try:
            found = json.loads(line)
            yield Dependencies(
                dict(found["seen"]),
                tuple(found["variables"]),
                found["working_directory"],
                tuple(found["unseen"]),
            )
        except (ValueError, TypeError, KeyError):
            yield Dependencies(unseen=("a process was ended while it said what it used",))
