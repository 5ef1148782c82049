"""Imports point one way: from what people start, through what answers them, down to what everybody shares."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from running import ROOT

PACKAGE = ROOT / "oomdoctor"
TIERS = {
    **dict.fromkeys(("cli", "api", "pytest_plugin"), 5),
    "checking": 4,
    **dict.fromkeys(("probing", "diagnosis", "lint", "reports"), 3),
    **dict.fromkeys(("running", "tracing"), 2),
    **dict.fromkeys(("oom", "targets", "devices", "examples", "schemas", "configuration", "allocator"), 1),
}
"""Tier by first name below the package; modules that lie in the package itself are the lowest, 0."""


def _imports(path: Path) -> set[str]:
    """Modules of the package that are imported when the code runs, at whatever depth."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    found = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node not in typing_only and node.module and node.level == 0
    }
    return {module for module in found if module.startswith("oomdoctor.")}


def _room(dotted: str) -> str:
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in TIERS else ""


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    """No module imports from a tier above its own, or from another room of its own tier."""
    own = _room("oomdoctor." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts))
    if path in (PACKAGE / "__main__.py", PACKAGE / "__init__.py"):
        return  # the entry points of `python -m oomdoctor` and `import oomdoctor` are rooms by another name
    for module in _imports(path):
        other = _room(module)
        below = TIERS.get(other, 0) < TIERS.get(own, 0)
        assert below or own == other, f"{path.relative_to(ROOT)} imports {module}"
