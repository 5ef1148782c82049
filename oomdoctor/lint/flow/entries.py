"""With which functions a file's runs begin: where something telling happens, in them or in what they call."""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oomdoctor.lint.code.functions import Function, Module

_TELLING: Final = re.compile(
    r"def (?:training|validation|test|predict|prediction)_step\(|def compute_loss\("
    r"|(?<!def )(?:\b|_)backward\(|\.backward\b|zero_grad|\.step\(|\.eval\(|\.load\(|empty_cache|retain_graph"
    r"|OutOfMemory|out of memory|\bcycle\b|clip_grad|\.train\(|\.state_dict\("
)
"""What a function has in its text where a rule may have something to say."""
_COLLECTS: Final = re.compile(
    r"\.append\([^\n]{0,99}?(?:loss|logit|output|pred|prob|feat|embed|score|entropy|criterion)"
)
"""The same, in a file that goes over batches."""
_BATCHES: Final = re.compile(r"[Ll]oaders?\b|\bbatches\b|_dl\b|\bdataset\b")
_EVALUATES: Final = re.compile(
    r"def\s+_*(?:run_|do_)?(?:eval|evaluat|valid|test|infer|predict)\w*\([^)]{0,200}?(?:[Ll]oader|batches|data)"
)
"""A function that evaluates by its name, though nothing in it switches anything."""
_LOAD: Final = re.compile(r"from torch(?:\.serialization)? import [^\n]{0,200}\bload\b")

_LOADED: Final = re.compile(r"\bload\(")

_CALLED: Final = re.compile(r"(?<!def )\b([A-Za-z_]\w*)\s*\(")


def entries(module: Module) -> list[Function]:
    """Functions to begin with, those that nobody in the file calls first: the others are run on their way."""
    telling = telling_functions(module)
    named = module.named
    functions = [function for function in module.functions if function in telling]
    return sorted(functions, key=lambda function: (function.parent is not None, function.name in named))


def telling_functions(module: Module) -> frozenset[Function]:
    """Functions of a file in which, or in what they call by name, something telling happens."""
    if module.telling is None:
        module.telling = _telling(module)
    return module.telling


def leads_elsewhere(module: Module) -> bool:
    """Whether a file calls functions of other files of its repository that may hold a part of a training loop."""
    return bool(_work_elsewhere(module))


def _work_elsewhere(module: Module) -> frozenset[str]:
    project = module.project
    if project is None:
        return frozenset()
    names = {name for name, meaning in module.names.items() if project.defines_work(meaning, module)}
    for meaning in module.names.modules:
        names |= {name for name in project.work_in(meaning, module) if f".{name}(" in module.text}
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


def tells(module: Module) -> bool:
    """Whether anything in a file's text, or in what it calls in other files, may be of interest to a rule."""
    text = module.text
    return (
        _TELLING.search(text) is not None
        or _EVALUATES.search(text) is not None
        or (_COLLECTS.search(text) is not None and _BATCHES.search(text) is not None)
        or _LOAD.search(text) is not None
        or leads_elsewhere(module)
    )


def _telling_lines(text: str) -> list[int]:
    patterns = [_TELLING, _EVALUATES]
    if _BATCHES.search(text):
        patterns.append(_COLLECTS)
    if _LOAD.search(text):
        patterns.append(_LOADED)
    return sorted(line for pattern in patterns for line, _ in _with_lines(text, pattern))


def _telling(module: Module) -> frozenset[Function]:
    called = _called_by(module)
    module.named = frozenset(name for names in called.values() for name in names)
    lines = _telling_lines(module.text)
    found = {function for function in module.functions if _has_line(function, lines)}
    names = {function.name for function in found} | _work_elsewhere(module)
    while True:
        more = {function for function in module.functions if function not in found and called[function] & names}
        if not more:
            return frozenset(found)
        found |= more
        names |= {function.name for function in more}


def length_of(function: Function) -> int:
    """How many lines a function has."""
    return _end(function) - function.node.lineno


def _end(function: Function) -> int:
    return function.node.end_lineno or function.node.lineno


def _has_line(function: Function, lines: list[int]) -> bool:
    index = bisect_left(lines, function.node.lineno)
    return index < len(lines) and lines[index] <= _end(function)


def _with_lines(text: str, pattern: re.Pattern[str]) -> Iterable[tuple[int, str]]:
    """Each match's line and its first group, or all of it."""
    line, position = 1, 0
    for match in pattern.finditer(text):
        line += text.count("\n", position, match.start())
        position = match.start()
        yield line, match[pattern.groups]
