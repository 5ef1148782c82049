"""Which variables of the environment are read while modules are imported.

A process whose environment differs in another one imports the same modules to the same effect.
"""

from __future__ import annotations

import os

_Plain = type(os.environ)


class Reads:
    """Notes the names that Python code asks `os.environ` for, between `begin` and `end`.

    Attributes:
        names: What has been read, set or deleted by its name.
        written: What has been set or deleted, or given a value for where it has none.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.written: set[str] = set()

    def begin(self) -> None:
        """Listen."""
        names, written = self.names, self.written

        class Noting(_Plain):  # type: ignore[valid-type,misc]
            def __getitem__(self, key: str) -> str:
                if isinstance(key, str):
                    names.add(key)
                value: str = super().__getitem__(key)
                return value

            def __setitem__(self, key: str, value: str) -> None:
                written.add(key)
                super().__setitem__(key, value)

            def __delitem__(self, key: str) -> None:
                written.add(key)
                super().__delitem__(key)

            def setdefault(self, key: str, value: str) -> str:
                written.add(key)
                result: str = super().setdefault(key, value)
                return result

        os.environ.__class__ = Noting

    def end(self) -> None:
        """Leave `os.environ` as it was."""
        os.environ.__class__ = _Plain

    def changes(self) -> dict[str, str | None]:
        """What the imports did to the environment: names with their value, None for what they took away."""
        return {name: os.environ.get(name) for name in self.written}
