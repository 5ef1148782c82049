"""Hints from names, annotations, base classes and plain text, before anything is run."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.events import Kind, Value
from oomdoctor.lint.module import Class, Function, Module

_RELEVANT_TEXT: Final = re.compile(
    r"def (?:training|validation|test|predict|prediction)_step\(|def compute_loss\("
    r"|(?<!def )(?:\b|_)backward\(|\.backward\b|zero_grad|\.step\(|\.eval\(|\.load\(|empty_cache|retain_graph"
    r"|OutOfMemory|out of memory|\bcycle\b|clip_grad|\.train\(|\.state_dict\("
)
"""Text of functions in which a rule may find something."""
_COLLECTS: Final = re.compile(
    r"\.append\([^\n]{0,99}?(?:loss|logit|output|pred|prob|feat|embed|score|entropy|criterion)"
)
"""Text of functions in which a rule may find something if the file iterates over batches."""
_BATCHES: Final = re.compile(r"[Ll]oaders?\b|\bbatches\b|_dl\b|\bdataset\b")
_EVALUATES: Final = re.compile(
    r"def\s+_*(?:run_|do_)?(?:eval|evaluat|valid|test|infer|predict)\w*\([^)]{0,200}?(?:[Ll]oader|batches|data)"
)
"""A function that evaluates by its name, though nothing in it switches anything."""
_LOAD: Final = re.compile(r"from torch(?:\.serialization)? import [^\n]{0,200}\bload\b")

_LOADED: Final = re.compile(r"\bload\(")

_CALLED: Final = re.compile(r"(?<!def )\b([A-Za-z_]\w*)\s*\(")


def entry_functions(module: Module) -> list[Function]:
    """Functions to begin with, those that nobody in the file calls first: the others are run on their way."""
    relevant = relevant_functions(module)
    named = module.named
    functions = [function for function in module.functions if function in relevant]
    return sorted(functions, key=lambda function: (function.parent is not None, function.name in named))


def relevant_functions(module: Module) -> frozenset[Function]:
    """Functions of a file in which, or in what they call by name, something telling happens."""
    if module.relevant is None:
        module.relevant = _find_relevant(module)
    return module.relevant


def calls_other_files(module: Module) -> bool:
    """Return whether a file calls functions of other files that may hold a part of a training loop."""
    return bool(_followed_names(module))


def _followed_names(module: Module) -> frozenset[str]:
    project = module.project
    if project is None:
        return frozenset()
    names = {name for name, meaning in module.names.items() if project.defines_training_part(meaning, module)}
    for meaning in module.names.modules:
        names |= {name for name in project.training_parts_in(meaning, module) if f".{name}(" in module.text}
    return frozenset(names)


def _called_by(module: Module) -> dict[Function, frozenset[str]]:
    """Names that each function calls, whatever they are called on."""
    lines, names = [], []
    for line, name in _with_lines(module.text, _CALLED):
        lines.append(line)
        names.append(name)
    return {
        function: frozenset(names[bisect_left(lines, function.node.lineno) : bisect_left(lines, _end(function) + 1)])
        for function in module.functions
    }


def is_relevant(module: Module) -> bool:
    """Return whether a rule may find something in a file, by its text and the files that it calls."""
    text = module.text
    return (
        _RELEVANT_TEXT.search(text) is not None
        or _EVALUATES.search(text) is not None
        or (_COLLECTS.search(text) is not None and _BATCHES.search(text) is not None)
        or _LOAD.search(text) is not None
        or calls_other_files(module)
    )


def _find_relevant(module: Module) -> frozenset[Function]:
    called = _called_by(module)
    module.named = frozenset(name for names in called.values() for name in names)
    patterns = [_RELEVANT_TEXT, _EVALUATES]
    if _BATCHES.search(module.text):
        patterns.append(_COLLECTS)
    if _LOAD.search(module.text):
        patterns.append(_LOADED)
    lines = sorted(line for pattern in patterns for line, _ in _with_lines(module.text, pattern))
    found = {function for function in module.functions if _has_line(function, lines)}
    names = {function.name for function in found} | _followed_names(module)
    while True:
        more = {function for function in module.functions if function not in found and called[function] & names}
        if not more:
            return frozenset(found)
        found |= more
        names |= {function.name for function in more}


def line_count(function: Function) -> int:
    """Return the number of lines of a function after its first."""
    return _end(function) - function.node.lineno


def _end(function: Function) -> int:
    return function.node.end_lineno or function.node.lineno


def _has_line(function: Function, lines: list[int]) -> bool:
    index = bisect_left(lines, function.node.lineno)
    return index < len(lines) and lines[index] <= _end(function)


def _with_lines(text: str, pattern: re.Pattern[str]) -> Iterable[tuple[int, str]]:
    """Yield the line and the first group, or else the whole text, of each match."""
    line, position = 1, 0
    for match in pattern.finditer(text):
        line += text.count("\n", position, match.start())
        position = match.start()
        yield line, match[pattern.groups]


_MOST_BASES: Final = 6
_MODEL_ENDINGS: Final = ("Module", "PreTrainedModel", "Model", "ModelMixin")


def find_method(class_: Class, name: str, depth: int = 0) -> Function | None:
    """A method of a class or of the bases that the repository has."""
    found = class_.methods.get(name)
    if found is not None or depth > _MOST_BASES:
        return found
    for base in bases_of(class_):
        found = find_method(base, name, depth + 1)
        if found is not None:
            return found
    return None


def bases_of(class_: Class) -> list[Class]:
    """The base classes that the repository has."""
    module, found = class_.module, []
    for name in class_.bases:
        base: Class | Function | None = module.classes.get(name)
        if base is None and module.project is not None:
            base = module.project.definition(name, module)
        if isinstance(base, Class) and base is not class_:
            found.append(base)
    return found


def library_bases_of(class_: Class, depth: int = 0) -> frozenset[str]:
    """Qualified names of the library's classes that a class stands on, through the repository's own bases."""
    found = set(class_.bases)
    if depth <= _MOST_BASES:
        for base in bases_of(class_):
            found |= library_bases_of(base, depth + 1)
    return frozenset(found)


def kind_of_class(class_: Class) -> Kind:
    """Return the kind of a user class's objects, by its base classes."""
    roots = library_bases_of(class_)
    kind = next((known.BASE_KINDS[root] for root in roots if root in known.BASE_KINDS), None)
    if kind is None and any(root.rpartition(".")[2] in _MODEL_ENDINGS for root in roots):
        kind = Kind.MODEL
    if kind is None and any(root.endswith("LightningModule") for root in roots):
        kind = Kind.MODEL
    if kind is Kind.MODEL and known.CRITERION_CLASS.search(class_.name):
        return Kind.LOSS_FUNCTION
    return kind or Kind.UNKNOWN


