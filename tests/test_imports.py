"""Imports point one way: from what people start, through what answers them, down to what everybody shares."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from running import ROOT

PACKAGE = ROOT / "oomdoctor"
TIERS = {
    **dict.fromkeys(("cli", "api", "pytest_plugin"), 10),
    **dict.fromkeys(("check", "integrations", "prescription"), 9),
    **dict.fromkeys(("multi_card.buckets", "multi_card.pool", "multi_card.worker_server"), 8),
    **dict.fromkeys(("trial.probe", "trial.warm_start", "trial.worker", "verification.run", "verification.command"), 7),
    **dict.fromkeys(("command", "multi_card", "verification"), 6),
    "trial": 5,
    **dict.fromkeys(("diagnose", "lint", "report", "search"), 4),
    "agent.remedies": 4,  # loads `remedies` in a trial that has some; the rest of the agent loads nothing of oomdoctor
    **dict.fromkeys(("remedies", "request", "run"), 3),
    **dict.fromkeys(("engines", "oom", "target", "examples", "schemas", "modes"), 2),
    **dict.fromkeys(("agent", "config", "results"), 1),
}
"""Tier by the longest name below the package that holds the module; modules that none holds are the lowest, 0."""


def _dotted(path: Path) -> str:
    """The module's name, with its package's for an `__init__`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PACKAGES = {_dotted(path) for path in PACKAGE.rglob("__init__.py")}
MODULES = {_dotted(path) for path in PACKAGE.rglob("*.py")} - {"oomdoctor"}


def _absolute(node: ast.ImportFrom, path: Path) -> str:
    """The module that an import names, also where it does so from its own place."""
    if node.level == 0:
        return node.module or ""
    package = _dotted(path).split(".") if path.name == "__init__.py" else _dotted(path).split(".")[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def _imports(path: Path) -> set[str]:
    """Modules of the package that are imported when the code runs, at whatever depth, or named in a text.

    A text that names a package may be something else: JUnit's class `oomdoctor.check` is a command.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    found = {
        f"{module}.{alias.name}" if f"{module}.{alias.name}" in MODULES else module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node not in typing_only
        for module in (_absolute(node, path),)
        for alias in node.names
    }
    named = {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    } & (MODULES - PACKAGES)
    return {module for module in found | named if module.startswith("oomdoctor.")}


def _home(dotted: str) -> str:
    """The longest name of the table that holds the module."""
    parts = dotted.split(".")[1:]
    return next((name for end in (2, 1) if (name := ".".join(parts[:end])) in TIERS), "")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    """No module imports from a tier above its own, or from another folder of its own tier."""
    if path in (PACKAGE / "__main__.py", PACKAGE / "__init__.py"):
        return  # the entry points of `python -m oomdoctor` and `import oomdoctor` are folders by another name
    own = _home(_dotted(path))
    for module in _imports(path):
        other = _home(module)
        below = TIERS.get(other, 0) < TIERS.get(own, 0)
        same_folder = own.partition(".")[0] == other.partition(".")[0]
        assert below or same_folder, f"{path.relative_to(ROOT)} imports {module}"


def test_a_public_class_has_a_name_of_its_own() -> None:
    """Who meets the name of a class has one definition to find; examples alone, models of their own, share some."""
    places: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = _dotted(path)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and ".examples." not in module:
                places.setdefault(node.name, set()).add(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}
