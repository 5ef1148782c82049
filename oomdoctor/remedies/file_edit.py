"""How a file is edited by hand for a remedy: what a worker says that it applied, and the user's file with such edits.

Reads and writes source; nothing of it runs. Imports no torch.
"""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import NotApplicableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class FileEdit:
    """Lines of Python for the places of a user's file.

    Attributes:
        imports: Import statements.
        top: Lines that come before the first import of torch.
        definitions: Lines for the file's end, of classes and functions.
        model: Lines for the end of `build_model`, in which `model` is the model.
        batch: Lines for the end of `make_batch`, in which `batch` is the batch.
        decorators: Decorators of `training_step`, without the `@`.
        optimizer: An expression that replaces what `build_optimizer` returns; `{optimizer}` stands for its call and
            `{parameters}` for what is trained. None to leave it.
        keywords: Keywords that are added to the optimizer's call.
        loop: Lines for the training loop, which no function of the file holds.
    """

    imports: tuple[str, ...] = ()
    top: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    batch: tuple[str, ...] = ()
    decorators: tuple[str, ...] = ()
    optimizer: str | None = None
    keywords: tuple[str, ...] = ()
    loop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """A change that a worker applied to the target.

    Attributes:
        name: Its name.
        acts_on: What it acts on, in words.
        count: How many of them, such as checkpointed blocks.
        total: How many there are; at least `count`.
        edit: The same, done by hand.
        note: What to know besides; empty for nothing.
    """

    name: str
    acts_on: str
    count: int
    total: int
    edit: FileEdit
    note: str = ""


_TRAINED: Final = "[parameter for parameter in {model}.parameters() if parameter.requires_grad]"
_PLACES: Final = (
    ("top", "before the first import of torch"),
    ("imports", "with the imports"),
    ("definitions", "in the file"),
    ("model", "at the end of `{builder}`, where `model` is the model"),
    ("batch", "at the end of `make_batch`, where `batch` is the batch"),
    ("decorators", "above `training_step`"),
    ("optimizer", "in `build_optimizer`"),
    ("loop", "in the training loop"),
)


def merged(edits: Sequence[FileEdit]) -> FileEdit:
    """Return several edits as one, each line of imports once."""

    def all_of(name: str) -> tuple[str, ...]:
        return tuple(line for edit in edits for line in getattr(edit, name))

    optimizers = [edit.optimizer for edit in edits if edit.optimizer]
    return FileEdit(
        imports=tuple(dict.fromkeys(all_of("imports"))),
        top=tuple(dict.fromkeys(all_of("top"))),
        definitions=all_of("definitions"),
        model=all_of("model"),
        batch=all_of("batch"),
        decorators=all_of("decorators"),
        optimizer=optimizers[-1] if optimizers else None,
        keywords=all_of("keywords"),
        loop=all_of("loop"),
    )


def code_by_place(edit: FileEdit, builder: str, optimizer: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each place of a program, in words, and the lines that go there.

    Args:
        edit: The lines.
        builder: Name of the function that builds the model.
        optimizer: Name of the optimizer's class, such as `AdamW`.
    """
    for name, place in _PLACES:
        lines = getattr(edit, name)
        if name == "decorators":
            lines = tuple(f"@{line}" for line in lines)
        if name == "optimizer":
            changed = edit.optimizer or edit.keywords
            lines = (f"return {_default_optimizer(edit, optimizer, 'model')}",) if changed else ()
        if lines:
            yield place.format(builder=builder), lines


_PROGRAM_PLACES: Final = (
    ("top", "before the first import of torch"),
    ("imports", "with the imports"),
    ("definitions", "with the functions"),
    ("model", "where `model` has been built"),
    ("decorators", "around the forward and the loss"),
    ("keywords", "in the optimizer's call"),
    ("loop", "in the training loop"),
)


def code_of_program(edit: FileEdit) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each place of a program that is no file of functions, in words, and the lines that go there."""
    for name, place in _PROGRAM_PLACES:
        lines = getattr(edit, name)
        if name == "decorators":
            lines = tuple(f"with {line}:" for line in lines)
        if lines:
            yield place, lines


def patched(source: str, edit: FileEdit, builder: str, optimizer: str) -> str:
    """Return a file's source with an edit.

    Args:
        source: Of the user's file.
        edit: What to change.
        builder: Name of the function that builds the model.
        optimizer: Name of the `torch.optim` class that trains where the file builds none.

    Raises:
        NotApplicableError: Its code has no place that is known for a line.
    """
    if edit.loop:
        raise _cannot(
            f"`{edit.loop[0].partition('  #')[0]}` belongs into the training loop, which the file does not have"
        )
    return _Editor(source, builder).apply(edit, optimizer)


def diff_of(path: str, before: str, after: str) -> str:
    """Return a unified diff."""
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(old, new, fromfile=f"a/{path}", tofile=f"b/{path}"))