_PYTHONS: Final = frozenset({"int", "float", "str", "bool"})  # the only annotations without an import


def value_of_annotation(node: ast.expr, module: Module) -> Value | None:
    """Return the value that an annotation describes; None where it describes none.

    Args:
        node: The annotation; a union with None, `Optional` and a text are looked into.
        module: The file, for what its names mean.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _of_text(node.value, module)
    if isinstance(node, ast.BinOp):
        return value_of_annotation(node.left, module) or value_of_annotation(node.right, module)
    if isinstance(node, ast.Subscript):
        is_optional = isinstance(node.value, ast.Name | ast.Attribute) and ast.unparse(node.value).endswith("Optional")
        return value_of_annotation(node.slice, module) if is_optional else None
    if isinstance(node, ast.Name) and node.id in module.classes:
        return _of_class(module.classes[node.id])
    qualified = module.qualified(node)
    if qualified is None:
        kind = known.ANNOTATIONS.get(node.id) if isinstance(node, ast.Name) and node.id in _PYTHONS else None
        return None if kind is None else Value(kind=kind)
    kind = known.ANNOTATIONS.get(qualified.rpartition(".")[2])
    return _imported(qualified, module) if kind is None else Value(kind=kind)


def _of_text(text: str, module: Module) -> Value | None:
    try:
        return value_of_annotation(ast.parse(text, mode="eval").body, module)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imported(qualified: str, module: Module) -> Value | None:
    definition = None if module.project is None else module.project.definition(qualified, module)
    return _of_class(definition) if isinstance(definition, Class) else None


def _of_class(class_: Class) -> Value:
    return Value(kind=kind_of_class(class_), class_=class_)


_METHODS: Final = (
    "eval|train|parameters|named_parameters|zero_grad|step|backward|no_sync|state_dict|load_state_dict|accumulate|"
    "unscale_|is_gradient_accumulation_boundary|sync_gradients|manual_backward|prepare|scale|update"
)
# Methods are looked for first, since they are rare, and what they are called on is read backwards from there.
_CALL: Final = re.compile(rf"\.({_METHODS})\b")
_OWNER: Final = re.compile(r"[A-Za-z_][\w.]*(?:\[\w+\])?\Z")
_LONGEST_OWNER: Final = 80

_MODEL_USES: Final = frozenset({"eval", "train", "parameters", "named_parameters", "no_sync"})
_NAMED: Final[tuple[tuple[re.Pattern[str], Kind], ...]] = (
    (known.IS_SCHEDULER_NAME, Kind.SCHEDULER),
    (known.IS_SCALER_NAME, Kind.SCALER),
    (known.IS_ACCELERATOR_NAME, Kind.ACCELERATOR),
    (known.IS_FABRIC_NAME, Kind.FABRIC),
    (known.IS_ENGINE_NAME, Kind.ENGINE),
    (known.IS_OPTIMIZER_NAME, Kind.OPTIMIZER),
    (known.IS_LOADER_NAME, Kind.LOADER),
    (known.IS_CRITERION_NAME, Kind.LOSS_FUNCTION),
    (known.IS_MODEL_NAME, Kind.MODEL),
)
_NEEDED: Final[Mapping[Kind, frozenset[str]]] = MappingProxyType(
    {
        # A name such as `scaler` is also a scikit-learn's, `engine` a game's: what is called on it has to fit.
        Kind.SCALER: frozenset({"scale", "unscale_", "update"}),
        Kind.ENGINE: frozenset({"backward", "is_gradient_accumulation_boundary"}),
        Kind.ACCELERATOR: frozenset({"backward", "accumulate", "prepare", "sync_gradients"}),
        Kind.FABRIC: frozenset({"backward"}),
        Kind.SCHEDULER: frozenset({"step"}),
    }
)


def usage(text: str) -> dict[str, frozenset[str]]:
    """Return the relevant methods that a file calls, by dotted text: `{"self.model": {"eval", "parameters"}}`."""
    found: dict[str, set[str]] = {}
    for match in _CALL.finditer(text):
        owner = _OWNER.search(text, max(0, match.start() - _LONGEST_OWNER), match.start())
        if owner is not None:
            found.setdefault(owner[0], set()).add(match[1])
    return {name: frozenset(methods) for name, methods in found.items()}


@lru_cache(maxsize=4096)
def guess(text: str, uses: frozenset[str]) -> Kind:
    """Return the kind of a dotted text by its name and uses; UNKNOWN where neither tells.

    Args:
        text: Dotted text, such as `self.model`.
        uses: Telling methods that the file calls on it.
    """
    for pattern, kind in _NAMED:
        if pattern.search(text):
            needed = _NEEDED.get(kind)
            if needed is None or needed & uses:
                return kind
    if "zero_grad" in uses and "step" in uses and not uses & {"eval", "train"}:
        return Kind.OPTIMIZER
    if "backward" in uses and uses & {"step", "zero_grad"}:
        return Kind.ENGINE
    if {"eval", "train"} <= uses or ("parameters" in uses and uses & {"eval", "train"}):
        return Kind.UNKNOWN if known.IS_TRAINER_NAME.search(text) else Kind.MODEL
    if uses & _MODEL_USES and uses & {"parameters", "named_parameters", "no_sync", "load_state_dict"}:
        return Kind.MODEL
    return Kind.UNKNOWN
