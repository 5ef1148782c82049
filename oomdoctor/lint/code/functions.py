"""A file's functions and classes, and who calls whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ast
    from pathlib import Path

    from oomdoctor.lint.code.names import Names
    from oomdoctor.lint.code.project import Project


@dataclass(slots=True, eq=False)
class Class:
    """A class that a file defines.

    Attributes:
        node: Its definition.
        module: The file.
        bases: Qualified names of its base classes as far as imports tell, such as `torch.nn.Module`.
        methods: Its own methods by name.
    """

    node: ast.ClassDef
    module: Module
    bases: tuple[str, ...] = ()
    methods: dict[str, Function] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.name


@dataclass(slots=True, eq=False)
class Function:
    """A function or a method that a file defines, at whatever depth.

    Attributes:
        node: Its definition.
        module: The file.
        class_: The class whose method it is.
        parent: The function in whose body it is defined.
    """

    node: ast.FunctionDef | ast.AsyncFunctionDef
    module: Module
    class_: Class | None = None
    parent: Function | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.name


@dataclass(slots=True, eq=False)
class Module:
    """One file that could be parsed.

    Attributes:
        path: As it was found.
        text: Its source.
        tree: Its syntax tree.
        names: What imported names stand for.
        functions: All functions and methods, in the order of the file.
        classes: Classes at the top level by name.
        top: Functions at the top level by name.
        project: The repository that it lies in; None for a text of its own.
        named: Kept there too: names that its functions call.
        telling: Kept here by `oomdoctor.lint.flow.entries`: functions in which something telling happens.
    """

    path: Path
    text: str
    tree: ast.Module
    names: Names
    functions: list[Function] = field(default_factory=list)
    classes: dict[str, Class] = field(default_factory=dict)
    top: dict[str, Function] = field(default_factory=dict)
    project: Project | None = None
    named: frozenset[str] = frozenset()
    telling: frozenset[Function] | None = None

    def qualified(self, node: ast.expr) -> str | None:
        """Qualified name of a dotted expression by its imports, such as `torch.no_grad`; None for the user's own."""
        return self.names.qualified(node)

    def close(self) -> None:
        """Let go of everything, once nobody asks any more: what the parts hold of each other would keep all of it."""
        for class_ in self.classes.values():
            class_.methods.clear()
        self.functions.clear()
        self.classes.clear()
        self.top.clear()
        self.tree.body.clear()
        self.project = self.telling = None
