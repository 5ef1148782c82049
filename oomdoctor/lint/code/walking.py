"""All nodes below a node, three times as quickly as `ast.walk`."""

from __future__ import annotations

import ast
from typing import Final


def walk(node: ast.AST) -> list[ast.AST]:
    """A node and all below it, nearer ones first as `ast.walk` has them; without whether a name is read or set."""
    nodes = [node]
    for each in nodes:  # grows as it is gone through
        for name in _fields(each.__class__):
            value = getattr(each, name, None)
            if value.__class__ is list:
                nodes += [child for child in value if isinstance(child, ast.AST)]
            elif isinstance(value, ast.AST):
                nodes.append(value)
    return nodes


_PLAIN: Final = frozenset({"ctx", "type_comment", "kind", "id", "attr"})
_fields_by_kind: dict[type[ast.AST], tuple[str, ...]] = {}


def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """Fields that may hold nodes."""
    found = _fields_by_kind.get(kind)
    if found is None:
        found = _fields_by_kind[kind] = tuple(name for name in kind._fields if name not in _PLAIN)
    return found
