"""What imported names stand for: `nn.Linear` is `torch.nn.Linear`, however a file imports it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Names:
    """The names that a file imports, at whatever depth; a name that is imported twice has its last meaning.

    Attributes:
        modules: Qualified names of what is imported that may be modules.
    """

    def __init__(self, imports: Iterable[ast.Import | ast.ImportFrom] = ()) -> None:
        self._meaning: dict[str, str] = {}
        self.modules: set[str] = set()
        for node in imports:
            if isinstance(node, ast.Import):
                self._add_import(node)
            else:
                self._add_import_from(node)

    def __contains__(self, name: str) -> bool:
        return name in self._meaning

    def items(self) -> Iterable[tuple[str, str]]:
        """Each imported name with what it stands for."""
        return self._meaning.items()

    def _add_import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.modules.add(alias.name)
            if alias.asname is not None:
                self._meaning[alias.asname] = alias.name
            else:
                first = alias.name.partition(".")[0]
                self._meaning[first] = first

    def _add_import_from(self, node: ast.ImportFrom) -> None:
        source = "." * node.level + (node.module or "")
        between = "" if source.endswith(".") or not source else "."
        for alias in node.names:
            meaning = f"{source}{between}{alias.name}"
            self._meaning[alias.asname or alias.name] = meaning
            if alias.name.islower():
                self.modules.add(meaning)

    def qualified(self, node: ast.expr) -> str | None:
        """Qualified name of a dotted expression; a relative import keeps its leading dots.

        Returns:
            Such as `torch.optim.AdamW` or `.engine.train`; None where the first name is not imported.
        """
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        meaning = self._meaning.get(node.id)
        if meaning is None:
            return None
        return ".".join((meaning, *reversed(parts))) if parts else meaning
