"""A parsed file: its syntax tree, functions, classes, imported names and the libraries that it uses."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from oomdoctor.lint.source import with_line_feeds


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


Parents = dict[ast.AST, ast.AST]


def parents_in(scope: ast.AST) -> Parents:
    """Return the parent of each node below `scope`."""
    return {child: parent for parent in walk(scope) for child in ast.iter_child_nodes(parent)}


def ancestors(node: ast.AST, parents: Parents) -> Iterator[ast.AST]:
    """The nodes that a node lies in, innermost first."""
    parent = parents.get(node)
    while parent is not None:
        yield parent
        parent = parents.get(parent)


def block_of(statement: ast.AST, parents: Parents) -> list[ast.stmt]:
    """The list of statements that a statement stands in; empty where it stands in none."""
    parent = parents.get(statement)
    if parent is None:
        return []
    blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
    return next((block for block in blocks if isinstance(block, list) and statement in block), [])


def targets_of(statement: ast.AST) -> list[ast.expr]:
    """Return the targets of an assignment, each element of a tuple by itself; empty for another statement."""
    if isinstance(statement, ast.Assign):
        return [inner for target in statement.targets for inner in _flat(target)]
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return [statement.target]
    return []


def _flat(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [inner for element in target.elts for inner in _flat(element)]
    return [target]


def called_name(call: ast.Call) -> str:
    """Return the last part of a called name: `search` for `re.search(...)`; empty where it has no name."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or a module itself, without those of functions and classes defined in it."""
    waiting: list[ast.AST] = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


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
                for alias in node.names:
                    self.modules.add(alias.name)
                    if alias.asname is not None:
                        self._meaning[alias.asname] = alias.name
                    else:
                        first = alias.name.partition(".")[0]
                        self._meaning[first] = first
            else:
                self._add_import_from(node)

    def __contains__(self, name: str) -> bool:
        return name in self._meaning

    def items(self) -> Iterable[tuple[str, str]]:
        """Return each imported name with its qualified name."""
        return self._meaning.items()

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

    def has_line(self, line: int) -> bool:
        """Return whether a line of the file is one of the function's."""
        return self.node.lineno <= line <= (self.node.end_lineno or self.node.lineno)


class Repository(Protocol):
    """The other files of a module's repository, as `oomdoctor.lint.project` reads them.

    Attributes:
        recorded: Grad modes by position in other files, of the runs that begin in a file; filled by
            `oomdoctor.lint.flow.runs`.
    """

    recorded: dict[Path, dict[tuple[str, int, int], set[str]]]

    def definition(self, qualified: str, importer: Module) -> Function | Class | None:
        """Return the function or class of the repository that a qualified name means; None for any other name."""

    def defines_training_part(self, qualified: str, importer: Module) -> bool:
        """Return whether a name means a function of the repository that may hold a part of a training loop."""

    def training_parts_in(self, dotted: str, importer: Module) -> frozenset[str]:
        """Return the functions of a module of the repository that may hold a part of a training loop."""

    def callers(self, name: str, definer: Module, most: int) -> list[Module]:
        """Return at most `most` files that import a function of this name from the file that defines it."""


@dataclass(slots=True, eq=False)
class Module:
    """A parsed file.

    Attributes:
        path: Path as it was found.
        text: Its source.
        tree: Its syntax tree.
        names: Qualified names of imported names.
        functions: All functions and methods, in the order of the file.
        classes: Classes at the top level by name.
        top: Functions at the top level by name.
        project: The repository that it lies in; None for a text of its own.
        named: Names that its functions call; filled with `relevant`.
        relevant: Functions in which a rule may find something; filled by `oomdoctor.lint.flow.hints`.
    """

    path: Path
    text: str
    tree: ast.Module
    names: Names
    functions: list[Function] = field(default_factory=list)
    classes: dict[str, Class] = field(default_factory=dict)
    top: dict[str, Function] = field(default_factory=dict)
    project: Repository | None = None
    named: frozenset[str] = frozenset()
    relevant: frozenset[Function] | None = None

    def qualified(self, node: ast.expr) -> str | None:
        """Qualified name of a dotted expression by its imports, such as `torch.no_grad`; None for the user's own."""
        return self.names.qualified(node)

    def function_at(self, node: ast.AST) -> Function | None:
        """Return the innermost function around a node; None at the top level."""
        line = getattr(node, "lineno", 1)
        return next((function for function in reversed(self.functions) if function.has_line(line)), None)

    def close(self) -> None:
        """Let go of everything, once nobody asks any more: what the parts hold of each other would keep all of it."""
        for class_ in self.classes.values():
            class_.methods.clear()
        self.functions.clear()
        self.classes.clear()
        self.top.clear()
        self.tree.body.clear()
        self.project = self.relevant = None