def _cannot(reason: str) -> NotApplicableError:
    return NotApplicableError(reason, hint="paste the code by hand")


def _default_optimizer(edit: FileEdit, optimizer: str, model: str) -> str:
    keywords = "".join(f", {keyword}" for keyword in edit.keywords)
    trained = _TRAINED.format(model=model)
    call = f"torch.optim.{optimizer}({trained}{keywords})"
    return edit.optimizer.format(optimizer=call, parameters=trained) if edit.optimizer else call


@dataclass(slots=True)
class _Editor:
    """Source with replacements that are made in one go.

    Attributes:
        source: The source.
        builder: Name of the function that builds the model.
        replacements: Offsets from and to, and the text that goes there.
    """

    source: str
    builder: str
    replacements: list[tuple[int, int, str]] = field(default_factory=list)

    def apply(self, edit: FileEdit, optimizer: str) -> str:
        """Return the source with the edit."""
        tree = ast.parse(self.source)
        if edit.model:
            self._end_of(_function(tree, self.builder), "model", edit.model)
        if edit.batch:
            self._end_of(_function(tree, "make_batch"), "batch", edit.batch)
        if edit.decorators:
            step = _function(tree, "training_step")
            first = min([step.lineno, *(decorator.lineno for decorator in step.decorator_list)])
            self._insert(first, [f"@{line}" for line in edit.decorators])
        after = self._optimizer(tree, edit, optimizer) if edit.optimizer or edit.keywords else []
        self._head(tree, edit)
        text = self.source
        for start, end, replacement in sorted(self.replacements, reverse=True):
            text = text[:start] + replacement + text[end:]
        return text if not after else "\n".join([text.rstrip("\n"), "", "", *after, ""])

    def _head(self, tree: ast.Module, edit: FileEdit) -> None:
        """Insert imports, settings and definitions before and after the file's own imports."""
        body = tree.body
        has_text = bool(body) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        start = 1 if has_text else 0
        while start < len(body) and isinstance(body[start], ast.ImportFrom) and body[start].module == "__future__":  # type: ignore[attr-defined]
            start += 1
        head_line = (body[start - 1].end_lineno or 0) + 1 if start else 1
        imports = [item for item in body[start:] if isinstance(item, ast.Import | ast.ImportFrom)]
        last = max((item.end_lineno or 0 for item in imports), default=head_line - 1)
        own = {ast.unparse(item) for item in imports}
        if edit.top:
            self._insert(head_line, [*edit.top, ""])
        missing = [line for line in edit.imports if line not in own]
        if missing or edit.definitions:
            definitions = ["", "", *edit.definitions] if edit.definitions else []
            self._insert(last + 1, [*missing, *definitions])

    def _end_of(self, function: ast.FunctionDef, name: str, lines: Sequence[str]) -> None:
        """Have each `return` of a function return the value of a variable, after these lines."""
        for found in _returns(function):
            start, end = self._offset(found.lineno, found.col_offset), self._end(found)
            line_start = self._offset(found.lineno, 0)
            if self.source[line_start:start].strip() and function.body == [found]:
                self.replacements.append(self._own_lines(function, found, name, lines))
                continue
            if self.source[line_start:start].strip():
                raise _cannot(f"the `return` in line {found.lineno} does not stand on a line of its own")
            value = self.source[start + len("return") : end].strip()
            indent = "\n" + self.source[line_start:start]
            first = [] if value == name else [f"{name} = {value}"]
            self.replacements.append((start, end, indent.join([*first, *lines, f"return {name}"])))

    def _own_lines(
        self, function: ast.FunctionDef, found: ast.Return, name: str, lines: Sequence[str]
    ) -> tuple[int, int, str]:
        """Return the replacement of a body that stands on the line of its `def`, by lines of their own."""
        start, end = self._offset(found.lineno, found.col_offset), self._end(found)
        value = self.source[start + len("return") : end].strip()
        text = "".join(
            f"\n{' ' * (function.col_offset + 4)}{line}" for line in (f"{name} = {value}", *lines, f"return {name}")
        )
        return len(self.source[:start].rstrip()), end, text

    def _optimizer(self, tree: ast.Module, edit: FileEdit, optimizer: str) -> list[str]:
        """Edit `build_optimizer`; return lines of a new one where the file has none."""
        if "build_optimizer" not in _functions(tree):
            if "build_optimizer" in ast.unparse(tree):
                raise _cannot("`build_optimizer` is not defined in this file")
            if "import torch" not in {ast.unparse(item) for item in tree.body}:
                self._insert(1, ["import torch"]) if not tree.body else None
            return ["def build_optimizer(model):", f"    return {_default_optimizer(edit, optimizer, 'model')}"]
        function = _function(tree, "build_optimizer")
        for found in _returns(function):
            call = found.value
            if not isinstance(call, ast.Call):
                raise _cannot(f"line {found.lineno} does not return the call of an optimizer")
            start, end = self._offset(call.lineno, call.col_offset), self._end(call)
            text = self._with_keywords(call, self.source[start:end], edit.keywords)
            model = function.args.args[0].arg if function.args.args else "model"
            if edit.optimizer:
                text = edit.optimizer.format(optimizer=text, parameters=_TRAINED.format(model=model))
            self.replacements.append((start, end, text))
        return []

    @staticmethod
    def _with_keywords(call: ast.Call, text: str, keywords: Sequence[str]) -> str:
        given = {keyword.arg for keyword in call.keywords} & {"foreach", "fused"}
        if keywords and given:
            raise _cannot(f"the optimizer in line {call.lineno} sets `{given.pop()}` itself")
        if not keywords:
            return text
        inner = text[:-1].rstrip()
        comma = "" if inner.endswith(("(", ",")) else ","
        return f"{inner}{comma}{'' if inner.endswith('(') else ' '}{', '.join(keywords)})"

    def _insert(self, line: int, lines: Sequence[str]) -> None:
        offset = self._offset(line, 0)
        break_before = "\n" if offset == len(self.source) and not self.source.endswith("\n") else ""
        self.replacements.append((offset, offset, break_before + "".join(f"{text}\n" for text in lines)))

    def _offset(self, line: int, column: int) -> int:
        """Return the offset of a place as `ast` has it, whose columns are bytes of UTF-8."""
        lines = self.source.splitlines(keepends=True)
        before = sum(map(len, lines[: line - 1]))
        return before + (len(lines[line - 1].encode()[:column].decode()) if column else 0)

    def _end(self, node: ast.stmt | ast.expr) -> int:
        return self._offset(node.end_lineno or node.lineno, node.end_col_offset or 0)


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {item.name: item for item in tree.body if isinstance(item, ast.FunctionDef)}


def _function(tree: ast.Module, name: str) -> ast.FunctionDef:
    found = _functions(tree).get(name)
    if found is None:
        raise _cannot(f"the file defines no function `{name}`, where the code would go")
    return found


def _returns(function: ast.FunctionDef) -> list[ast.Return]:
    """Return the function's own returns of a value."""
    found: list[ast.Return] = []
    pending: list[ast.AST] = [*function.body]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Return) and node.value is not None:
            found.append(node)
        pending += ast.iter_child_nodes(node)
    if not found:
        raise _cannot(f"`{function.name}` has no `return` of a value")
    return found