_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def parse(text: str, path: Path, project: Repository | None = None) -> Module:
    """Parse one file.

    Args:
        text: Its source.
        path: Path of the file.
        project: The repository, so that calls can be followed into its other files.

    Raises:
        SyntaxError: The text is no Python, or nested deeper than Python parses.
    """
    # To the parser they are the same; what looks into the text knows lines by their line feeds.
    text = with_line_feeds(text)
    tree = _tree(text)
    module = Module(path=path, text=text, tree=tree, names=Names(), project=project)
    imports: list[ast.Import | ast.ImportFrom] = []
    _index_definitions(tree, module, imports)
    module.names = Names(imports)
    for class_ in module.classes.values():
        class_.bases = tuple(_bases(class_, module))
    return module


def _tree(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in the user's strings
            return ast.parse(text)
    except SyntaxError:
        raise
    except (RecursionError, MemoryError):
        message = "nested too deeply"
        raise SyntaxError(message) from None
    except ValueError as error:
        raise SyntaxError(str(error)) from None


def _index_definitions(tree: ast.Module, module: Module, imports: list[ast.Import | ast.ImportFrom]) -> None:
    """Find functions, classes and imports; only statements are looked at, since nothing else can hold them."""
    waiting: list[tuple[ast.AST, Class | None, Function | None]] = [(tree, None, None)]
    while waiting:
        holder, class_, function = waiting.pop()
        for statement in _statements(holder):
            kind = statement.__class__
            if kind is ast.Import or kind is ast.ImportFrom:
                imports.append(statement)  # type: ignore[arg-type]
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                waiting.append((statement, None, _add_function(statement, module, class_, function)))
            elif isinstance(statement, ast.ClassDef):
                waiting.append(
                    (statement, module.classes.setdefault(statement.name, Class(statement, module)), function)
                )
            elif hasattr(statement, "body") or hasattr(statement, "cases"):
                waiting.append((statement, class_, function))
    module.functions.sort(key=lambda function: function.node.lineno)
    imports.sort(key=lambda node: node.lineno)


def _statements(holder: ast.AST) -> Iterator[ast.AST]:
    for name in _BODIES:
        inner = getattr(holder, name, None)
        if inner.__class__ is list:
            yield from inner


def _add_function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, module: Module, class_: Class | None, parent: Function | None
) -> Function:
    function = Function(node, module, class_, parent)
    module.functions.append(function)
    if class_ is not None:
        class_.methods.setdefault(node.name, function)
    elif parent is None:
        module.top[node.name] = function
    return function


def _bases(class_: Class, module: Module) -> Iterator[str]:
    """Names of the bases: qualified where they are imported, as they stand where they are the file's own."""
    for base in class_.node.bases:
        name = module.qualified(base)
        if name is None and isinstance(base, ast.Name):
            name = base.id
        if name is not None:
            yield name


_OTHER_TENSORS: Final = re.compile(
    r"^[ \t]*(?:import|from)[ \t]+(?:jax|flax|equinox|haiku|tensorflow|keras|mxnet|paddle|mindspore|tinygrad|mlx)\b",
    re.MULTILINE,
)
_ON_GPU: Final = re.compile(
    r"\bcuda\b|\bdevice\b|\.to\(|accelerat|deepspeed|\bfabric\b|\bxpu\b|\bnpu\b|\bmps\b|lightning|DistributedDataParallel"
)
_SEVERAL_PROCESSES: Final = re.compile(
    r"init_process_group\(|DistributedDataParallel\(|\bDDP\(|\bmp\.spawn\(|multiprocessing\.spawn\("
)

_SAVES_ELSEWHERE: Final = re.compile(r"fsdp|fullyshard|fully_shard|torch_xla|deepspeed|megatron", re.IGNORECASE)
_TORCH: Final = re.compile(r"\btorch\.(?!utils\.data)|\.cuda\(|\.to\(")


def has_other_tensors(module: Module) -> bool:
    """Return whether a file imports another library with tensors and models, whose `model(x)` records nothing."""
    return _OTHER_TENSORS.search(module.text) is not None


def is_of_other_tensors(node: ast.AST, module: Module) -> bool:
    """Return whether a node may be about another library's tensors."""
    if not has_other_tensors(module):
        return False
    line = getattr(node, "lineno", 0)
    around = next((function.node for function in module.functions if function.has_line(line)), None)
    return around is None or _TORCH.search(ast.get_source_segment(module.text, around) or "") is None


def may_use_gpu(module: Module) -> bool:
    """Return whether a file's text mentions a device other than the processor."""
    return _ON_GPU.search(module.text) is not None


def runs_in_several_processes(module: Module) -> bool:
    """Return whether a file sets up distributed training, each process of which runs it."""
    return _SEVERAL_PROCESSES.search(module.text) is not None


def has_own_checkpoints(module: Module) -> bool:
    """Return whether a file uses a library whose checkpoints need not hold the device that the model is on."""
    return _SAVES_ELSEWHERE.search(module.text) is not None
